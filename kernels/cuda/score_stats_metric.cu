// What score statistics with values need of a metric: o G and o G o^T of each counted query, v G v^T of each key.
#include "kernels/cuda/score_stats_tile.cuh"

namespace oscar::cuda {
namespace {

constexpr int kWarpgroups = 2, kRowTiles = 4;  // of a warpgroup

OSCAR_DEVICE void copy16_or_zero(uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(present ? 16 : 0)
               : "memory");
}

// 64 rows of G as two tiles whose sum has 16 bits of each value.
OSCAR_DEVICE void split_metric(const float* metric, int dim, int blocks, int first, uint32_t to) {
  const int lane = threadIdx.x & 31;
  for (int unit = threadIdx.x / 32; unit < 16 * blocks; unit += kWarpgroups * 4) {
    const int row = 4 * (unit & 15) + lane / 8, block = unit / 16, channel = 64 * block + 8 * (lane & 7);
    unsigned high[4] = {}, low[4] = {};
    if (first + row < dim && channel < dim) {
      const float* from = metric + (first + row) * dim + channel;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = from[2 * i], y = from[2 * i + 1];
        high[i] = pair_bf16(x, y);
        low[i] = pair_bf16(x - __uint_as_float(high[i] << 16), y - __uint_as_float(high[i] & 0xffff0000u));
      }
    }
    const uint32_t at = to + block * kTileBlock + tile_piece(row, lane & 7);
    store_shared4(at, make_uint4(high[0], high[1], high[2], high[3]));
    store_shared4(at + blocks * kTileBlock, make_uint4(low[0], low[1], low[2], low[3]));
  }
}

// 64 rows of o or v into a tile; row_at(row): where it begins, -1 for no row.
template <class Row>
OSCAR_DEVICE void fetch_tile(const void* from, bool f32, int dim, int blocks, uint32_t to, Row&& row_at) {
  const int lane = threadIdx.x & 31;
  for (int unit = threadIdx.x / 32 & 3; unit < 16 * blocks; unit += 4) {
    const int row = 4 * (unit & 15) + lane / 8, channel = unit / 16 * 64 + 8 * (lane & 7);
    const int64_t first = row_at(row);
    const bool present = first >= 0 && channel < dim;
    const uint32_t at = to + unit / 16 * kTileBlock + tile_piece(row, lane & 7);
    if (f32) {
      store_shared4(at, load8(from, true, first + channel, present));
    } else {
      copy16_or_zero(at, static_cast<const __nv_bfloat16*>(from) + (present ? first + channel : 0), present);
    }
  }
  copy_commit();
  copy_wait<0>();
  tile_written();
}

