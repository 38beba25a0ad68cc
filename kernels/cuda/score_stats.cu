#include "kernels/cuda/score_stats.cuh"

#include "kernels/cuda/status.cuh"

namespace oscar::cuda {
namespace {

int width_of(int dim) {
  return dim <= 64 ? 64 : dim <= 96 ? 96 : dim <= 128 ? 128 : 256;
}

// Key blocks of query t: [first, last].
__device__ int first_block(const StatsArguments& a, int t, int keys) {
  const int64_t window = a.in.sliding_window;
  return window > 0 && t >= window ? static_cast<int>((t - window + 1) / keys) : 0;
}

__global__ void finish_rows(const StatsArguments a, const ScoreStatsOutputs out, int keys) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int head = blockIdx.y;
  if (row >= a.rows) return;
  const int t = query_of(a, row);
  double mass = 0, entropy = 0, sink = 0;
  for (int block = first_block(a, t, keys); block <= t / keys; ++block) {
    const int64_t at = (static_cast<int64_t>(block) * a.in.kv_heads + head) * a.rows + row;
    const float2 part = a.row_parts[at];
    mass += part.x;
    entropy -= part.y;
    if (block < a.sink_blocks) sink += a.sink_parts[at];
  }
  const int64_t to = head_of(a, head, row) * a.queries + row / a.in.group;
  out.mass[to] = static_cast<float>(mass);
  out.sink_mass[to] = static_cast<float>(sink);
  out.entropy[to] = static_cast<float>(entropy * 0.6931471805599453);
}

__global__ void finish_columns(const StatsArguments a, const ScoreStatsOutputs out) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x,
                count = a.in.kv_heads * a.in.tokens;
  if (n >= count) return;
  double u = 0, w = 0;
  for (int segment = 0; segment < a.segments; ++segment) {
    const float2 part = a.column_parts[segment * count + n];
    u += part.x;
    w += part.y;
  }
  out.u[n] += u;
  out.w[n] += w;
}

int64_t up16(int64_t bytes) {
  return (bytes + 15) / 16 * 16;
}

struct Layout {
  StatsArguments a;
  int64_t sinks, columns, bytes;
};
Layout layout_of(const ScoreStatsBatch& in) {
  Layout l{};
  const int keys = stats_keys(width_of(in.dim));
  l.a.in = in;
  l.a.queries = in.queries ? in.n_queries : in.tokens;
  l.a.rows = static_cast<int>(l.a.queries * in.group);
  l.a.blocks = static_cast<int>((in.tokens + keys - 1) / keys);
  l.a.group_inverse = static_cast<unsigned>(((int64_t{1} << 32) + in.group - 1) / in.group);
  l.a.segments = static_cast<int>((l.a.rows + kSegmentRows - 1) / kSegmentRows);
  const int64_t sink = in.sink < 0 ? 0 : in.sink < in.tokens ? in.sink : in.tokens;
  l.a.in.sink = sink;
  l.a.in.recent = in.recent < 0 ? 0 : in.recent < in.tokens ? in.recent : in.tokens;
  l.a.sink_blocks = static_cast<int>((sink + keys - 1) / keys);
  l.sinks = up16(int64_t{l.a.blocks} * in.kv_heads * l.a.rows * int64_t{sizeof(float2)});
  l.columns = l.sinks + up16(int64_t{l.a.sink_blocks} * in.kv_heads * l.a.rows * int64_t{sizeof(float)});
  l.bytes = l.columns + l.a.segments * in.kv_heads * in.tokens * int64_t{sizeof(float2)};
  return l;
}

Status check(const ScoreStatsBatch& in, const ScoreStatsOutputs& out, void* workspace) {
  if (in.dim < 8 || in.dim > 256 || in.dim % 8 != 0)
    return {"cuda::score_stats: head dims are multiples of 8 up to 256"};
  if (in.kv_heads < 1 || in.kv_heads > 65535 || in.group < 1)
    return {"cuda::score_stats: no heads, or too many"};
  if (in.tokens < 0 || in.tokens > (int64_t{1} << 30))
    return {"cuda::score_stats: sequences end before 2^30 tokens"};
  if (in.type == FloatType::f16) return {"cuda::score_stats: q and k are bf16 or f32"};
  if (in.q_stride % 8 != 0 || in.k_stride % 8 != 0) return {"cuda::score_stats: strides are multiples of 8"};
  if (!in.q || !in.k || !in.lse || !workspace)
    return {"cuda::score_stats: q, k, lse and a workspace must be given"};
  if (in.v) return {"cuda::score_stats: values are not summed on a GPU yet"};
  if (!out.mass || !out.sink_mass || !out.entropy || !out.u || !out.w)
    return {"cuda::score_stats: every output must be given"};
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
  if (a.rows == 0) return {};
  auto* memory = static_cast<uint8_t*>(workspace);
  a.row_parts = reinterpret_cast<float2*>(memory);
  a.sink_parts = reinterpret_cast<float*>(memory + l.sinks);
  a.column_parts = reinterpret_cast<float2*>(memory + l.columns);
  const auto on = static_cast<cudaStream_t>(stream);
  const int width = width_of(batch.dim);
  const auto launch = width == 64    ? launch_stats_64
                      : width == 96  ? launch_stats_96
                      : width == 128 ? launch_stats_128
                                     : launch_stats_256;
  if (Status s = status_of(launch(a, on), "launching score statistics"); !s.ok()) return s;
  finish_rows<<<dim3(static_cast<unsigned>((a.rows + 255) / 256), batch.kv_heads), 256, 0, on>>>(
      a, out, stats_keys(width));
  finish_columns<<<static_cast<unsigned>((batch.kv_heads * batch.tokens + 255) / 256), 256, 0, on>>>(a, out);
  return status_of(cudaGetLastError(), "finishing score statistics");
}

}  // namespace oscar::cuda
