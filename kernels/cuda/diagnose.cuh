// Streaming attention, twice over the same tiles of keys: p from exact keys, p^ from the codes, each with its
// own running maximum, and the four products of p, p^ with V, V^ as one: [p; p^] times [V | V^].
//
// A tile goes by once as history (keys and values from the codes, masked to Hist(t)) and once as window
// (exact on both sides, masked to the rest), where it has keys of either kind for some query of the block: so
// what a query reads from codes may differ within a tile, and only a few tiles go by twice.
#pragma once
#include "kernels/cuda/common.cuh"
#include "kernels/diagnose.h"

namespace oscar::cuda {

inline constexpr int kDiagnoseThreads = 256;
inline constexpr int kDiagnoseRows = 32;  // (query, head) rows of a block: four a warp
constexpr int diagnose_keys(int width) {
  return width <= 128 ? 64 : 32;
}  // of a tile

struct DiagnoseArguments {
  int tokens, first_query, group, dim_k, dim_v, rows;
  int sink, recent, window;  // window: INT_MAX where there is none
  int coded;                 // keys [sink, sink + coded) have codes
  float scale, logit_cap;
  const float* q;                  // (T - first_query, H, dim_k)
  const float *k, *v;              // (T, dim)
  const float *k_codes, *v_codes;  // (coded, dim)
  const float* sink_logits;        // (H), or nullptr
  DiagnoseResult out;              // on the device
};
cudaError_t launch_diagnose_64(const DiagnoseArguments& a, cudaStream_t stream);
cudaError_t launch_diagnose_128(const DiagnoseArguments& a, cudaStream_t stream);
cudaError_t launch_diagnose_256(const DiagnoseArguments& a, cudaStream_t stream);

template <int W>
struct DiagnoseShared {
  static constexpr int kKeys = diagnose_keys(W);
  float q[kDiagnoseRows][W + 4];
  float k[2][kKeys][W + 4];               // exact, codes
  float v[kKeys][2 * W];                  // exact | codes
  float p[kKeys][2 * kDiagnoseRows + 4];  // p | p^ of the rows
  float factor[2 * kDiagnoseRows];        // for what was summed up before
};

// One visit of a tile.
struct Visit {
  int first;  // key
  bool history;
};
struct KeyRange {                    // of the block's queries
  int earliest, latest, begin, end;  // times; keys [begin, end), begin at a tile's edge
};
OSCAR_DEVICE bool has_history(const DiagnoseArguments& a, const KeyRange& r, int first, int keys) {
  return first + keys > a.sink && first <= r.latest - a.recent;
}
OSCAR_DEVICE bool has_window(const DiagnoseArguments& a, const KeyRange& r, int first, int keys) {
  return first < a.sink || first + keys - 1 > r.earliest - a.recent;
}
OSCAR_DEVICE Visit next_visit(const DiagnoseArguments& a, const KeyRange& r, Visit visit, int keys) {
  if (visit.history && has_window(a, r, visit.first, keys)) return {visit.first, false};
  const int first = visit.first + keys;
  return {first, first < r.end && has_history(a, r, first, keys)};
}

OSCAR_DEVICE void copy16_or_zero(float* to, const float* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(shared_address(to)), "l"(from),
               "r"(present ? 16 : 0)
               : "memory");
}
// Rows [first, first + Rows) of (count, dim), zeros beyond either.
template <int W, int Rows>
OSCAR_DEVICE void copy_rows(float* to, int stride, const float* from, int first, int count, int dim) {
  for (int n = threadIdx.x; n < Rows * (W / 4); n += kDiagnoseThreads) {
    const int r = n / (W / 4), i = 4 * (n % (W / 4)), row = first + r;
    const bool present = row >= 0 && row < count && i < dim;
    copy16_or_zero(to + r * stride + i, present ? from + static_cast<int64_t>(row) * dim + i : from, present);
  }
}
template <int W>
OSCAR_DEVICE void copy_keys(const DiagnoseArguments& a, DiagnoseShared<W>& s, const Visit& visit) {
  constexpr int kKeys = diagnose_keys(W);
  copy_rows<W, kKeys>(s.k[0][0], W + 4, a.k, visit.first, a.tokens, a.dim_k);
  if (visit.history) {
    copy_rows<W, kKeys>(s.k[1][0], W + 4, a.k_codes, visit.first - a.sink, a.coded, a.dim_k);
  } else {
    copy_rows<W, kKeys>(s.k[1][0], W + 4, a.k, visit.first, a.tokens, a.dim_k);
  }
  copy_commit();
}
template <int W>
OSCAR_DEVICE void copy_values(const DiagnoseArguments& a, DiagnoseShared<W>& s, const Visit& visit) {
  constexpr int kKeys = diagnose_keys(W);
  copy_rows<W, kKeys>(s.v[0], 2 * W, a.v, visit.first, a.tokens, a.dim_v);
  if (visit.history) {
    copy_rows<W, kKeys>(s.v[0] + W, 2 * W, a.v_codes, visit.first - a.sink, a.coded, a.dim_v);
  } else {
    copy_rows<W, kKeys>(s.v[0] + W, 2 * W, a.v, visit.first, a.tokens, a.dim_v);
  }
  copy_commit();
}

