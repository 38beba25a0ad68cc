// A GGUF file made from another by adding to it.
#pragma once
#include <functional>

#include "formats/gguf.h"

namespace oscar {

struct GgufAddition {
  // Integers are written as uint32 where they fit and int64 otherwise, numbers as float64; texts and bools as
  // they are. Arrays of strings and of integers (int64) too, other arrays are std::invalid_argument.
  std::vector<std::pair<std::string, GgufValue>> metadata;
  std::vector<std::pair<std::string, Tensor>> tensors;  // row-major; F64, F32, F16, BF16 or a signed integer
};

// Everything of `base`, byte for byte and in its order, but for metadata and tensors that `drop` names; then
// the addition. A name that is still taken is std::invalid_argument. `path` may be the base itself. The same
// input gives the same bytes. Atomic.
void write_gguf(const std::filesystem::path& path, const GgufFile& base,
                const std::function<bool(std::string_view)>& drop, const GgufAddition& addition);

}  // namespace oscar
