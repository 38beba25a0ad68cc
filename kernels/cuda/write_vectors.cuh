// Internal: the vector codes of cuda::write().
#pragma once
#include "kernels/cuda/write.cuh"
#include "kernels/decode.h"

namespace oscar::cuda {

struct VectorArguments {
  CodebookView book;
  bool keys, norm, round_bf16;
};
// As they come, or rotated; exact: what is looked up is bfloat16.
cudaError_t launch_vectors_exact(int dim, int size, const WriteArguments& a, const VectorArguments& v,
                                 cudaStream_t stream);
cudaError_t launch_vectors_float(int dim, int size, const WriteArguments& a, const VectorArguments& v,
                                 cudaStream_t stream);
cudaError_t launch_vectors_rotated_exact(int dim, int size, const WriteArguments& a, const VectorArguments& v,
                                         cudaStream_t stream);
cudaError_t launch_vectors_rotated_float(int dim, int size, const WriteArguments& a, const VectorArguments& v,
                                         cudaStream_t stream);

}  // namespace oscar::cuda
