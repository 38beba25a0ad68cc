// Every sum of one sequence (libcalib/moments.def) where its rows are.
#pragma once
#include <array>

#include "libcalib/moments.h"
#include "libdump/models/model.h"

namespace oscar {

// Where each sum begins in an array that has them one after the other, in the order of the table, and the
// size of that array.
std::array<int64_t, kSumCount + 1> sum_offsets(const LayerShape& shape);

struct TensorSumsInput {
  const LayerShape& shape;
  const DeviceRows& rows;
  Windows windows;
  bool scores;
  at::Tensor queries;  // (n) int32 positions of the queries that the score sums count; undefined: all
};
struct TensorSums {
  at::Tensor sums;     // float64, at sum_offsets(); sums of the second pass are zero
  at::Tensor u, w, x;  // (Hkv, T) float64; undefined without scores
};

// By LibTorch's operations, on any device: products in float32, sums of at most 512 rows too, the rest in
// float64; scores by blocks of queries.
TensorSums tensor_sums(const TensorSumsInput& input);

// The same by the kernels of this build. They take bfloat16 rows of certain head dims, and where they do not
// fit tensor_sums() does it.
bool kernels_fit(const TensorSumsInput& input);
TensorSums kernel_sums(const TensorSumsInput& input);

// vv_proxy (Hkv, Dv, Dv) and proxy_weight (Hkv) of one sequence, float64, one after the other: the second pass
// with Sigma_Q (Hkv, Dk, Dk) float64. Products and sums are float64 too: who merges shards makes this pass on
// the CPU (kernels/quadratic_gram.h), and the two are to agree.
at::Tensor proxy_sums(const LayerShape& shape, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& sigma_q);

}  // namespace oscar
