// NumPy's .npy, versions 1 to 3, C order, little-endian.
#pragma once
#include <filesystem>

#include "formats/tensor.h"

namespace oscar {

// Mapped. Fortran order, big endian and object dtypes are refused by name.
Tensor read_npy(const std::filesystem::path& path);
void write_npy(const std::filesystem::path& path, const Tensor& tensor);

}  // namespace oscar
