// Rows as they come or rotated, sixteen a warp, group by group to the nearest words. kExact: what is looked
// up is bfloat16.
#pragma once
#include <type_traits>

#include "kernels/cuda/vector_search.cuh"
#include "kernels/cuda/write_product.cuh"
#include "kernels/cuda/write_vectors.cuh"

namespace oscar::cuda {

// The root mean square, in what float16 holds, divides the row (libcalib/codecs/vector.cpp).
template <int D>
OSCAR_DEVICE float divide_by_norm(FloatRow<D>& row) {
  double squares = 0;
#pragma unroll
  for (int i = 0; i < D / 4; ++i)
    squares = fma(static_cast<double>(row.x[i]), static_cast<double>(row.x[i]), squares);
  const double norm = fmin(fmax(__dsqrt_rn(quad_sum(squares) / D), 0x1p-24), 65504.0);
  const float rounded = __half2float(__float2half_rn(static_cast<float>(norm)));
#pragma unroll
  for (int i = 0; i < D / 4; ++i) row.x[i] = __fdiv_rn(row.x[i], rounded);
  return rounded;
}

template <int D>
OSCAR_DEVICE float divide_by_norm(PackedRow<D>&) {
  return 1;  // rows that have a norm are FloatRow
}
template <int D>
OSCAR_DEVICE void round_row(PackedRow<D>&) {}
template <int D>
OSCAR_DEVICE void round_row(FloatRow<D>& row) {
  PackedRow<D> packed;
  convert(row, packed);
  convert(packed, row);
}

// The channels of a group, from the lane that has them to all four of the row. Which registers hold them is
// known at run time only, and registers have no index.
template <int kSize, int kWords, int D, class Row>
OSCAR_DEVICE void channels_of(const Row& row, int group, float (&x)[kSize]) {
  constexpr int kCount = kWords * kSize / 8, kParts = 8 / kSize * D / 32;  // registers; where they may be
  const auto* from = reinterpret_cast<const unsigned*>(row.x);
  const int part = kSize == 4 ? 2 * (group / 8) + group % 2 : group / 4;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    unsigned v[kParts];
#pragma unroll
    for (int k = 0; k < kParts; ++k) v[k] = from[kCount * k + i];
#pragma unroll
    for (int bit = 1; bit < kParts; bit *= 2) {
#pragma unroll
      for (int k = 0; k < kParts; k += 2 * bit) v[k] = part & bit ? v[k + bit] : v[k];
    }
    v[0] = __shfl_sync(kWarp, v[0], kSize == 4 ? group / 2 % 4 : group % 4, 4);
    if constexpr (kWords == 4) {
      x[2 * i] = low_float(v[0]);
      x[2 * i + 1] = high_float(v[0]);
    } else {
      x[i] = __uint_as_float(v[0]);
    }
  }
}

// The codes of a row as they are stored: keys hold a lane's codes of a token together, values a byte each.
template <int D, int kSize>
struct VectorStore {
  static constexpr int kCodes = D / kSize / 4;  // a lane
  using Held = std::conditional_t<kCodes == 8, unsigned long long,
                                  std::conditional_t<kCodes == 4, unsigned, uint16_t>>;
  Held held = 0;
  int flip;     // of the order of groups
  uint8_t* to;  // nullptr: not stored

  OSCAR_DEVICE VectorStore(const RowPlace& at, bool keys, int t) {
    const int byte = keys ? vector_key_byte(D, kSize, at.token, t) : vector_value_byte(kSize, at.token, 0);
    flip = keys ? byte % kCodes : byte / 512;
    to = at.stored ? at.block + (keys ? byte / kCodes * kCodes : byte % 512) : nullptr;
  }
  OSCAR_DEVICE void add(bool keys, int t, int group, int word) {
    if (keys) {
      if (t == group % 4) held |= static_cast<Held>(word) << (8 * (group / 4 ^ flip));
    } else if (to && t == 0) {
      to[512 * (group / 8 ^ flip) + 64 * (group % 8)] = static_cast<uint8_t>(word);
    }
  }
  OSCAR_DEVICE void finish(bool keys) const {
    if (keys && to) *reinterpret_cast<Held*>(to) = held;
  }
};

