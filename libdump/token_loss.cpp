#include "libdump/token_loss.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "libcalib/parallel.h"

namespace oscar {

namespace {

// Positions whose logits are held at once: 32 MiB of them, but enough to make reading the head's matrix
// cheap.
int64_t chunk_of(int vocabulary) {
  return std::max<int64_t>(32, (int64_t{8} << 20) / vocabulary);
}

// The lowest id on a tie.
int64_t top(const at::Tensor& logits) {
  const float* values = logits.const_data_ptr<float>();
  return std::max_element(values, values + logits.numel()) - values;
}

struct Row {
  at::Tensor log_p;  // (V) double
  int64_t top;
};
Row row_of(const at::Tensor& logits, int64_t i) {
  const at::Tensor row = logits.select(0, i);
  return {at::log_softmax(row, 0, at::kDouble), top(row)};
}

}  // namespace

std::vector<TokenLoss> token_losses_by_tensors(const Model& model, std::span<const int32_t> ids,
                                               const at::Tensor& exact, const at::Tensor* other,
                                               int64_t first, const std::function<void(int64_t)>& step) {
  const c10::InferenceMode guard;
  const int64_t tokens = exact.size(0), rows = 8 * chunk_of(model.config().vocabulary);
  const auto column = [](const at::Tensor& values, at::ScalarType type) {
    return values.to(at::kCPU, type).contiguous();
  };
  std::vector<TokenLoss> losses;
  for (int64_t begin = first; begin < tokens; begin += rows) {
    const int64_t n = std::min(rows, tokens - begin);
    const at::Tensor logits = model.logits(exact.narrow(0, begin, n));
    const at::Tensor changed = other ? model.logits(other->narrow(0, begin, n)) : logits;
    const at::Tensor log_q = at::log_softmax(changed, 1, at::kDouble);
    at::Tensor next = at::zeros({n}, at::kLong);  // of the last position: none
    for (int64_t i = 0; i < n && begin + i + 1 < tokens; ++i)
      next.mutable_data_ptr<int64_t>()[i] = ids[static_cast<size_t>(begin + i + 1)];
    const at::Tensor nats =
        column(-log_q.gather(1, next.to(log_q.device()).unsqueeze(1)).squeeze(1), at::kDouble);
    at::Tensor kl, same;
    if (other) {
      const at::Tensor log_p = at::log_softmax(logits, 1, at::kDouble);
      kl = column((log_p.exp() * (log_p - log_q)).sum(1), at::kDouble);
      same = column(logits.argmax(1).eq(changed.argmax(1)), at::kBool);  // argmax: the first of equals
    }
    for (int64_t i = 0; i < n; ++i) {
      TokenLoss loss;
      if (begin + i + 1 < tokens) loss.nats = nats.const_data_ptr<double>()[i];
      if (other) {
        loss.kl = kl.const_data_ptr<double>()[i];
        loss.top1 = same.const_data_ptr<bool>()[i];
      }
      losses.push_back(loss);
    }
    if (step) step(n);
  }
  return losses;
}

std::vector<TokenLoss> token_losses(const Model& model, std::span<const int32_t> ids, const at::Tensor& exact,
                                    const at::Tensor* other, int64_t first, int threads,
                                    const std::function<void(int64_t)>& step) {
  if (!exact.is_cpu()) return token_losses_by_tensors(model, ids, exact, other, first, step);
  const int64_t tokens = exact.size(0), count = std::max<int64_t>(tokens - first, 0);
  const int64_t rows = chunk_of(model.config().vocabulary);
  std::vector<TokenLoss> losses(static_cast<size_t>(count));
  at::set_num_threads(1);  // one chunk a thread
  parallel_for((count + rows - 1) / rows, threads, [&](int64_t chunk) {
    const c10::InferenceMode guard;
    at::init_num_threads();
    const int64_t begin = first + chunk * rows, n = std::min(rows, tokens - begin);
    const at::Tensor logits = model.logits(exact.narrow(0, begin, n));
    const at::Tensor changed = other ? model.logits(other->narrow(0, begin, n)) : at::Tensor();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t t = begin + i;
      TokenLoss& loss = losses[static_cast<size_t>(t - first)];
      const Row p = row_of(logits, i);
      const Row p_changed = other ? row_of(changed, i) : p;
      if (t + 1 < tokens) {
        loss.nats = -p_changed.log_p.const_data_ptr<double>()[ids[static_cast<size_t>(t + 1)]];
      }
      if (!other) continue;
      loss.kl = at::dot(p.log_p.exp(), p.log_p - p_changed.log_p).item<double>();
      loss.top1 = p.top == p_changed.top;
    }
    if (step) step(n);
  });
  return losses;
}

namespace {
struct Sums {
  int64_t count = 0, targets = 0, top1 = 0;
  double nats = 0, kl = 0;
  void add(const TokenLoss& loss, bool target) {
    ++count;
    targets += target;
    top1 += loss.top1;
    nats += loss.nats;
    kl += loss.kl;
  }
  EndToEndFigures figures() const {
    const auto n = static_cast<double>(count);
    return {.perplexity = targets ? std::exp(nats / static_cast<double>(targets))
                                  : std::numeric_limits<double>::quiet_NaN(),
            .token_kl = kl / n,
            .top1 = static_cast<double>(top1) / n};
  }
};
}  // namespace

EndToEndResult summarise(const std::vector<std::vector<TokenLoss>>& losses, int64_t first,
                         const std::vector<int64_t>& edges) {
  Sums all;
  std::vector<Sums> buckets(edges.size() + 1);  // before the first edge, then from each one on
  int64_t longest = 0;
  for (const auto& sequence : losses) {
    const auto count = static_cast<int64_t>(sequence.size());
    longest = std::max(longest, first + count);
    for (int64_t i = 0; i < count; ++i) {
      const auto bucket = std::ranges::upper_bound(edges, first + i) - edges.begin();
      const TokenLoss& loss = sequence[static_cast<size_t>(i)];
      all.add(loss, i + 1 < count);
      buckets[static_cast<size_t>(bucket)].add(loss, i + 1 < count);
    }
  }
  EndToEndResult result{.mean = all.figures()};
  for (size_t b = 0; b < buckets.size(); ++b) {
    if (buckets[b].count == 0) continue;
    result.buckets.push_back({.first = b == 0 ? first : std::max(first, edges[b - 1]),
                              .last = b < edges.size() ? std::min(edges[b], longest) : longest,
                              .count = buckets[b].count,
                              .figures = buckets[b].figures()});
  }
  return result;
}

}  // namespace oscar
