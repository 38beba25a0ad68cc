#include "kernels/cuda/gram.cuh"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.cuh"

namespace oscar::cuda {
namespace {

constexpr int kPartRows = 512;  // at most, summed in float32

int width_of(int dim) {
  return dim <= 64 ? 64 : dim <= 96 ? 96 : dim <= 128 ? 128 : dim <= 192 ? 192 : 256;
}

// Adds up parts: a block is kFinishTiles tiles of a head and weighting, each in kSlices slices of the parts, which
// are added up in their order. The last block of a row of the grid does the sums of rows and of weights.
constexpr int kSlices = 4, kFinishTiles = 2;
struct Sum4 {
  double x, y, z, w;
};

template <int D>
OSCAR_DEVICE void finish_rows(const GramArguments& a, int head, int which, int64_t slot) {
  if (double* const out = a.in.sum[which]) {
    for (int i = threadIdx.x; i < a.in.dim; i += blockDim.x) {
      double sum = 0;
#pragma unroll 8
      for (int part = 0; part < a.parts; ++part) sum += a.sums[(slot + part) * D + i];
      out[head * a.in.dim + i] = sum;
    }
  }
  if (double* const out = a.in.total[which]; out && threadIdx.x == 0) {
    double total = 0;
#pragma unroll 8
    for (int part = 0; part < a.parts; ++part) total += a.totals[slot + part];
    out[head] = total;
  }
}

template <int D>
__global__ void __launch_bounds__(32 * kFinishTiles * kSlices, 8) finish_gram(const GramArguments a) {
  using S = GramShape<D>;
  static_assert(S::kTiles % kFinishTiles == 0);
  __shared__ Sum4 slices[kSlices - 1][kFinishTiles * 32];
  wait_preceding();
  const int head = blockIdx.y / a.in.weightings, which = blockIdx.y % a.in.weightings, dim = a.in.dim;
  const int64_t slot = static_cast<int64_t>(blockIdx.y) * a.parts;
  if (blockIdx.x == gridDim.x - 1) return finish_rows<D>(a, head, which, slot);
  const int place = threadIdx.x % (kFinishTiles * 32), slice = threadIdx.x / (kFinishTiles * 32),
            lane = threadIdx.x & 31, tile = blockIdx.x * kFinishTiles + place / 32;
  Sum4 sum = {};
  const auto add = [&](auto x) {
    sum.x += x.x;
    sum.y += x.y;
    sum.z += x.z;
    sum.w += x.w;
  };
  const int each = (a.parts + kSlices - 1) / kSlices, first = slice * each, end = min(first + each, a.parts);
  const float4* from = a.tiles + (slot * S::kTiles + tile) * 32 + lane;
#pragma unroll 2
  for (int part = first; part < end; ++part) add(from[static_cast<int64_t>(part) * S::kTiles * 32]);
  if (slice > 0) slices[slice - 1][place] = sum;
  __syncthreads();
  if (slice > 0) return;
#pragma unroll
  for (int k = 0; k < kSlices - 1; ++k) add(slices[k][place]);
  constexpr int kFirstHalf = S::kHalf * (S::kHalf + 1);  // blocks of strips that have one more
  const int block = tile / 2, later = block - kFirstHalf;
  const int strip = later < 0 ? block / (S::kHalf + 1) : S::kHalf + later / S::kHalf,
            distance = later < 0 ? block % (S::kHalf + 1) : later % S::kHalf;
  const int row = 16 * strip + lane / 4,
            column = 16 * ((strip + distance) % S::kStrips) + 8 * (tile & 1) + 2 * (lane & 3);
  double* const out = a.in.gram[which] + static_cast<int64_t>(head) * dim * dim;
  const double values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int i = row + 8 * (k / 2), j = column + (k & 1);
    if (i >= dim || j >= dim || (distance == 0 && i > j)) continue;
    out[static_cast<int64_t>(i) * dim + j] = values[k];
    out[static_cast<int64_t>(j) * dim + i] = values[k];
  }
}

template <int D>
cudaError_t launch_finish(const GramArguments& a, bool overlap, cudaStream_t stream) {
  const dim3 grid(GramShape<D>::kTiles / kFinishTiles + 1, a.in.heads * a.in.weightings);
  return launch_kernel(finish_gram<D>, grid, 32 * kFinishTiles * kSlices, 0, overlap, stream, a);
}

struct Family {
  int width;
  cudaError_t (*sums)(const GramArguments&, cudaStream_t);
  cudaError_t (*finish)(const GramArguments&, bool, cudaStream_t);
  int tiles;
};
constexpr Family kFamilies[] = {{64, launch_gram_64, launch_finish<64>, GramShape<64>::kTiles},
                                {96, launch_gram_96, launch_finish<96>, GramShape<96>::kTiles},
                                {128, launch_gram_128, launch_finish<128>, GramShape<128>::kTiles},
                                {192, launch_gram_192, launch_finish<192>, GramShape<192>::kTiles},
                                {256, launch_gram_256, launch_finish<256>, GramShape<256>::kTiles}};
const Family& family_of(int dim) {
  const int width = width_of(dim);
  int i = 0;
  while (kFamilies[i].width != width) ++i;
  return kFamilies[i];
}

// Parts as long as they may be while there is one for every multiprocessor of a large GPU: each leaves a whole
// matrix to add up. Lengths do not depend on the GPU, so that sums do not either.
int64_t part_rows(const GramBatch& in) {
  constexpr int64_t wanted = 128;
  const int64_t heads = int64_t{in.heads} * in.group;
  const int64_t chunks = wanted / heads < 1 ? 1 : wanted / heads;
  const int64_t rows = ((in.n + chunks - 1) / chunks + 31) / 32 * 32;
  return rows < 64 ? 64 : rows > kPartRows ? kPartRows : rows;
}

struct Layout {
  GramArguments a;
  int64_t sums, totals, bytes;  // offsets
};
Layout layout_of(const GramBatch& in) {
  Layout l{};
  const Family& family = family_of(in.dim);
  l.a.in = in;
  l.a.rows = static_cast<int>(part_rows(in));
  l.a.chunks = static_cast<int>((in.n + l.a.rows - 1) / l.a.rows);
  l.a.parts = l.a.chunks * in.group;
  const int64_t slots = int64_t{in.heads} * in.weightings * l.a.parts;
  l.sums = slots * family.tiles * 32 * int64_t{sizeof(float4)};
  l.totals = l.sums + slots * family.width * int64_t{sizeof(float)};
  l.bytes = l.totals + slots * int64_t{sizeof(double)};
  return l;
}

Status check(const GramBatch& in, const void* workspace) {
  if (in.dim < 8 || in.dim > 256 || in.dim % 8 != 0) return {"cuda::gram: dims are multiples of 8 up to 256"};
  if (in.heads < 1 || in.group < 1 || in.heads > 16384) return {"cuda::gram: no heads, or too many"};
  if (in.n < 0 || in.n > (int64_t{1} << 30)) return {"cuda::gram: sequences end before 2^30 rows"};
  if (in.weightings < 1 || in.weightings > kMaxWeightings)
    return {"cuda::gram: one, two or three weightings"};
  if (in.stride % 8 != 0) return {"cuda::gram: strides are multiples of 8"};
  if (!in.rows || !workspace) return {"cuda::gram: rows and a workspace must be given"};
  for (int w = 0; w < in.weightings; ++w) {
    if (!in.gram[w]) return {"cuda::gram: every weighting needs its matrix"};
  }
  return {};
}

}  // namespace

int64_t gram_workspace(const GramBatch& batch) {
  return layout_of(batch).bytes + 16;  // of no rows too
}

Status gram(const GramBatch& batch, void* workspace, void* stream) {
  if (Status s = check(batch, workspace); !s.ok()) return s;
  Layout l = layout_of(batch);
  auto* memory = static_cast<uint8_t*>(workspace);
  l.a.tiles = reinterpret_cast<float4*>(memory);
  l.a.sums = reinterpret_cast<float*>(memory + l.sums);
  l.a.totals = reinterpret_cast<double*>(memory + l.totals);
  const auto on = static_cast<cudaStream_t>(stream);
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  const Family& family = family_of(batch.dim);
  if (l.a.parts > 0) {
    if (Status s = status_of(family.sums(l.a, on), "launching second moments"); !s.ok()) return s;
  }
  return status_of(family.finish(l.a, major >= 9 && l.a.parts > 0, on), "adding up second moments");
}

}  // namespace oscar::cuda
