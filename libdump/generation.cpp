#include "libdump/generation.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "formats/error.h"
#include "libcalib/history_codes.h"
#include "libcalib/parallel.h"
#include "libdump/layers.h"
#include "libdump/quantised_attention.h"

namespace oscar {

namespace {

// Keys or values of one KV head in the cache's basis: history rows as their codes read, the others exact.
class Rows {
 public:
  Rows(const HeadCode* code, int dim, int64_t capacity)
      : code_(code), dim_(dim), rows_(at::empty({capacity, dim}, at::kFloat)) {}

  void append(const float* rows, int64_t stride, int64_t count, const Windows& windows) {
    transform().rows(rows, stride, count, dim_, at(count_));
    count_ += count;
    // Of the newest query; older ones do not come back.
    const int64_t first = std::max(windows.sink, coded_), last = count_ - windows.recent;
    if (!code_ || last <= first) return;
    HistoryCodes(*code_, at(first), last - first, dim_, {.sink = 0, .recent = 0})
        .decode(0, last - first, at(first));
    coded_ = last;
  }
  at::Tensor from(int64_t first) const { return rows_.slice(0, first, count_); }
  const Transform& transform() const {
    static const Transform identity;
    return code_ ? code_->transform : identity;
  }

 private:
  float* at(int64_t row) { return rows_.mutable_data_ptr<float>() + row * dim_; }

  const HeadCode* code_;  // nullptr: exact
  int dim_;
  int64_t count_ = 0, coded_ = 0;
  at::Tensor rows_;
};

// The cache of one layer of one sequence.
class GrowingCache {
 public:
  GrowingCache(const LayerShape& shape, const CacheCodes* codes, const Windows& windows, int64_t capacity)
      : shape_(shape), codes_(codes), windows_(windows) {
    for (int h = 0; h < shape.kv_heads; ++h) {
      k_.emplace_back(codes ? &codes->k.of(shape.layer, h) : nullptr, shape.dim_k, capacity);
      v_.emplace_back(codes ? &codes->v.of(shape.layer, h) : nullptr, shape.dim_v, capacity);
    }
  }

  // Takes the rows that follow those it has: the prompt, then one token at a time.
  void attend(const AttentionRows& rows, float* o) {
    const int64_t before = tokens_;
    tokens_ += rows.tokens;
    for (int h = 0; h < shape_.kv_heads; ++h) {
      k_[static_cast<size_t>(h)].append(rows.k + h * shape_.dim_k, int64_t{shape_.kv_heads} * shape_.dim_k,
                                        rows.tokens, windows_);
      v_[static_cast<size_t>(h)].append(rows.v + h * shape_.dim_v, int64_t{shape_.kv_heads} * shape_.dim_v,
                                        rows.tokens, windows_);
    }
    if (before > 0) {
      for (int h = 0; h < shape_.kv_heads; ++h) attend_newest(rows.q, h, o);
    } else if (codes_) {
      quantised_attention(*codes_, windows_, rows, o);
    } else {
      const auto exact = causal_attention(rows.q, rows.k, rows.v, rows.tokens, shape_, Precision::Float32);
      std::copy_n(exact.o.const_data_ptr<float>(), exact.o.numel(), o);
    }
  }

