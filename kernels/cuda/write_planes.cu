#include "kernels/cuda/write_planes.cuh"

namespace oscar::cuda {
namespace {

uint8_t octet(const PlanePlace& first) {
  return first.channel < 0 ? kNoOctet : static_cast<uint8_t>(first.channel / 8 * 2 + first.plane / 2);
}

}  // namespace

cudaError_t launch_write_planes(int dim, const SideFormat& side, const PlaneLevels& levels, bool keys,
                                bool packed, const WriteArguments& a, cudaStream_t stream) {
  PlaneArguments p{levels, pair_chunks(side.planes), single_chunks(side.planes), {}, keys, side.norm};
  uint8_t* to = p.octets;
  for (int s = 0; s < kChunkPairs * p.pairs; s += 8) *to++ = octet(pair_place(side.planes, s));
  for (int s = 0; s < kChunkSingles * p.singles; s += 8) *to++ = octet(single_place(side.planes, s));
  const auto family = a.rotation ? (packed ? launch_planes_rotated_packed : launch_planes_rotated_float)
                                 : (packed ? launch_planes_packed : launch_planes_float);
  return family(dim, a, p, stream);
}

}  // namespace oscar::cuda
