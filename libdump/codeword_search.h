// libcalib/codeword_search.h by LibTorch: a kernel of ours searches, or its operations do. Those make float32 scores of all
// words, which say what can be the nearest, and where that is more than one, double arithmetic in the order of
// kernels/codebook.h decides.
#pragma once
#include <c10/core/Device.h>

#include "libcalib/codeword_search.h"

namespace oscar {

std::unique_ptr<CodewordSearch> torch_search(at::Device device, bool kernels);

}  // namespace oscar
