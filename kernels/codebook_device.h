// kernels/codebook.h on a GPU: several groups of rows at a time, arrays in device memory.
#pragma once
#include <cstdint>

#include "kernels/status.h"

namespace oscar::cuda {

struct CodewordBatch {
  int64_t n = 0;  // rows of a group
  int g = 0;      // channels, 1..64
  int count = 0;  // words, 1..65536
  int searches = 0;
  const float* rows = nullptr;     // (groups, n, g)
  const int32_t* group = nullptr;  // (searches): whose rows are searched
  const float* words = nullptr;    // (searches, count, g)
  uint16_t* index = nullptr;       // (searches, n)
  float* distance = nullptr;       // (searches, n)
};

// The bytes of nearest_codeword(). Asynchronous on `stream`, capturable, no allocation. Rows that float32 scores
// cannot decide look through all words once more, a thread each.
Status nearest_codewords(const CodewordBatch& batch, void* stream);

}  // namespace oscar::cuda
