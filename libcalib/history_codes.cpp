#include "libcalib/history_codes.h"

#include <algorithm>
#include <cmath>

namespace oscar {

HistoryCodes::HistoryCodes(const HeadCode& code, const float* rows, int64_t tokens, int dim,
                           const Windows& windows)
    : dim_(dim),
      first_(std::min(windows.sink, tokens)),
      count_(std::max<int64_t>(0, tokens - windows.recent - first_)) {
  const float* history = rows + first_ * dim;
  std::vector<float> centred;
  if (code.transform.mean.size()) {
    const Vector offset = code.transform.offset(dim);
    offset_.assign(offset.begin(), offset.end());
    centred.assign(history, history + count_ * dim);
    shift(centred.data(), count_, -1);
    history = centred.data();
  }
  codes_ = code.codec->encode(history, count_, dim, code.options);
}

void HistoryCodes::shift(float* rows, int64_t count, float sign) const {
  for (int64_t r = 0; r < count; ++r) {
    for (int i = 0; i < dim_; ++i) rows[r * dim_ + i] += sign * offset_[static_cast<size_t>(i)];
  }
}

void HistoryCodes::decode(int64_t first, int64_t count, float* rows) const {
  const int64_t begin = std::clamp(first, first_, first_ + count_);
  const int64_t end = std::clamp(first + count, begin, first_ + count_);
  if (begin == end) {
    std::fill_n(rows, count * dim_, 0.0f);
    return;
  }
  float* coded = rows + (begin - first) * dim_;
  std::fill(rows, coded, 0.0f);
  codes_->decode(begin - first_, end - begin, coded);
  if (!offset_.empty()) shift(coded, end - begin, 1);
  std::fill_n(rows + (end - first) * dim_, (first + count - end) * dim_, 0.0f);
}

CodeRows HistoryCodes::view() const {
  return {[](const void* self, int64_t first, int64_t count, float* rows) {
            static_cast<const HistoryCodes*>(self)->decode(first, count, rows);
          },
          this};
}

void CodeError::add(const CodeError& other) {
  power += other.power;
  error += other.error;
  range += other.range;
  elements += other.elements;
  groups += other.groups;
  bytes += other.bytes;
}

double CodeError::snr() const {
  return 10 * std::log10(power / error);
}

CodeError code_error(const HistoryCodes& codes, const HeadCode& code, const float* rows, int dim) {
  constexpr int64_t kBlock = 256;
  const int groups = code.options.groups, size = dim / groups;
  const Vector offset = code.transform.offset(dim);
  CodeError sum{.bytes = codes.bytes()};
  std::vector<float> exact(static_cast<size_t>(kBlock * dim)), difference(exact.size());
  const int64_t last = codes.first() + codes.count();
  for (int64_t first = codes.first(); first < last; first += kBlock) {
    const int64_t count = std::min(kBlock, last - first);
    std::copy_n(rows + first * dim, count * dim, exact.data());
    codes.decode(first, count, difference.data());
    for (int64_t i = 0; i < count * dim; ++i)
      difference[static_cast<size_t>(i)] = exact[static_cast<size_t>(i)] - difference[static_cast<size_t>(i)];
    for (int64_t i = 0; i < count * dim; i += size) {
      float low = INFINITY, high = -INFINITY;
      for (int64_t j = i; j < i + size; ++j) {
        const float coded = exact[static_cast<size_t>(j)] - static_cast<float>(offset[j % dim]);
        low = std::min(low, coded);
        high = std::max(high, coded);
      }
      sum.range += static_cast<double>(high) - low;
    }
    code.transform.outputs(exact.data(), count, dim);
    code.transform.outputs(difference.data(), count, dim);
    for (int64_t i = 0; i < count * dim; ++i) {
      sum.power += std::pow(static_cast<double>(exact[static_cast<size_t>(i)]), 2);
      sum.error += std::pow(static_cast<double>(difference[static_cast<size_t>(i)]), 2);
    }
    sum.elements += count * dim;
    sum.groups += count * groups;
  }
  return sum;
}

}  // namespace oscar
