#include "libdump/device_layers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>

#include "formats/error.h"
#include "kernels/forward_device.h"
#include "libdump/torch_device.h"

namespace oscar::on_device {
namespace {

void check(const Status& status) {
  if (!status.ok()) throw failure("{}", status.what);
}

}  // namespace

at::Tensor normed_activation(const at::Tensor& x, const at::Tensor& weight, double eps, Precision precision) {
  const bool kernel = precision == Precision::BFloat16 && x.size(1) % 4 == 0 && has_kernels(x.device());
  if (!kernel) return activation(rms_norm(x, weight, eps), precision);
  const at::Tensor rows = x.contiguous();
  at::Tensor out = at::empty(rows.sizes(), rows.options().dtype(at::kBFloat16));
  check(cuda::rms_norm(rows.const_data_ptr<float>(), weight.const_data_ptr<float>(), eps, rows.size(0),
                       static_cast<int>(rows.size(1)), out.mutable_data_ptr(), nullptr,
                       stream_of(x.device())));
  return out;
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  if (gate_up.scalar_type() == at::kBFloat16 && width % 8 == 0 && gate_up.is_contiguous() &&
      has_kernels(gate_up.device())) {
    at::Tensor out = at::empty({gate_up.size(0), width}, gate_up.options());
    check(cuda::swiglu(gate_up.const_data_ptr(), gate_up.size(0), width, out.mutable_data_ptr(),
                       stream_of(gate_up.device())));
    return out;
  }
  return at::silu(gate_up.narrow(1, 0, width)).mul_(gate_up.narrow(1, width, width));
}

namespace {

// x (T, heads, dim) float32.
at::Tensor turned(const at::Tensor& x, const RopeTable& rope, int64_t position) {
  const int64_t half = rope.config().dim / 2;
  auto [cos, sin] = rope.angles_on_device(position, x.size(0));
  cos = cos.unsqueeze(1);
  sin = sin.unsqueeze(1);
  const bool neighbours = rope.config().neighbours;
  const at::Tensor pairs = x.narrow(2, 0, 2 * half);
  const at::Tensor first = neighbours ? pairs.slice(2, 0, {}, 2) : pairs.narrow(2, 0, half),
                   second = neighbours ? pairs.slice(2, 1, {}, 2) : pairs.narrow(2, half, half);
  const at::Tensor a = first * cos - second * sin, b = second * cos + first * sin;
  const at::Tensor out = neighbours ? at::stack({a, b}, 3).flatten(2) : at::cat({a, b}, 2);
  return 2 * half == x.size(2) ? out : at::cat({out, x.narrow(2, 2 * half, x.size(2) - 2 * half)}, 2);
}

}  // namespace

// One launch for all of them.
static std::vector<at::Tensor> positioned_by_kernel(const at::Tensor& projected,
                                                    const std::vector<HeadRows>& of, double eps,
                                                    int64_t position) {
  std::vector<at::Tensor> out;
  std::vector<std::pair<at::Tensor, at::Tensor>> angles;
  std::vector<cuda::RotaryRows> jobs;
  for (const HeadRows& rows : of) {
    out.push_back(at::empty({projected.size(0), rows.heads, rows.dim}, projected.options()));
    cuda::RotaryRows job;
    job.in = projected.const_data_ptr();
    job.in_stride = projected.stride(0);
    job.column = rows.column;
    job.heads = rows.heads;
    job.dim = rows.dim;
    job.rows = projected.size(0);
    job.norm = rows.norm.defined() ? rows.norm.const_data_ptr<float>() : nullptr;
    job.eps = eps;
    if (rows.rope) {
      angles.push_back(rows.rope->angles_on_device(position, projected.size(0)));
      job.cos = angles.back().first.const_data_ptr<float>();
      job.sin = angles.back().second.const_data_ptr<float>();
      job.rotary_dim = rows.rope->config().dim;
      job.neighbours = rows.rope->config().neighbours;
    }
    job.out = out.back().mutable_data_ptr();
    jobs.push_back(job);
  }
  check(cuda::rotary(jobs.data(), static_cast<int>(jobs.size()), stream_of(projected.device())));
  return out;
}

std::vector<at::Tensor> positioned(const at::Tensor& projected, const std::vector<HeadRows>& of, double eps,
                                   int64_t position) {
  const int64_t tokens = projected.size(0);
  const bool by_head = std::ranges::all_of(of, [](const HeadRows& rows) {
    return rows.dim <= 512 && (!rows.norm.defined() || rows.norm.numel() == rows.dim);
  });
  if (by_head && projected.scalar_type() == at::kBFloat16 && has_kernels(projected.device()))
    return positioned_by_kernel(projected, of, eps, position);
  std::vector<at::Tensor> out;
  for (const HeadRows& rows : of) {
    const int64_t width = int64_t{rows.heads} * rows.dim;
    at::Tensor x = projected.narrow(1, rows.column, width).to(at::kFloat);
    if (rows.norm.defined())
      x = at::rms_norm(x.reshape({-1, rows.norm.numel()}), {rows.norm.numel()}, rows.norm, eps);
    x = x.reshape({tokens, rows.heads, rows.dim});
    if (rows.rope) x = turned(x, *rows.rope, position);
    out.push_back(x.to(projected.scalar_type()).contiguous());
  }
  return out;
}

namespace {

// (n, T) of the queries at `positions`.
at::Tensor seen(const at::Tensor& positions, const at::Tensor& keys, const LayerShape& shape) {
  const at::Tensor distance = positions.unsqueeze(1) - keys.unsqueeze(0);
  const at::Tensor causal = distance.ge(0);
  return shape.sliding_window > 0 ? causal.logical_and(distance.lt(shape.sliding_window)) : causal;
}

}  // namespace

void each_score_block(const at::Tensor& q, const at::Tensor& k, const at::Tensor& positions,
                      const LayerShape& shape, const std::function<void(const ScoreBlock&)>& take,
                      const Visible& visible) {
  const int64_t tokens = k.size(0), heads = shape.kv_heads, group = shape.group();
  const int64_t block = std::max<int64_t>(1, (int64_t{1} << 26) / (heads * group * tokens));
  const at::Tensor keys = k.to(at::kFloat).permute({1, 2, 0}).contiguous();  // (Hkv, Dk, T)
  const at::Tensor all = at::arange(tokens, positions.options());
  for (int64_t first = 0; first < positions.size(0); first += block) {
    ScoreBlock b{first, std::min(block, positions.size(0) - first), {}, {}, {}};
    const at::Tensor at = positions.narrow(0, first, b.count);
    const at::Tensor queries = q.index_select(0, at)
                                   .to(at::kFloat)
                                   .permute({1, 0, 2})
                                   .reshape({heads, group * b.count, shape.dim_k});
    b.logits = at::bmm(queries, keys).view({heads, group, b.count, tokens}).mul_(shape.scale);
    if (shape.logit_cap > 0) {
      const at::Tensor tanh = at::tanh(b.logits / shape.logit_cap);
      b.slope = 1 - tanh.square();
      b.logits = tanh * shape.logit_cap;
    }
    b.visible = visible ? visible(at) : seen(at, all, shape);
    take(b);
  }
}

namespace {

// (Hq, 1) float32; undefined without sinks.
at::Tensor sinks_of(const LayerShape& shape, at::Device device) {
  if (shape.sink_logits.empty()) return {};
  return to_device(at::tensor(shape.sink_logits).view({-1, 1}), device);
}

AttentionOutput by_blocks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const LayerShape& shape, const Visible& visible = {}) {
  const int64_t tokens = q.size(0), keys = k.size(0), heads = shape.kv_heads, group = shape.group();
  const at::Tensor values = v.to(at::kFloat).permute({1, 0, 2}).contiguous();  // (Hkv, T, Dv)
  AttentionOutput out{at::empty({tokens, shape.q_heads, shape.dim_v}, q.options()),
                      at::empty({shape.q_heads, tokens}, q.options().dtype(at::kFloat))};
  const at::Tensor sinks = sinks_of(shape, q.device());
  const auto take = [&](const ScoreBlock& b) {
    const at::Tensor logits = b.logits.masked_fill(b.visible.logical_not(), -INFINITY);
    at::Tensor lse = at::logsumexp(logits, {3}).view({shape.q_heads, b.count});
    if (sinks.defined()) lse = at::logaddexp(lse, sinks);
    const at::Tensor p = at::exp(logits - lse.view({heads, group, b.count, 1}));
    const at::Tensor o = at::bmm(p.view({heads, group * b.count, keys}), values);
    out.o.narrow(0, b.first, b.count).copy_(o.view({shape.q_heads, b.count, shape.dim_v}).permute({1, 0, 2}));
    out.lse.narrow(1, b.first, b.count).copy_(lse);
  };
  each_score_block(q, k, at::arange(tokens, q.options().dtype(at::kLong)), shape, take, visible);
  return out;
}

// The fastest where it runs. Undefined where LibTorch or the card has it not.
AttentionOutput by_cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  static std::atomic<bool> refused{false};
  if (refused) return {};
  const auto heads_first = [](const at::Tensor& x) { return x.unsqueeze(0).transpose(1, 2); };
  try {
    const auto all =
        at::_scaled_dot_product_cudnn_attention(heads_first(q), heads_first(k), heads_first(v), {},
                                                /*compute_log_sumexp=*/true, 0.0,
                                                /*is_causal=*/true, false, scale);
    return {std::get<0>(all).squeeze(0).transpose(0, 1), std::get<1>(all).view({q.size(1), q.size(0)})};
  } catch (const c10::Error&) {
    refused = true;
    return {};
  }
}

