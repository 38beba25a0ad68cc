#include "kernels/cuda/score_stats.cuh"

#include <algorithm>
#include <climits>

#include "kernels/cuda/status.cuh"

namespace oscar::cuda {
namespace {

__global__ void finish_rows(const __grid_constant__ StatsArguments a, const ScoreStatsOutputs out) {
  const int n = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), head = blockIdx.y;
  if (n >= a.queries) return;
  const int64_t padded = int64_t{kTileRows} * a.tiles, at = head * padded + n, count = gridDim.y * padded,
                to = int64_t{head} * a.queries + n;
  const auto sum = [&](RowSum which, double unit) {
    const int64_t from = which * count + at;
    return a.broken[from] ? nan("") : static_cast<double>(static_cast<long long>(a.row_sums[from])) / unit;
  };
  out.mass[to] = static_cast<float>(sum(kMass, kFixedPoint));
  out.entropy[to] = static_cast<float>(-0.6931471805599453 * sum(kEntropy, kFixedPoint));
  out.sink_mass[to] = static_cast<float>(sum(kSink, kFixedPoint));
  if (!a.in.v) return;
  const auto& rows = *reinterpret_cast<const TileRows*>(
      a.packed_queries + (int64_t{head} * a.tiles + n / kTileRows + 1) * a.tile_bytes - sizeof(TileRows));
  out.a[to] = static_cast<float>(sum(kSensitivity, rows.unit[n % kTileRows]));
}

__global__ void finish_columns(const __grid_constant__ StatsArguments a, const ScoreStatsOutputs out) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x,
                count = a.in.kv_heads * a.in.tokens;
  if (n >= count) return;
  const int64_t block_key = n % a.in.tokens / a.block_keys * a.block_keys;
  double u = 0, w = 0, x = 0;
  for (int segment = 0; segment < a.segments; ++segment) {
    const int first = segment * a.segment_queries, end = min(a.queries, first + a.segment_queries);
    if (!sees(a, first, end - 1, block_key)) continue;
    const float2 part = a.column_parts[segment * count + n];
    u += part.x;
    w += part.y;
    if (a.in.v) x += a.x_parts[segment * count + n];
  }
  out.u[n] += u;
  out.w[n] += w;
  if (a.in.v) out.x[n] += x;
}

int tiles_of(int dim) {
  return (dim + 63) / 64;
}
StatsShared shared_of(const StatsArguments& a) {
  const int pieces = a.block_keys / kTileRows, warps = 4 * a.warpgroups;
  StatsShared s;
  s.values = pieces * a.q_tiles * kTileBlock;
  s.stages = s.values + pieces * a.v_tiles * kTileBlock;
  s.rows = s.stages + a.stages * (a.tile_bytes - int{sizeof(TileRows)});
  s.barriers = s.rows + 2 * warps * warp_rows_bytes(a.in.v);
  s.bytes = s.barriers + 16 * kMaxStages + 8 * stats_warpgroups(a.in.v);
  // Column sums of each warp take the place of stages.
  const int columns = stats_pieces(a.in.v) * kTileRows * (a.in.v ? 3 : 2) * int{sizeof(float)};
  s.bytes = std::max(s.bytes, s.stages + warps * columns);
  return s;
}
// Bytes of shared memory a block may have on the current device; 0 without one.
int shared_limit() {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
    return 0;
  return bytes;
}

// The most warpgroups that fit with two stages of queries or more; then with one.
void choose_shape(StatsArguments& a, int limit) {
  const auto fits = [&](int warpgroups, int stages) {
    a.warpgroups = warpgroups;
    a.stages = stages;
    a.block_keys = warpgroups * stats_pieces(a.in.v) * kTileRows;
    a.shared = shared_of(a);
    return a.shared.bytes <= limit;
  };
  for (int warpgroups = stats_warpgroups(a.in.v); warpgroups > 1; --warpgroups) {
    for (int stages = kMaxStages; stages > 1; --stages) {
      if (fits(warpgroups, stages)) return;
    }
  }
  if ((!a.in.v && fits(3, 1)) || fits(2, 1) || fits(1, 2)) return;
  fits(1, 1);
}

