// tensor_sums.h by the kernels of this build.
#include <ATen/ATen.h>

#include "formats/error.h"
#include "kernels/gram_device.h"
#include "kernels/score_stats_device.h"
#include "libdump/sinks/tensor_sums.h"
#include "libdump/torch_device.h"

namespace oscar {
namespace {

void check(const Status& status) {
  if (!status.ok()) throw failure("{}", status.what);
}

class KernelSums {
 public:
  explicit KernelSums(const TensorSumsInput& in)
      : in_(in),
        s_(in.shape),
        tokens_(in.rows.k.size(0)),
        stream_(stream_of(in.rows.k.device())),
        floats_(in.rows.lse.options()),
        offsets_(sum_offsets(s_)),
        values_(at::zeros({offsets_[kSumCount]}, floats_.dtype(at::kDouble))) {}

  TensorSums run() {
    const auto q = rows(in_.rows.q, s_.group()), k = rows(in_.rows.k, 1), v = rows(in_.rows.v, 1);
    gram(rows(in_.rows.o, s_.group()), {{.second = Sum::oo}});
    if (!in_.scores) {
      gram(q, {{.second = Sum::qq}});
      gram(k, {{.second = Sum::kk, .first = Sum::k_sum}});
      gram(v, {{.second = Sum::vv, .first = Sum::v_sum}});
      return {values_, {}, {}, {}};
    }
    scores();
    const Weighting of_mass{mass_, Sum::qq_mass, {}, Sum::mass}, of_out{a_, Sum::qq_out, {}, Sum::out};
    if (in_.queries.defined()) {
      gram(q, {{.second = Sum::qq}});
      gram(rows(in_.rows.q.index_select(0, in_.queries), s_.group()), {of_mass, of_out});
    } else {
      gram(q, {{.second = Sum::qq}, of_mass, of_out});
    }
    const at::Tensor weights = keys_.to(at::kFloat);  // u, w, x
    gram(k, {{.second = Sum::kk, .first = Sum::k_sum},
             {weights[0], Sum::ukk, Sum::uk, Sum::u},
             {weights[2], Sum::xkk, Sum::xk, Sum::x}});
    gram(v, {{.second = Sum::vv, .first = Sum::v_sum}, {weights[1], Sum::wvv, Sum::wv, Sum::w}});
    stream_power();
    return {values_, keys_[0], keys_[1], keys_[2]};
  }

 private:
  struct Weighting {
    at::Tensor weights{};  // (Hq or Hkv, n); undefined: all one
    Sum second;
    std::optional<Sum> first{}, total{};
  };

  double* at(Sum sum) {
    return values_.mutable_data_ptr<double>() + offsets_[static_cast<size_t>(sum)];
  }

  // x (n, heads * group, D).
  cuda::GramBatch rows(const at::Tensor& x, int group) {
    held_.push_back(x);
    cuda::GramBatch batch;
    batch.n = x.size(0);
    batch.heads = s_.kv_heads;
    batch.group = group;
    batch.dim = static_cast<int>(x.size(2));
    batch.rows = x.const_data_ptr();
    batch.stride = x.stride(0);
    return batch;
  }
  void gram(cuda::GramBatch batch, const std::vector<Weighting>& weightings) {
    batch.weightings = static_cast<int>(weightings.size());
    for (size_t i = 0; i < weightings.size(); ++i) {
      const Weighting& w = weightings[i];
      batch.weights[i] = w.weights.defined() ? w.weights.const_data_ptr<float>() : nullptr;
      batch.gram[i] = at(w.second);
      batch.sum[i] = w.first ? at(*w.first) : nullptr;
      batch.total[i] = w.total ? at(*w.total) : nullptr;
    }
    const at::Tensor workspace = bytes(cuda::gram_workspace(batch));
    check(cuda::gram(batch, workspace.mutable_data_ptr(), stream_));
  }
  at::Tensor bytes(int64_t count) const { return at::empty({count}, floats_.dtype(at::kByte)); }

