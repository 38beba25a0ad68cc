// Rows as they come or rotated, sixteen a warp, group by group to the nearest words. kExact: what is looked
// up is bfloat16.
#pragma once
#include <type_traits>

#include "kernels/cuda/vector_search.cuh"
#include "kernels/cuda/write_product.cuh"
#include "kernels/cuda/write_vectors.cuh"

namespace oscar::cuda {

template <int D>
OSCAR_DEVICE float divide_by_norm(FloatRow<D>& row) {
  const float norm = row_norm(row);
#pragma unroll
  for (int i = 0; i < D / 4; ++i) row.x[i] = __fdiv_rn(row.x[i], norm);
  return norm;
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

// Sixteen rows of a warp in shared memory, where every lane finds the channels of a group: bfloat16 or float32,
// piece p, of 16 bytes, of row r at p ^ r % 8.
template <int D, bool kExact>
struct SharedRows {
  static constexpr int kPieces = D / (kExact ? 8 : 4), kBytes = 16 * 16 * kPieces;
  uint32_t start;

  OSCAR_DEVICE uint32_t piece(int row, int p) const { return start + 16 * (row * kPieces + (p ^ (row & 7))); }
  template <class Row>
  OSCAR_DEVICE void put(int row, const Row& from, int t) const {
    const auto* x = reinterpret_cast<const unsigned*>(from.x);
#pragma unroll
    for (int i = 0; i < kPieces / 4; ++i) {  // 8 channels of bfloat16 are a piece, of float32 two
      const int p = kExact ? 4 * i + t : 8 * (i / 2) + 2 * t + i % 2;
      store_shared2(piece(row, p), x[4 * i], x[4 * i + 1]);
      store_shared2(piece(row, p) + 8, x[4 * i + 2], x[4 * i + 3]);
    }
  }
  template <int kSize>
  OSCAR_DEVICE void get(int row, int group, float (&x)[kSize]) const {
    constexpr int kWords = kExact ? kSize / 2 : kSize;
    unsigned v[kWords];
    if constexpr (kWords == 2) {
      const uint2 pair = load_shared2(piece(row, group / 2) + 8 * (group & 1));
      v[0] = pair.x, v[1] = pair.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 four = load_shared4(piece(row, kWords / 4 * group + i / 4));
        v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (kExact) {
        x[2 * i] = low_float(v[i]);
        x[2 * i + 1] = high_float(v[i]);
      } else {
        x[i] = __uint_as_float(v[i]);
      }
    }
  }
};

// The codes of a row as they are stored: keys hold a lane's codes of a token together, values a byte each.
template <int D, int kSize>
struct VectorStore {
  static constexpr int kCodes = D / kSize / 4;  // a lane
  using Held = std::conditional_t<kCodes == 8, unsigned long long,
                                  std::conditional_t<kCodes == 4, unsigned, uint16_t>>;
  Held held;
  int flip;     // of the order of groups
  uint8_t* to;  // nullptr: not stored

  OSCAR_DEVICE void place(const RowPlace& at, bool keys, int t) {
    const int byte = keys ? vector_key_byte(D, kSize, at.token, t) : vector_value_byte(kSize, at.token, 0);
    held = 0;
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

// A block, at most: one a multiprocessor, as it holds a codebook.
constexpr int vector_warps(int size, bool rotated, bool exact) {
  return size == 4 && exact && !rotated ? 20 : 16;
}

template <int D, int kSize, bool kRotated, bool kExact>
__global__ void __launch_bounds__(32 * vector_warps(kSize, kRotated, kExact), 1)
    write_vectors(const WriteArguments a, const VectorArguments v) {
  using Row = std::conditional_t<kExact, PackedRow<D>, FloatRow<D>>;
  extern __shared__ uint4 shared[];
  auto& tables = *reinterpret_cast<SearchTables<D, kSize>*>(shared);
  uint4* matrix = shared + sizeof(SearchTables<D, kSize>) / 16;
  static_assert(sizeof(SearchTables<D, kSize>) % 16 == 0);
  const int lane = threadIdx.x & 31, g = lane / 4, t = lane & 3, head = blockIdx.y, warps = blockDim.x / 32;
  const SharedRows<D, kExact> staged{shared_address(matrix) + (kRotated ? 2 * D * D : 0) +
                                     threadIdx.x / 32 * SharedRows<D, kExact>::kBytes};
  const RowStage<D> unrotated{staged.start};
  static_assert(RowStage<D>::kBytes <= SharedRows<D, kExact>::kBytes);
  tables.load(v.book, head);
  if constexpr (kRotated)
    load_matrix<D>(a.rotation + (a.rotation_per_head ? static_cast<int64_t>(head) * D * D : 0), matrix);
  __syncthreads();
  const float* mean = a.mean ? a.mean + head * D : nullptr;
  const int tiles = (a.tokens + 15) / 16;
#pragma unroll 1
  for (int tile = blockIdx.x * warps + threadIdx.x / 32; tile < tiles; tile += gridDim.x * warps) {
    VectorStore<D, kSize> store[2];
    Row rotated[2];
    if constexpr (kRotated) {
      unrotated.begin(a, tile, a.tokens, head, lane);
      unrotated.wait();
      rotate(unrotated, matrix, mean, lane, rotated);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int index = 16 * tile + 8 * r + g, token = min(index, a.tokens - 1);
      const int64_t from = (static_cast<int64_t>(token) * a.kv_heads + head) * D;
      const RowPlace at = place_row(a, token, head, index < a.tokens);
      Row row;
      if constexpr (kRotated) {
        row = rotated[r];
      } else {
        load_row<D>(row, a, from, head, t);
      }
      if (v.round_bf16) round_row(row);
      if (v.norm) {
        const float norm = divide_by_norm(row);
        if (at.stored && t == 0) {
          *reinterpret_cast<uint16_t*>(at.block + vector_scale_byte(D, kSize, at.token)) =
              __half_as_ushort(__float2half_rn(norm));
        }
      }
      staged.put(8 * r + g, row, t);
      store[r].place(at, v.keys, t);
    }
    __syncwarp();
    // Rolled, as the search of a group is long: unrolled, half of the time goes to fetching instructions.
#pragma unroll 1
    for (int group = 0; group < D / kSize; ++group) {
      float x[2][kSize];
      staged.get(g, group, x[0]);
      staged.get(8 + g, group, x[1]);
      int word[2];
      nearest_words<kExact>(tables, group, x, lane, word);
#pragma unroll
      for (int r = 0; r < 2; ++r) store[r].add(v.keys, t, group, word[r]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) store[r].finish(v.keys);
    __syncwarp();
  }
}

template <int D, int kSize, bool kRotated, bool kExact>
cudaError_t launch_vectors(const WriteArguments& a, const VectorArguments& v, cudaStream_t stream) {
  const auto kernel = write_vectors<D, kSize, kRotated, kExact>;
  constexpr int kCommon = static_cast<int>(sizeof(SearchTables<D, kSize>)) + (kRotated ? 2 * D * D : 0),
                kEach = SharedRows<D, kExact>::kBytes;
  int warps = 0, device = 0, processors = 0;
  if (const auto e = warps_that_fit(kCommon, kEach, vector_warps(kSize, kRotated, kExact), &warps)) return e;
  if (const auto e =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kCommon + warps * kEach))
    return e;
  if (const auto e = cudaGetDevice(&device)) return e;
  if (const auto e = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) return e;
  // One wave, four tiles a block at least, and no more warps than it takes as many rounds for.
  const int tiles = (a.tokens + 15) / 16, wave = processors > a.kv_heads ? processors / a.kv_heads : 1,
            blocks = (tiles + 3) / 4 < wave ? (tiles + 3) / 4 : wave, each = (tiles + blocks - 1) / blocks,
            rounds = (each + warps - 1) / warps;
  warps = (each + rounds - 1) / rounds;
  const int shared = kCommon + warps * kEach;
  const dim3 grid(static_cast<unsigned>(blocks), a.kv_heads);
  kernel<<<grid, 32 * warps, shared, stream>>>(a, v);
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
