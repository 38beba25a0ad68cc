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
// Tensors in key order, header padded with spaces to 8 bytes: the same content gives the same bytes. Atomic.
void write_safetensors(const std::filesystem::path& path, const SafeTensors& content);

}  // namespace oscar
