// libcalib/codeword_search.h by LibTorch.
#pragma once
#include <c10/core/Device.h>

#include "libcalib/codeword_search.h"

namespace oscar {

std::unique_ptr<CodewordSearch> torch_search(at::Device device);

}  // namespace oscar
