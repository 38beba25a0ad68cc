// Which kernel decodes which pair of sides.
#pragma once
#include <type_traits>

#include "kernels/cuda/decode_vector_int2.cuh"
#include "kernels/cuda/decode_vector_kernel.cuh"
#include "kernels/cuda/decode_vector_keys.cuh"
#include "kernels/cuda/decode_vector_table_keys.cuh"
#include "kernels/cuda/decode_vector_values.cuh"

namespace oscar::cuda {

template <int kDim, CodeKind kKind, bool kNorm>
struct ChooseKeys {
  using type = Int2Keys<kDim>;
};
template <int kDim, bool kNorm>
struct ChooseKeys<kDim, CodeKind::vector4x8, kNorm> {
  using type = WordKeys<kDim, kNorm>;
};
template <int kDim, bool kNorm>
struct ChooseKeys<kDim, CodeKind::vector8x8, kNorm> {
  using type = TableKeys<kDim, kNorm>;
};

template <int kDim, CodeKind kKind, bool kNorm, uint32_t kBase>
struct ChooseValues {
  using type = Int2Values<kDim>;
};
template <int kDim, bool kNorm, uint32_t kBase>
struct ChooseValues<kDim, CodeKind::vector4x8, kNorm, kBase> {
  using type = PairedValues<kDim, 4, kNorm, kBase>;
};
// Four replicas where they fit: not beside the two tables of 4-channel keys.
template <int kDim, bool kNorm, uint32_t kBase>
struct ChooseValues<kDim, CodeKind::vector8x8, kNorm, kBase> {
  using type = std::conditional_t<(kBase > kTables + kTable), PairedValues<kDim, 8, kNorm, kBase>,
                                  ReplicatedValues<kDim, kNorm, kBase>>;
};

template <int kDim, CodeKind kKeys, CodeKind kValues, bool kKeyNorm, bool kValueNorm>
cudaError_t launch_pair(const DecodeLaunch& d, const VectorArguments& arguments, int memory_begin) {
  using Keys = typename ChooseKeys<kDim, kKeys, kKeyNorm>::type;
  using Values = typename ChooseValues<kDim, kValues, kValueNorm, kTables + Keys::kTableBytes>::type;
  auto* kernel = decode_vector<Keys, Values, kDim>;
  const int shared = VectorMemory<Keys, Values, kDim>::kEnd - memory_begin;
  const cudaError_t prepared =  // every time: the attribute is of the current device
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (prepared != cudaSuccess) return prepared;
  return launch_kernel(kernel, d.plan.blocks, kBlockThreads, shared, d.overlap, d.stream, arguments);
}

// Kernels without norms, and with them on the keys alone, for the pairs that are in use most; one that reads
// at run time which side has them for the rest.
template <int kDim, CodeKind kKeys>
cudaError_t launch_keys(const DecodeLaunch& d, const VectorArguments& arguments, int memory_begin) {
  using enum CodeKind;
  const CodeKind values = d.format.v.kind;
  if constexpr (kKeys != int2) {
    if (values == kKeys && !d.format.v.norm) {
      return d.format.k.norm ? launch_pair<kDim, kKeys, kKeys, true, false>(d, arguments, memory_begin)
                             : launch_pair<kDim, kKeys, kKeys, false, false>(d, arguments, memory_begin);
    }
    if (values == int2) return launch_pair<kDim, kKeys, int2, true, true>(d, arguments, memory_begin);
  }
  return values == vector4x8 ? launch_pair<kDim, kKeys, vector4x8, true, true>(d, arguments, memory_begin)
                             : launch_pair<kDim, kKeys, vector8x8, true, true>(d, arguments, memory_begin);
}

}  // namespace oscar::cuda
