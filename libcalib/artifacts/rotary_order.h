// In which order an engine caches the two halves that the rotary embedding turns together.
#pragma once
#include <Eigen/Core>
#include <cstdint>
#include <optional>
#include <string_view>

namespace oscar {

// Halves: dims i and i + n / 2 are a pair, as in every file of ours. Interleaved: dims 2i and 2i + 1.
enum class RotaryOrder : uint8_t { Halves, Interleaved };

// Of the keys that llama.cpp caches for a GGUF architecture; std::nullopt for one that is not in the table.
std::optional<RotaryOrder> rotary_order(std::string_view architecture);

// The dim, in halves, that is dim i of the engine's. The first `rotary` dims are turned, the others stay in
// place.
Eigen::Index halves_row(Eigen::Index i, Eigen::Index rotary, RotaryOrder order);

}  // namespace oscar
