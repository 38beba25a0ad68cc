// kernels/gram.h on a GPU: all heads and several weightings of the same rows in one call, arrays in device
// memory.
#pragma once
#include <cstdint>

#include "kernels/status.h"

namespace oscar::cuda {

inline constexpr int kMaxWeightings = 3;

struct GramBatch {
  int64_t n = 0;  // rows of a query head
  // One output a head: rows of the `group` query heads that share it are added up. dim: a multiple of 8 up
  // to 256; what lies between 64, 96, 128, 192 and 256 costs as much as the next of them.
  int heads = 0, group = 1, dim = 0;
  const void* rows = nullptr;  // bfloat16, 16-byte aligned: rows[t * stride + (h * group + j) * dim + i]
  int64_t stride = 0;          // a multiple of 8
  int weightings = 1;          // 1..3
  const float* weights[kMaxWeightings] = {};  // (heads * group, n); nullptr: all one
  double* gram[kMaxWeightings] = {};   // (heads, dim, dim): sum of weight * x^T x, symmetric; not added to
  double* sum[kMaxWeightings] = {};    // (heads, dim): sum of weight * x; nullptr: not wanted
  double* total[kMaxWeightings] = {};  // (heads): sum of weights; nullptr: not wanted
};

// Bytes of scratch, to be 16-byte aligned.
int64_t gram_workspace(const GramBatch& batch);
// Asynchronous on `stream`, capturable, no allocation. Products of rows are exact; with weights their relative
// error is at most 4e-6. Sums of at most 512 rows are float32 of the matrix unit, sums of those double; every
// sum has one order: the same inputs give the same bytes.
Status gram(const GramBatch& batch, void* workspace, void* stream);

}  // namespace oscar::cuda