template <int D, int kSize, bool kRotated, bool kExact>
__global__ void __launch_bounds__(kRotateThreads, kRotated ? 1 : 2)
    write_vectors(const WriteArguments a, const VectorArguments v) {
  extern __shared__ uint4 shared[];
  auto& tables = *reinterpret_cast<SearchTables<D, kSize>*>(shared);
  uint4* matrix = shared + sizeof(SearchTables<D, kSize>) / 16;
  static_assert(sizeof(SearchTables<D, kSize>) % 16 == 0);
  const int lane = threadIdx.x & 31, g = lane / 4, t = lane & 3, head = blockIdx.y;
  tables.load(v.book, head);
  if constexpr (kRotated)
    load_matrix<D>(a.rotation + (a.rotation_per_head ? static_cast<int64_t>(head) * D * D : 0), matrix);
  __syncthreads();
  const float* mean = a.mean ? a.mean + head * D : nullptr;
  const int tiles = (a.tokens + 15) / 16;
#pragma unroll 1
  for (int tile = blockIdx.x * (kRotateThreads / 32) + threadIdx.x / 32; tile < tiles;
       tile += gridDim.x * (kRotateThreads / 32)) {
    std::conditional_t<kExact, PackedRow<D>, FloatRow<D>> row[2];
    RowPlace at[2];
    int64_t from[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int index = 16 * tile + 8 * r + g, token = min(index, a.tokens - 1);
      from[r] = (static_cast<int64_t>(token) * a.kv_heads + head) * D;
      at[r] = place_row(a, token, head, index < a.tokens);
    }
    if constexpr (kRotated) {
      PackedRow<D> x[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) load_bf16(x[r], static_cast<const __nv_bfloat16*>(a.rows) + from[r], t);
      rotate(x, matrix, mean, lane, row);
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (a.f32) {
          FloatRow<D> x;
          load_f32(x, static_cast<const float*>(a.rows) + from[r], t);
          if (mean) subtract_mean(x, mean, t);  // before the row is rounded
          convert(x, row[r]);
          continue;
        }
        PackedRow<D> x;
        load_bf16(x, static_cast<const __nv_bfloat16*>(a.rows) + from[r], t);
        convert(x, row[r]);
        if (mean) subtract_mean(row[r], mean, t);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (v.round_bf16) round_row(row[r]);
      if (!v.norm) continue;
      const float norm = divide_by_norm(row[r]);
      if (at[r].stored && t == 0) {
        *reinterpret_cast<uint16_t*>(at[r].block + vector_scale_byte(D, kSize, at[r].token)) =
            __half_as_ushort(__float2half_rn(norm));
      }
    }
    VectorStore<D, kSize> store[2] = {{at[0], v.keys, t}, {at[1], v.keys, t}};
    // Rolled, as the search of a group is long: unrolled, half of the time goes to fetching instructions.
#pragma unroll 1
    for (int group = 0; group < D / kSize; ++group) {
      float x[2][kSize];
      channels_of<kSize, kExact ? 4 : 8, D>(row[0], group, x[0]);
      channels_of<kSize, kExact ? 4 : 8, D>(row[1], group, x[1]);
      int word[2];
      nearest_words<kExact>(tables, group, x, lane, word);
#pragma unroll
      for (int r = 0; r < 2; ++r) store[r].add(v.keys, t, group, word[r]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) store[r].finish(v.keys);
  }
}

template <int D, int kSize, bool kRotated, bool kExact>
cudaError_t launch_vectors(const WriteArguments& a, const VectorArguments& v, cudaStream_t stream) {
  const auto kernel = write_vectors<D, kSize, kRotated, kExact>;
  const int shared = static_cast<int>(sizeof(SearchTables<D, kSize>)) + (kRotated ? 2 * D * D : 0);
  if (const auto e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared))
    return e;
  int device = 0, processors = 0, resident = 0;
  if (const auto e = cudaGetDevice(&device)) return e;
  if (const auto e = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) return e;
  if (const auto e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kRotateThreads, shared))
    return e;
  const int rows = kRotateThreads / 2, tiles = (a.tokens + rows - 1) / rows,
            wave = processors * resident / a.kv_heads;
  const dim3 grid(static_cast<unsigned>(tiles < wave ? tiles : wave > 0 ? wave : 1), a.kv_heads);
  kernel<<<grid, kRotateThreads, shared, stream>>>(a, v);
  return cudaGetLastError();
}
template <bool kRotated, bool kExact>
cudaError_t launch_vectors(int dim, int size, const WriteArguments& a, const VectorArguments& v,
                           cudaStream_t stream) {
  if (dim == 64)
    return size == 4 ? launch_vectors<64, 4, kRotated, kExact>(a, v, stream)
                     : launch_vectors<64, 8, kRotated, kExact>(a, v, stream);
  return size == 4 ? launch_vectors<128, 4, kRotated, kExact>(a, v, stream)
                   : launch_vectors<128, 8, kRotated, kExact>(a, v, stream);
}

}  // namespace oscar::cuda