OSCAR_DEVICE float warp_max(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(kWarp, v, d));
  return v;
}
OSCAR_DEVICE double warp_sum(double v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(kWarp, v, d);
  return v;
}

struct Best {  // of this lane's keys; the lowest position wins ties
  float logit = -INFINITY;
  int key = INT_MAX;
  OSCAR_DEVICE void see(float l, int s) {
    if (l > logit || (l == logit && s < key)) {
      logit = l;
      key = s;
    }
  }
};
OSCAR_DEVICE int warp_best(Best best) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2)
    best.see(__shfl_xor_sync(kWarp, best.logit, d), __shfl_xor_sync(kWarp, best.key, d));
  return best.key;
}

// A row of this warp; sums are this lane's, maxima the warp's.
struct RowState {
  int query;  // -1: no such row
  float top = -1e30f, top_codes = -1e30f;
  double sum = 0, sum_codes = 0, moment = 0;  // of exp(l - top); moment: of that times l - l^
  double error = 0, power = 0;
  Best best, best_codes;
};

template <int W>
__global__ void __launch_bounds__(kDiagnoseThreads, 1) diagnose_kernel(const DiagnoseArguments a) {
  constexpr int kKeys = diagnose_keys(W), kLaneKeys = kKeys / 32,
                kColumns = W / 16;  // outputs of a lane: 8 rows, kColumns
  extern __shared__ uint4 dynamic[];
  auto& s = *reinterpret_cast<DiagnoseShared<W>*>(dynamic);
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const int row0 = (gridDim.x - 1 - blockIdx.x) * kDiagnoseRows;  // the last queries see the most keys: first
  const int last_row = min(row0 + kDiagnoseRows, a.rows) - 1;
  KeyRange range{a.first_query + row0 / a.group, a.first_query + last_row / a.group, 0, 0};
  range.begin = range.earliest >= a.window ? (range.earliest - a.window + 1) / kKeys * kKeys : 0;
  range.end = range.latest + 1;

  Visit visit{range.begin, has_history(a, range, range.begin, kKeys)};
  copy_rows<W, kDiagnoseRows>(s.q[0], W + 4, a.q, row0, a.rows, a.dim_k);
  copy_keys(a, s, visit);
  copy_values(a, s, visit);

  RowState row[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int index = row0 + 4 * warp + r;
    row[r].query = index < a.rows ? a.first_query + index / a.group : -1;
  }
  float out[8][kColumns] = {};
  while (visit.first < range.end) {
    const Visit next = next_visit(a, range, visit, kKeys);
    copy_wait<1>();
    __syncthreads();
    float l[4][kLaneKeys] = {}, l_codes[4][kLaneKeys] = {};
#pragma unroll 4
    for (int i = 0; i < W; i += 4) {
      float4 q[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) q[r] = *reinterpret_cast<const float4*>(&s.q[4 * warp + r][i]);
#pragma unroll
      for (int e = 0; e < kLaneKeys; ++e) {
        const float4 k = *reinterpret_cast<const float4*>(&s.k[0][lane + 32 * e][i]);
        const float4 c = *reinterpret_cast<const float4*>(&s.k[1][lane + 32 * e][i]);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          l[r][e] = fmaf(q[r].w, k.w, fmaf(q[r].z, k.z, fmaf(q[r].y, k.y, fmaf(q[r].x, k.x, l[r][e]))));
          l_codes[r][e] =
              fmaf(q[r].w, c.w, fmaf(q[r].z, c.z, fmaf(q[r].y, c.y, fmaf(q[r].x, c.x, l_codes[r][e]))));
        }
      }
    }
    float weights[2][kLaneKeys][4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      RowState& x = row[r];
      bool seen[kLaneKeys];
      float most = -1e30f, most_codes = -1e30f;
#pragma unroll
      for (int e = 0; e < kLaneKeys; ++e) {
        const int key = visit.first + lane + 32 * e;
        const bool visible = key <= x.query && x.query - key < a.window;
        seen[e] = visible && visit.history == (key >= a.sink && key <= x.query - a.recent);
        l[r][e] *= a.scale;
        l_codes[r][e] *= a.scale;
        if (a.logit_cap > 0) {
          l[r][e] = a.logit_cap * tanhf(l[r][e] / a.logit_cap);
          l_codes[r][e] = a.logit_cap * tanhf(l_codes[r][e] / a.logit_cap);
        }
        if (!seen[e]) continue;
        most = fmaxf(most, l[r][e]);
        most_codes = fmaxf(most_codes, l_codes[r][e]);
        x.best.see(l[r][e], key);
        x.best_codes.see(l_codes[r][e], key);
      }
      most = fmaxf(x.top, warp_max(most));
      most_codes = fmaxf(x.top_codes, warp_max(most_codes));
      const float factor = expf(x.top - most), factor_codes = expf(x.top_codes - most_codes);
      x.top = most;
      x.top_codes = most_codes;
      x.sum *= factor;
      x.moment *= factor;
      x.sum_codes *= factor_codes;
      if (lane == 0) {
        s.factor[4 * warp + r] = factor;
        s.factor[kDiagnoseRows + 4 * warp + r] = factor_codes;
      }
#pragma unroll
      for (int e = 0; e < kLaneKeys; ++e) {
        const float p = seen[e] ? expf(l[r][e] - most) : 0.f,
                    p_codes = seen[e] ? expf(l_codes[r][e] - most_codes) : 0.f;
        weights[0][e][r] = p;
        weights[1][e][r] = p_codes;
        if (!seen[e]) continue;
        const double difference = static_cast<double>(l[r][e]) - l_codes[r][e];
        x.sum += p;
        x.sum_codes += p_codes;
        x.moment += p * difference;
        x.error += difference * difference;
        x.power += static_cast<double>(l[r][e]) * l[r][e];
      }
    }
#pragma unroll
    for (int which = 0; which < 2; ++which) {
#pragma unroll
      for (int e = 0; e < kLaneKeys; ++e) {
        const float(&p)[4] = weights[which][e];
        *reinterpret_cast<float4*>(&s.p[lane + 32 * e][which * kDiagnoseRows + 4 * warp]) =
            make_float4(p[0], p[1], p[2], p[3]);
      }
    }
    __syncthreads();
    const bool more = next.first < range.end;
    if (more) {
      copy_keys(a, s, next);
    } else {
      copy_commit();
    }
    copy_wait<1>();  // the values
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const float factor = s.factor[8 * warp + r];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) out[r][i] *= factor;
    }
