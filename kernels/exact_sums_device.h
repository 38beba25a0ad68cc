// Exact sums of doubles on a GPU: the additions of libcalib's ExactSums, bit for bit, in device memory.
#pragma once
#include <cstdint>

#include "kernels/status.h"

namespace oscar::cuda {

// Adds values (n) to planes (plane_count, n), whose unevaluated total is a sum without rounding: what an addition
// rounds off goes to the next plane. flags (2), set by the caller beforehand:
//   flags[0] = min(flags[0], label) where a value is not finite; that value is left out
//   flags[1] = 1 where the last plane rounds something off, or a sum overflows: the total is no longer exact
// Asynchronous on `stream`, capturable.
Status add_exactly(double* planes, int plane_count, int64_t n, const double* values, int32_t* flags,
                   int32_t label, void* stream);

}  // namespace oscar::cuda
