#include "libdump/quantised_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/cached_attention.h"
#include "libcalib/history_codes.h"
#include "libcalib/parallel.h"
#include "libdump/device_layers.h"
#include "libdump/layers.h"
#include "libdump/torch_device.h"

namespace oscar {

namespace {

// Query heads of one KV head side by side: (T, H, D) out of (T, Hq, D), and back.
std::vector<float> heads_of(const float* rows, int64_t tokens, int64_t stride, int64_t width) {
  std::vector<float> out(static_cast<size_t>(tokens * width));
  for (int64_t t = 0; t < tokens; ++t) std::copy_n(rows + t * stride, width, out.data() + t * width);
  return out;
}

void attend_head(const HeadCode& k_code, const HeadCode& v_code, const Windows& windows,
                 const AttentionRows& rows, int64_t head, float* o) {
  const LayerShape& s = *rows.shape;
  const int64_t T = rows.tokens, H = s.group(), k_width = H * s.dim_k, v_width = H * s.dim_v,
                o_stride = int64_t{s.q_heads} * s.dim_v;
  std::vector<float> q = heads_of(rows.q + head * k_width, T, int64_t{s.q_heads} * s.dim_k, k_width);
  std::vector<float> k(static_cast<size_t>(T * s.dim_k)), v(static_cast<size_t>(T * s.dim_v));
  k_code.transform.queries(q.data(), s.dim_k, T * H, s.dim_k, q.data());
  k_code.transform.rows(rows.k + head * s.dim_k, int64_t{s.kv_heads} * s.dim_k, T, s.dim_k, k.data());
  v_code.transform.rows(rows.v + head * s.dim_v, int64_t{s.kv_heads} * s.dim_v, T, s.dim_v, v.data());
  const HistoryCodes k_codes(k_code, k.data(), T, s.dim_k, windows),
      v_codes(v_code, v.data(), T, s.dim_v, windows);

  std::vector<float> out(static_cast<size_t>(T * v_width));
  cached_attention({.exact = {.tokens = T,
                              .group = s.group(),
                              .dim_k = s.dim_k,
                              .dim_v = s.dim_v,
                              .scale = static_cast<float>(s.scale),
                              .sliding_window = s.sliding_window,
                              .q = q.data(),
                              .q_stride = k_width,
                              .k = k.data(),
                              .k_stride = s.dim_k,
                              .v = v.data(),
                              .v_stride = s.dim_v,
                              .o_stride = v_width,
                              .lse_stride = T,
                              .logit_cap = static_cast<float>(s.logit_cap),
                              .sink_logits = s.sinks_of(static_cast<int>(head))},
                    .sink = windows.sink,
                    .recent = windows.recent,
                    .k_codes = k_codes.view(),
                    .v_codes = v_codes.view()},
                   out.data(), nullptr);
  v_code.transform.outputs(out.data(), T * H, s.dim_v);
  for (int64_t t = 0; t < T; ++t)
    std::copy_n(out.data() + t * v_width, v_width, o + t * o_stride + head * v_width);
}

// rows (T, D) of one head of (T, Hkv, D) as their codes read, in the model's basis; what no query reads from codes
// is 0.
void read_history(const HeadCode& code, const Windows& windows, const float* rows, int64_t stride,
                  int64_t tokens, int dim, float* out) {
  std::vector<float> one(static_cast<size_t>(tokens * dim));
  code.transform.rows(rows, stride, tokens, dim, one.data());
  const HistoryCodes codes(code, one.data(), tokens, dim, windows);
  codes.decode(0, tokens, one.data());
  code.transform.outputs(one.data(), tokens, dim);
  for (int64_t t = 0; t < tokens; ++t) std::copy_n(one.data() + t * dim, dim, out + t * stride);
}

}  // namespace

void quantised_attention(const CacheCodes& codes, const Windows& windows, const AttentionRows& rows,
                         float* o) {
  const LayerShape& s = *rows.shape;
  if (rows.tokens <= windows.sink + windows.recent) {
    const AttentionOutput exact =
        causal_attention(rows.q, rows.k, rows.v, rows.tokens, s, Precision::Float32);
    std::copy_n(exact.o.const_data_ptr<float>(), exact.o.numel(), o);
    return;
  }
  // A thread a KV head where LibTorch may use several; one, where each sequence has its own.
  at::parallel_for(0, s.kv_heads, 1, [&](int64_t first, int64_t last) {
    for (int64_t h = first; h < last; ++h) {
      const int head = static_cast<int>(h);
      attend_head(codes.k.of(s.layer, head), codes.v.of(s.layer, head), windows, rows, h, o);
    }
  });
}

void quantised_attention_on_device(const CacheCodes* codes, const Windows& windows, const AttentionRows& rows,
                                   int threads) {
  const LayerShape& s = *rows.shape;
  const DeviceRows& on = *rows.device;
  at::Tensor k_read, v_read;
  if (codes && rows.tokens > windows.sink + windows.recent) {
    const at::Tensor k = to_cpu(on.k.to(at::kFloat)), v = to_cpu(on.v.to(at::kFloat));
    k_read = at::empty(k.sizes(), at::kFloat);
    v_read = at::empty(v.sizes(), at::kFloat);
    parallel_for(2 * int64_t{s.kv_heads}, threads, [&](int64_t i) {
      const Side side = i % 2 == 0 ? Side::K : Side::V;
      const int head = static_cast<int>(i / 2), dim = s.dim(side);
      const at::Tensor& from = side == Side::K ? k : v;
      at::Tensor& to = side == Side::K ? k_read : v_read;
      read_history((side == Side::K ? codes->k : codes->v).of(s.layer, head), windows,
                   from.const_data_ptr<float>() + int64_t{head} * dim, int64_t{s.kv_heads} * dim, rows.tokens,
                   dim, to.mutable_data_ptr<float>() + int64_t{head} * dim);
    });
    k_read = to_device(k_read, on.k.device());
    v_read = to_device(v_read, on.v.device());
  }
  on.o.copy_(on_device::cached_attention(on.q, on.k, on.v, k_read, v_read, windows, s));
}

}  // namespace oscar
