// Internal: row and column sums of attention probabilities; what the kernels share and their launchers.
//
// First rows are packed into tiles of 64, as tensor cores want them. Then a block keeps its keys (and values) in shared
// memory and walks over the queries of a segment, one query head after the other, a tile at a time. Each warpgroup has keys
// of its own and multiplies all 64 queries with them.
#pragma once
#include "kernels/cuda/common.cuh"
#include "kernels/score_stats_device.h"

namespace oscar::cuda {

// (query, head) rows that a block walks over, at least 64 of each head.
inline constexpr int kSegmentRows = 2048;
inline constexpr int kTileRows = 64, kTileBlock = kTileRows * 128;  // bytes of 64 channels
inline constexpr int kMaxStages = 4;
// What registers allow.
constexpr int stats_warpgroups(bool values) {
  return values ? 2 : 3;
}
// Keys of a warpgroup: pieces of 64; with values the second product takes the registers of the second piece.
constexpr int stats_pieces(bool values) {
  return values ? 1 : 2;
}

// What follows the channels of a tile of queries; with its time -1 a row is none.
struct TileRows {
  int time[kTileRows];
  float lse[kTileRows];          // times log2 e
  float output_norm[kTileRows];  // o G o^T
  float unit[kTileRows];         // 1 / unit of a, a power of two
};
// What a warp holds of a tile: its 16 rows, and with values the norms of its warpgroup's keys.
struct WarpRows {
  int time[16];
  float lse[16], output_norm[16], unit[16];
  float value_norms[kTileRows];
};
constexpr int warp_rows_bytes(bool values) {
  return static_cast<int>(sizeof(WarpRows)) - (values ? 0 : kTileRows * static_cast<int>(sizeof(float)));
}
enum RowSum { kMass, kEntropy, kSink, kSensitivity };  // entropy: sum p log2 p

// Byte offsets in a block's shared memory: keys, values, stages of queries, two WarpRows of each warp.
struct StatsShared {
  int values, stages, rows, barriers, bytes;
};

struct StatsArguments {
  ScoreStatsBatch in;  // sink and recent within [0, T], sliding_window within [1, 2^30]
  int queries, tiles;  // N, tiles of a query head
  int warpgroups, stages, block_keys, blocks;
  int segment_queries, segments, sink_blocks;  // sink_blocks: blocks that begin before the sink ends
  int q_tiles, v_tiles;                        // of 64 channels
  int tile_bytes;  // of queries: q, then what bfloat16 takes of o G, the rest of it, TileRows
  StatsShared shared;
  uint8_t* packed_queries;  // [kv_heads * group][tiles][tile_bytes]
  uint8_t* packed_keys;     // [kv_heads][blocks * block_keys / 64][q_tiles][kTileBlock]
  uint8_t* packed_values;   // the same of v_tiles
  float* value_norms;       // [kv_heads * group][blocks * block_keys] v G v^T
  unsigned* largest_norm;   // [kv_heads * group] of them, as bits
  unsigned long long*
      row_sums;          // [RowSum][kv_heads * group][64 tiles] in units of 1 / kFixedPoint or TileRows::unit
  uint8_t* broken;       // the same shape: a part of the sum was not a number or too large
  float2* column_parts;  // [segment][kv_heads][T] u, w
  float* x_parts;        // [segment][kv_heads][T]
};

// Row sums of 64 keys are float32 and become integers then, so that neither the number of keys of a block nor the order of
// blocks matters: 2^-44 is less than what the float32 sums have lost.
inline constexpr float kFixedPoint = 17592186044416.f;      // 2^44
inline constexpr float kLargestPart = 72057594037927936.f;  // 2^56; of mass: 4096

OSCAR_DEVICE int query_of(const StatsArguments& a, int n) {
  return a.in.queries ? a.in.queries[n] : n;
}
// Whether any of the queries n .. last sees any of a block's keys.
OSCAR_DEVICE bool sees(const StatsArguments& a, int n, int last, int64_t block_key) {
  return query_of(a, last) >= block_key &&
         query_of(a, n) - (block_key + a.block_keys - 1) < a.in.sliding_window;
}

cudaError_t launch_stats_pack(const StatsArguments& a, cudaStream_t stream);    // tiles but o G
cudaError_t launch_stats_metric(const StatsArguments& a, cudaStream_t stream);  // o G, norms and units
cudaError_t launch_stats(const StatsArguments& a, cudaStream_t stream);         // without values
cudaError_t launch_stats_values(const StatsArguments& a, cudaStream_t stream);

}  // namespace oscar::cuda