  void scores() {
    const int64_t n = in_.queries.defined() ? in_.queries.numel() : tokens_;
    const at::Tensor of_queries = at::empty({4, s_.q_heads, n}, floats_);
    keys_ = at::zeros({3, s_.kv_heads, tokens_}, floats_.dtype(at::kDouble));
    mass_ = of_queries[0];
    a_ = of_queries[1];
    cuda::ScoreStatsBatch batch;
    batch.tokens = tokens_;
    batch.kv_heads = s_.kv_heads;
    batch.group = s_.group();
    batch.dim = s_.dim_k;
    batch.scale = static_cast<float>(s_.scale);
    batch.sink = in_.windows.sink;
    batch.recent = in_.windows.recent;
    batch.sliding_window = s_.sliding_window;
    batch.q = in_.rows.q.const_data_ptr();
    batch.q_stride = in_.rows.q.stride(0);
    batch.k = in_.rows.k.const_data_ptr();
    batch.k_stride = in_.rows.k.stride(0);
    batch.lse = in_.rows.lse.const_data_ptr<float>();
    batch.lse_stride = tokens_;
    batch.queries = in_.queries.defined() ? in_.queries.const_data_ptr<int32_t>() : nullptr;
    batch.n_queries = n;
    batch.logit_cap = static_cast<float>(s_.logit_cap);
    batch.v = in_.rows.v.const_data_ptr();
    batch.v_stride = in_.rows.v.stride(0);
    batch.o = in_.rows.o.const_data_ptr();
    batch.o_stride = in_.rows.o.stride(0);
    batch.metric = in_.rows.metric.const_data_ptr<float>();
    batch.dim_v = s_.dim_v;
    cuda::ScoreStatsOutputs out;
    out.mass = mass_.mutable_data_ptr<float>();
    out.a = a_.mutable_data_ptr<float>();
    out.sink_mass = of_queries[2].mutable_data_ptr<float>();
    out.entropy = of_queries[3].mutable_data_ptr<float>();
    out.u = keys_[0].mutable_data_ptr<double>();
    out.w = keys_[1].mutable_data_ptr<double>();
    out.x = keys_[2].mutable_data_ptr<double>();
    const at::Tensor workspace = bytes(cuda::score_stats_workspace(batch));
    check(cuda::score_stats(batch, out, workspace.mutable_data_ptr(), stream_));
    const at::Tensor totals = of_queries.narrow(0, 2, 2).view({2, s_.kv_heads, -1}).sum({2}, false, at::kDouble);
    copy(Sum::sink_mass, totals[0]);
    copy(Sum::entropy, totals[1]);
  }

  void stream_power() {
    at::Tensor norm = at::linalg_vector_norm(in_.rows.hidden, 2, {1});  // (T)
    const int64_t begin = in_.windows.sink + in_.windows.recent;
    at::Tensor counts;
    if (in_.queries.defined()) {
      norm = norm.index_select(0, in_.queries);
      counts = in_.queries.ge(begin);
      copy(Sum::stream_queries, counts.sum().expand({s_.kv_heads}));
      norm = at::where(counts, norm, INFINITY);
    } else {
      norm = norm.narrow(0, std::min(begin, tokens_), std::max<int64_t>(0, tokens_ - begin));
      at_sum(Sum::stream_queries).fill_(static_cast<double>(norm.numel()));
    }
    copy(Sum::stream, norm.to(at::kDouble).square_().clamp_min_(1e-30).reciprocal_().sum().expand({s_.kv_heads}));
  }

  at::Tensor at_sum(Sum sum) {
    const auto i = static_cast<size_t>(sum);
    return values_.narrow(0, offsets_[i], offsets_[i + 1] - offsets_[i]);
  }
  void copy(Sum sum, const at::Tensor& value) { at_sum(sum).copy_(value); }

  const TensorSumsInput& in_;
  const LayerShape& s_;
  int64_t tokens_;
  void* stream_;
  at::TensorOptions floats_;
  std::array<int64_t, kSumCount + 1> offsets_;
  at::Tensor values_;
  at::Tensor mass_, a_, keys_;     // (Hq, n), (Hq, n), (3, Hkv, T) u, w, x
  std::vector<at::Tensor> held_;   // rows whose addresses were taken
};

}  // namespace

bool kernels_fit(const TensorSumsInput& in) {
  const auto fits = [](int dim) { return dim % 16 == 0 && dim <= 256; };
  return in.rows.q.scalar_type() == at::kBFloat16 && fits(in.shape.dim_k) && fits(in.shape.dim_v) &&
         has_kernels(in.rows.q.device());
}

TensorSums kernel_sums(const TensorSumsInput& input) {
  return KernelSums(input).run();
}

}  // namespace oscar
