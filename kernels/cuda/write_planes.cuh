// Internal: the bit planes of cuda::write().
#pragma once
#include "kernels/cuda/write.cuh"
#include "kernels/plane_pages.h"

namespace oscar::cuda {

// Where eight places in a row, 8 n .. 8 n + 7, come from: planes are multiples of 8 channels.
inline constexpr int kMostOctets = 64;  // places, by eight: 2 D of them at most
inline constexpr uint8_t kNoOctet = 0xff;

struct PlaneArguments {
  PlaneLevels levels;
  int pairs, singles;           // chunks
  uint8_t octets[kMostOctets];  // 2 (channel / 8) + plane / 2; pairs, then singles; kNoOctet: of no channel
  bool keys, norm;
};

// cuda::write() of a side that is bit planes. packed: what gets a level is bfloat16.
cudaError_t launch_write_planes(int dim, const SideFormat& side, const PlaneLevels& levels, bool keys,
                                bool packed, const WriteArguments& a, cudaStream_t stream);

// As they come, or rotated.
cudaError_t launch_planes_packed(int dim, const WriteArguments& a, const PlaneArguments& p,
                                 cudaStream_t stream);
cudaError_t launch_planes_float(int dim, const WriteArguments& a, const PlaneArguments& p,
                                cudaStream_t stream);
cudaError_t launch_planes_rotated_packed(int dim, const WriteArguments& a, const PlaneArguments& p,
                                         cudaStream_t stream);
cudaError_t launch_planes_rotated_float(int dim, const WriteArguments& a, const PlaneArguments& p,
                                        cudaStream_t stream);

}  // namespace oscar::cuda
