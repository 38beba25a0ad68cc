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

// Unit m where m is known at run time only: registers have no index.
template <int D, class Row>
OSCAR_DEVICE void unit_at(const Row& row, int m, float (&v)[8]) {
  row.unit(0, v);
#pragma unroll
  for (int u = 1; u < D / 32; ++u) {
    float other[8];
    row.unit(u, other);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = u == m ? other[i] : v[i];
  }
}

// The codes of a row as they are stored: keys hold a lane's codes of a token together, values a byte each.
template <int D, int kSize>
struct VectorStore {
  static constexpr int kCodes = D / kSize / 4;  // a lane
  unsigned long long held = 0;

  OSCAR_DEVICE void add(const RowPlace& at, bool keys, int t, int group, int word) {
    if (keys) {
      if (t != group % 4) return;
      held |= static_cast<unsigned long long>(word)
              << (8 * (vector_key_byte(D, kSize, at.token, group) % kCodes));
    } else if (at.stored && t == 0) {
      at.block[vector_value_byte(kSize, at.token, group)] = static_cast<uint8_t>(word);
    }
  }
  OSCAR_DEVICE void finish(const RowPlace& at, bool keys, int t) const {
    if (!keys || !at.stored) return;
    uint8_t* to = at.block + vector_key_byte(D, kSize, at.token, t) / kCodes * kCodes;
    if constexpr (kCodes == 8) {
      *reinterpret_cast<unsigned long long*>(to) = held;
    } else if constexpr (kCodes == 4) {
      *reinterpret_cast<unsigned*>(to) = static_cast<unsigned>(held);
    } else {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(held);
    }
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
    VectorStore<D, kSize> store[2];
    // Rolled, as the search of a group is long: unrolled, half of the time goes to fetching instructions.
#pragma unroll 1
    for (int m = 0; m < D / 32; ++m) {
      float unit[2][8];
      unit_at<D>(row[0], m, unit[0]);
      unit_at<D>(row[1], m, unit[1]);
#pragma unroll 1
      for (int part = 0; part < 32 / kSize;
           ++part) {  // of a unit; lane part * kSize / 8 of the row has its channels
        const int group = m * (32 / kSize) + part;
        float x[2][kSize];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
          for (int i = 0; i < kSize; ++i) {
            float mine = unit[r][i];
            if constexpr (kSize == 4) mine = part & 1 ? unit[r][4 + i] : mine;
            x[r][i] = __shfl_sync(kWarp, mine, part * kSize / 8, 4);
          }
        }
        int word[2];
        nearest_words<kExact ? 1 : 3>(tables, group, x, lane, word);
#pragma unroll
        for (int r = 0; r < 2; ++r) store[r].add(at[r], v.keys, t, group, word[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) store[r].finish(at[r], v.keys, t);
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
