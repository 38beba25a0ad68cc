// In which order an engine caches the dims of a key, beside the order of the original checkpoint, which is
// that of our statistics.
#pragma once
#include <Eigen/Core>
#include <cstdint>
#include <optional>
#include <string_view>

namespace oscar {

// Same: as in the original checkpoint. Interleaved: the two halves that the rotary embedding turns together
// were interleaved when the checkpoint was converted; dim 2i of the engine is dim i, and 2i + 1 is i + n / 2.
enum class RotaryOrder : uint8_t { Same, Interleaved };

// Of the keys that llama.cpp caches for a GGUF architecture; std::nullopt for one that is not in the table.
std::optional<RotaryOrder> rotary_order(std::string_view architecture);

// The dim of the original checkpoint that is dim i of the engine's. The first `rotary` dims are turned, the
// others stay in place.
Eigen::Index model_row(Eigen::Index i, Eigen::Index rotary, RotaryOrder order);

}  // namespace oscar