AttentionOutput by_flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const LayerShape& shape) {
  const int64_t tokens = q.size(0);
  std::optional<c10::SymInt> left;
  if (shape.sliding_window > 0) left = shape.sliding_window - 1;
  const auto all = at::_flash_attention_forward_symint(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), {}, {},
                                                       tokens, tokens, 0.0, /*is_causal=*/true,
                                                       /*return_debug_mask=*/false, shape.scale, left);
  return {std::get<0>(all).squeeze(0), std::get<1>(all).squeeze(0).narrow(1, 0, tokens)};
}

}  // namespace

AttentionOutput causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const LayerShape& shape) {
  const bool fused = q.is_cuda() && q.element_size() == 2 && shape.dim_k == shape.dim_v &&
                     shape.dim_k % 8 == 0 && shape.dim_k <= 256 && shape.logit_cap == 0;
  if (!fused) return by_blocks(q, k, v, shape);
  AttentionOutput out =
      shape.sliding_window == 0 && shape.dim_k <= 128 ? by_cudnn(q, k, v, shape.scale) : AttentionOutput{};
  if (!out.o.defined()) out = by_flash(q, k, v, shape);
  if (const at::Tensor sinks = sinks_of(shape, q.device()); sinks.defined()) {
    const at::Tensor lse = at::logaddexp(out.lse, sinks);
    const at::Tensor share = at::exp(out.lse - lse);  // (Hq, T)
    out.o = (out.o.to(at::kFloat) * share.t().unsqueeze(2)).to(out.o.scalar_type());
    out.lse = lse;
  }
  out.o = out.o.contiguous();
  out.lse = out.lse.contiguous();
  return out;
}

at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& k_read, const at::Tensor& v_read, const Windows& windows,
                            const LayerShape& shape) {
  if (!k_read.defined()) return by_blocks(q, k, v, shape).o;
  // Every token twice, as it is and as its codes read: a query sees one of the two.
  const at::Tensor keys = at::arange(k.size(0), k.options().dtype(at::kLong));
  const auto visible = [&](const at::Tensor& positions) {
    const at::Tensor sees = seen(positions, keys, shape);
    const at::Tensor coded =
        (positions.unsqueeze(1) - keys.unsqueeze(0)).ge(windows.recent).logical_and(keys.ge(windows.sink));
    return at::cat({sees.logical_and(coded.logical_not()), sees.logical_and(coded)}, 1);
  };
  return by_blocks(q, at::cat({k.to(at::kFloat), k_read}), at::cat({v.to(at::kFloat), v_read}), shape,
                   visible)
      .o;
}

}  // namespace oscar::on_device
