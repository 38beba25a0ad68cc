// safetensors: an 8-byte header length, a JSON header, the data. Strict: overlaps, gaps, trailing bytes and
// duplicate keys are errors.
#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "formats/tensor.h"

namespace oscar {

struct SafeTensors {
  std::map<std::string, Tensor> tensors;        // mapped from the file
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

SafeTensors read_safetensors(const std::filesystem::path& path);
// The header in key order, padded with spaces to 8 bytes; the data by element size, largest first, then key, so that
// every tensor is aligned. The same content gives the same bytes. Atomic.
void write_safetensors(const std::filesystem::path& path, const SafeTensors& content);

}  // namespace oscar