#pragma unroll 4
    for (int key = 0; key < kKeys; ++key) {
      const float4 low = *reinterpret_cast<const float4*>(&s.p[key][8 * warp]),
                   high = *reinterpret_cast<const float4*>(&s.p[key][8 * warp + 4]);
      const float p[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < kColumns; i += 4) {
        const float4 v = *reinterpret_cast<const float4*>(&s.v[key][32 * i + 4 * lane]);
#pragma unroll
        for (int r = 0; r < 8; ++r) {
          out[r][i] = fmaf(p[r], v.x, out[r][i]);
          out[r][i + 1] = fmaf(p[r], v.y, out[r][i + 1]);
          out[r][i + 2] = fmaf(p[r], v.z, out[r][i + 2]);
          out[r][i + 3] = fmaf(p[r], v.w, out[r][i + 3]);
        }
      }
    }
    __syncthreads();
    if (more) {
      copy_values(a, s, next);
    } else {
      copy_commit();
    }
    visit = next;
  }

  const int measured = a.tokens - a.first_query;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const RowState& x = row[r];
    const double sum = warp_sum(x.sum), sum_codes = warp_sum(x.sum_codes), moment = warp_sum(x.moment);
    const double error = warp_sum(x.error), power = warp_sum(x.power);
    const int best = warp_best(x.best), best_codes = warp_best(x.best_codes);
    if (lane != 0 || x.query < 0) continue;
    const int index = row0 + 4 * warp + r, head = index % a.group, at = head * measured + index / a.group;
    double total = sum, total_codes = sum_codes;  // of the keys; then of the sink logit too
    if (a.sink_logits) {
      total += exp(static_cast<double>(a.sink_logits[head]) - x.top);
      total_codes += exp(static_cast<double>(a.sink_logits[head]) - x.top_codes);
    }
    a.out.kl[at] = moment / total - (x.top + log(total)) + (x.top_codes + log(total_codes));
    a.out.top1[at] = best == best_codes;
    a.out.logit_error[at] = error;
    a.out.logit_power[at] = power;
    s.factor[4 * warp + r] = static_cast<float>(1 / total);
    s.factor[kDiagnoseRows + 4 * warp + r] = static_cast<float>(1 / total_codes);
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    const int from = 8 * warp + r;  // of [p; p^]
    const bool codes = from >= kDiagnoseRows;
    const int index = row0 + from - (codes ? kDiagnoseRows : 0);
    if (index >= a.rows) continue;
    const float factor = s.factor[from];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = 32 * (i & ~3) + 4 * lane + (i & 3);  // of [V | V^]
      const bool coded_values = column >= W;
      const int channel = coded_values ? column - W : column;
      if (channel >= a.dim_v) continue;
      float* to =
          codes ? (coded_values ? a.out.o_codes : a.out.o_keys) : (coded_values ? a.out.o_values : a.out.o);
      to[static_cast<int64_t>(index) * a.dim_v + channel] = out[r][i] * factor;
    }
  }
}

template <int W>
cudaError_t launch_diagnose(const DiagnoseArguments& a, cudaStream_t stream) {
  const auto kernel = diagnose_kernel<W>;
  const int shared = static_cast<int>(sizeof(DiagnoseShared<W>));
  if (const auto e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared))
    return e;
  kernel<<<(a.rows + kDiagnoseRows - 1) / kDiagnoseRows, kDiagnoseThreads, shared, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace oscar::cuda