 private:
  void attend_newest(const float* q, int head, float* o) const {
    const Rows &k = k_[static_cast<size_t>(head)], &v = v_[static_cast<size_t>(head)];
    const int64_t H = shape_.group();
    const int64_t first = shape_.sliding_window ? std::max<int64_t>(0, tokens_ - shape_.sliding_window) : 0;
    at::Tensor queries = at::empty({H, shape_.dim_k}, at::kFloat);
    k.transform().queries(q + head * H * shape_.dim_k, shape_.dim_k, H, shape_.dim_k,
                          queries.mutable_data_ptr<float>());
    at::Tensor logits = at::mm(queries, k.from(first).t()).mul_(shape_.scale);
    if (shape_.logit_cap > 0) logits.div_(shape_.logit_cap).tanh_().mul_(shape_.logit_cap);
    const int64_t keys = logits.size(1);
    if (!shape_.sink_logits.empty()) {
      const auto of_head =
          std::span(shape_.sink_logits).subspan(static_cast<size_t>(head * H), static_cast<size_t>(H));
      logits =
          at::cat({logits, at::tensor(std::vector<float>(of_head.begin(), of_head.end())).unsqueeze(1)}, 1);
    }
    const at::Tensor p = at::softmax(logits, 1).narrow(1, 0, keys);
    at::Tensor out = at::mm(p, v.from(first));
    v.transform().outputs(out.mutable_data_ptr<float>(), H, shape_.dim_v);
    std::copy_n(out.const_data_ptr<float>(), out.numel(), o + head * H * shape_.dim_v);
  }

  const LayerShape& shape_;
  const CacheCodes* codes_;
  Windows windows_;
  int64_t tokens_ = 0;
  std::vector<Rows> k_, v_;  // by KV head
};

}  // namespace

Generator::Generator(Model& model, int64_t positions, int threads, bool deterministic)
    : model_(model), positions_(positions), threads_(threads), deterministic_(deterministic) {
  if (static_cast<int>(model.config().attention.size()) < model.config().layers)
    throw invalid(
        "{}: {} of its {} layers keep a state instead of a cache, and that is not carried from token to "
        "token here: "
        "nothing is generated; leave --generate out",
        model.config().path, model.config().layers - static_cast<int>(model.config().attention.size()),
        model.config().layers);
  model.reserve_positions(positions);
  const c10::InferenceMode guard;
  for (int layer = 0; layer < model.config().layers; ++layer) layers_.push_back(model.load_layer(layer));
}

std::vector<std::vector<int32_t>> Generator::greedy(const std::vector<std::vector<int32_t>>& prompts,
                                                    int64_t count, const CacheCodes* codes,
                                                    const Windows& windows,
                                                    const std::function<void(int64_t)>& step) const {
  const auto n = static_cast<int64_t>(prompts.size());
  const bool by_sequence = deterministic_ || n >= threads_;  // as Decoder
  at::set_num_threads(by_sequence ? 1 : threads_);
  std::vector<std::vector<int32_t>> out(prompts.size());
  parallel_for(n, by_sequence ? threads_ : 1, [&](int64_t i) {
    const c10::InferenceMode guard;
    at::init_num_threads();
    out[static_cast<size_t>(i)] = greedy_one(prompts[static_cast<size_t>(i)], count, codes, windows, step);
  });
  return out;
}

std::vector<int32_t> Generator::greedy_one(std::span<const int32_t> prompt, int64_t count,
                                           const CacheCodes* codes, const Windows& windows,
                                           const std::function<void(int64_t)>& step) const {
  std::map<int, GrowingCache> caches;
  for (const LayerShape& shape : model_.config().attention)
    caches.try_emplace(shape.layer, shape, codes, windows, positions_);
  std::vector<int32_t> out;
  at::Tensor hidden = model_.embed(prompt);
  for (int64_t position = 0; static_cast<int64_t>(out.size()) < count;) {
    for (const auto& layer : layers_) {
      layer->forward(
          hidden, {},
          [&](const AttentionRows& rows, float* o) { caches.at(rows.shape->layer).attend(rows, o); },
          position);
    }
    position += hidden.size(0);
    const at::Tensor logits = model_.logits(hidden.slice(0, hidden.size(0) - 1));
    const float* values = logits.const_data_ptr<float>();
    out.push_back(static_cast<int32_t>(std::max_element(values, values + logits.numel()) - values));
    hidden = model_.embed(std::span(out).last(1));
    if (step) step(1);
  }
  return out;
}

}  // namespace oscar