// Everything but pointers into the workspace, which are offsets here.
struct Layout {
  StatsArguments a;
  int64_t broken, largest, zeros, columns, x, queries, keys, values, value_norms, bytes;
};
Layout layout_of(const ScoreStatsBatch& in) {
  constexpr int64_t kEnd = int64_t{1} << 30;
  Layout l{};
  StatsArguments& a = l.a;
  a.in = in;
  a.in.sink = std::clamp<int64_t>(in.sink, 0, in.tokens);
  a.in.recent = std::clamp<int64_t>(in.recent, 0, in.tokens);
  a.in.sliding_window = in.sliding_window > 0 ? std::min(in.sliding_window, kEnd) : kEnd;
  a.queries = static_cast<int>(in.queries ? in.n_queries : in.tokens);
  a.tiles = (a.queries + kTileRows - 1) / kTileRows;
  a.q_tiles = tiles_of(in.dim);
  a.v_tiles = in.v ? tiles_of(in.dim_v) : 0;
  a.tile_bytes = (a.q_tiles + 2 * a.v_tiles) * kTileBlock + int{sizeof(TileRows)};
  choose_shape(a, shared_limit());
  a.blocks = static_cast<int>((in.tokens + a.block_keys - 1) / a.block_keys);
  a.sink_blocks = static_cast<int>((a.in.sink + a.block_keys - 1) / a.block_keys);
  a.segment_queries = std::max(1, kSegmentRows / kTileRows / in.group) * kTileRows;
  a.segments = (a.queries + a.segment_queries - 1) / a.segment_queries;

  const int64_t heads = int64_t{in.kv_heads} * in.group, keys = int64_t{a.blocks} * a.block_keys,
                sums = (in.v ? 4 : 3) * heads * a.tiles * kTileRows,
                columns = a.segments * in.kv_heads * in.tokens, key_tiles = in.kv_heads * keys / kTileRows;
  int64_t end = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t at = end;
    end += (bytes + 1023) / 1024 * 1024;
    return at;
  };
  take(sums * 8);
  l.broken = take(sums);
  l.largest = take(heads * 4);
  l.zeros = end;
  l.columns = take(columns * 8);
  l.x = take(in.v ? columns * 4 : 0);
  l.queries = take(heads * a.tiles * a.tile_bytes);
  l.keys = take(key_tiles * a.q_tiles * kTileBlock);
  l.values = take(key_tiles * a.v_tiles * kTileBlock);
  l.value_norms = take(in.v ? heads * keys * 4 : 0);
  l.bytes = end;
  return l;
}

Status check(const ScoreStatsBatch& in, const ScoreStatsOutputs& out, void* workspace) {
  if (in.dim < 8 || in.dim > 256 || in.dim % 8 != 0)
    return {"cuda::score_stats: head dims are multiples of 8 up to 256"};
  if (in.kv_heads < 1 || in.group < 1 || int64_t{in.kv_heads} * in.group > 65535)
    return {"cuda::score_stats: no heads, or too many"};
  if (in.tokens < 0 || in.tokens > (int64_t{1} << 30))
    return {"cuda::score_stats: sequences end before 2^30 tokens"};
  if (in.queries && (in.n_queries < 0 || in.n_queries > in.tokens))
    return {"cuda::score_stats: there are more queries than tokens"};
  if (in.v && (in.dim_v < 8 || in.dim_v > 256 || in.dim_v % 8 != 0))
    return {"cuda::score_stats: value dims are multiples of 8 up to 256"};
  if (in.type == FloatType::f16) return {"cuda::score_stats: q, k, v and o are bf16 or f32"};
  if (in.q_stride % 8 != 0 || in.k_stride % 8 != 0 ||
      (in.v && (in.v_stride % 8 != 0 || in.o_stride % 8 != 0)))
    return {"cuda::score_stats: strides are multiples of 8"};
  if (!in.q || !in.k || !in.lse || !workspace)
    return {"cuda::score_stats: q, k, lse and a workspace must be given"};
  if (!out.mass || !out.sink_mass || !out.entropy || !out.u || !out.w)
    return {"cuda::score_stats: every output must be given"};
  if (in.v && (!in.o || !in.metric || !out.a || !out.x))
    return {"cuda::score_stats: with values o, a metric, a and x must be given"};
  return {};
}

}  // namespace

int64_t score_stats_workspace(const ScoreStatsBatch& batch) {
  return layout_of(batch).bytes;
}

Status score_stats(const ScoreStatsBatch& batch, const ScoreStatsOutputs& out, void* workspace,
                   void* stream) {
  if (Status s = check(batch, out, workspace); !s.ok()) return s;
  Layout l = layout_of(batch);
  StatsArguments& a = l.a;
  if (a.queries == 0) return {};
  if (a.shared.bytes > shared_limit())
    return {"cuda::score_stats: a multiprocessor of this device has too little shared memory for these dims"};
  if (int64_t{a.blocks} * a.segments * batch.kv_heads > INT_MAX ||
      int64_t{a.tiles} * 4 * kTileRows * batch.kv_heads * batch.group > INT_MAX)
    return {"cuda::score_stats: too many queries, or heads"};
  auto* memory = static_cast<uint8_t*>(workspace);
  a.row_sums = reinterpret_cast<unsigned long long*>(memory);
  a.broken = memory + l.broken;
  a.largest_norm = reinterpret_cast<unsigned*>(memory + l.largest);
  a.column_parts = reinterpret_cast<float2*>(memory + l.columns);
  a.x_parts = reinterpret_cast<float*>(memory + l.x);
  a.packed_queries = memory + l.queries;
  a.packed_keys = memory + l.keys;
  a.packed_values = memory + l.values;
  a.value_norms = reinterpret_cast<float*>(memory + l.value_norms);
  const auto on = static_cast<cudaStream_t>(stream);
  cudaError_t error = cudaMemsetAsync(memory, 0, l.zeros, on);
  if (!error) error = launch_stats_pack(a, on);
  if (!error && batch.v) error = launch_stats_metric(a, on);
  if (!error) error = (batch.v ? launch_stats_values : launch_stats)(a, on);
  if (error) return status_of(error, "launching score statistics");
  const int heads = batch.kv_heads * batch.group;
  finish_rows<<<dim3((a.queries + 255) / 256, heads), 256, 0, on>>>(a, out);
  finish_columns<<<static_cast<unsigned>((batch.kv_heads * batch.tokens + 255) / 256), 256, 0, on>>>(a, out);
  return status_of(cudaGetLastError(), "finishing score statistics");
}

}  // namespace oscar::cuda