// Rows of o for kOutputs, of v otherwise; a block has 512 of one query head. Values come first: units take their norms.
template <bool kOutputs>
__global__ void __launch_bounds__(128 * kWarpgroups, 2)
    stats_metric_kernel(const __grid_constant__ StatsArguments a) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t shared = shared_address(memory);
  const int lane = threadIdx.x & 31, warp_of_block = __shfl_sync(kWarp, threadIdx.x / 32, 0),
            warp = warp_of_block & 3, group = warp_of_block / 4;
  const int head = blockIdx.y, dim = a.in.dim_v, blocks = a.v_tiles, tile_bytes = blocks * kTileBlock;
  const int tiles = kOutputs ? a.tiles : a.blocks * a.block_keys / kTileRows;
  const int first = (blockIdx.x * kWarpgroups + group) * kRowTiles;
  const uint32_t metric = shared, rows = metric + (2 + group) * tile_bytes;
  const int packed_at = (2 + kWarpgroups) * tile_bytes + group * 2 * kTileBlock;
  const uint32_t packed = shared + packed_at;
  float* const norms =
      reinterpret_cast<float*>(memory + (2 + kWarpgroups) * tile_bytes + kWarpgroups * 2 * kTileBlock) +
      group * kRowTiles * kTileRows;
  for (int piece = 0; piece < blocks; ++piece) {
    __syncthreads();  // the piece before was multiplied
    split_metric(a.in.metric + static_cast<int64_t>(head) * dim * dim, dim, blocks, piece * kTileRows,
                 metric);
#pragma unroll 1
    for (int tile = 0; tile < kRowTiles; ++tile) {
      const int index = first + tile;
      fetch_tile(kOutputs ? a.in.o : a.in.v, a.in.type == FloatType::f32, dim, blocks, rows, [&](int row) {
        const int n = index * kTileRows + row;
        if (n >= (kOutputs ? a.queries : a.in.tokens)) return int64_t{-1};
        return kOutputs ? query_of(a, n) * a.in.o_stride + static_cast<int64_t>(head) * dim
                        : n * a.in.v_stride + static_cast<int64_t>(head / a.in.group) * dim;
      });
      __syncthreads();
      float d[32];
      tile_product<1, 2>(d, rows, metric, blocks);
      tile_wait<0>(d);
      uint8_t* const to = a.packed_queries + (static_cast<int64_t>(head) * a.tiles + index) * a.tile_bytes +
                          a.q_tiles * kTileBlock;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 16 * warp + lane / 4 + 8 * r;
        float norm = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float p = d[4 * i + 2 * r], q = d[4 * i + 2 * r + 1];
          const uint32_t at = tile_piece(row, i) + 4 * (lane & 3);
          const unsigned x = load_shared(rows + piece * kTileBlock + at);
          norm = fmaf(p, __uint_as_float(x << 16), norm);
          norm = fmaf(q, __uint_as_float(x & 0xffff0000u), norm);
          if constexpr (kOutputs) {
            const unsigned high = pair_bf16(p, q);
            store_shared(packed + at, high);
            store_shared(packed + kTileBlock + at,
                         pair_bf16(p - __uint_as_float(high << 16), q - __uint_as_float(high & 0xffff0000u)));
          }
        }
        norm += __shfl_xor_sync(kWarp, norm, 1);
        norm += __shfl_xor_sync(kWarp, norm, 2);
        float& sum = norms[tile * kTileRows + row];
        const float total = piece == 0 ? norm : sum + norm;
        __syncwarp();
        if ((lane & 3) == 0) sum = total;
        if (piece < blocks - 1 || index >= tiles) continue;
        if constexpr (kOutputs) {
          auto& of_rows = *reinterpret_cast<TileRows*>(to + 2 * tile_bytes);
          of_rows.output_norm[row] = total;
          of_rows.unit[row] = unit_of(total + __uint_as_float(a.largest_norm[head]));
        } else {
          a.value_norms[(static_cast<int64_t>(head) * tiles + index) * kTileRows + row] = total;
          const unsigned largest = __reduce_max_sync(kWarp, __float_as_uint(max_or_nan(total, 0.f)));
          if (lane == 0) atomicMax(a.largest_norm + head, largest);
        }
      }
      __syncthreads();
      if constexpr (kOutputs) {
        for (int i = 16 * (threadIdx.x & 127); index < tiles && i < 2 * kTileBlock; i += 16 * 128)
          *reinterpret_cast<uint4*>(to + (i / kTileBlock * blocks + piece) * kTileBlock + i % kTileBlock) =
              *reinterpret_cast<const uint4*>(memory + packed_at + i);
      }
    }
  }
}

template <bool kOutputs>
cudaError_t launch(const StatsArguments& a, int tiles, cudaStream_t stream) {
  const auto kernel = stats_metric_kernel<kOutputs>;
  const int block_tiles = kWarpgroups * kRowTiles, shared = (2 + kWarpgroups) * a.v_tiles * kTileBlock +
                                                            kWarpgroups * 2 * kTileBlock +
                                                            block_tiles * kTileRows * int{sizeof(float)};
  if (const auto e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared))
    return e;
  kernel<<<dim3((tiles + block_tiles - 1) / block_tiles, a.in.kv_heads * a.in.group), 128 * kWarpgroups,
           shared, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_stats_metric(const StatsArguments& a, cudaStream_t stream) {
  if (const auto e = launch<false>(a, a.blocks * a.block_keys / kTileRows, stream)) return e;
  return launch<true>(a, a.tiles, stream);
}

}  // namespace oscar::cuda
