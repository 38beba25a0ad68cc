#include "libcalib/history_codes.h"

#include <algorithm>
#include <cmath>

namespace oscar {

HistoryCodes::HistoryCodes(const CodecInfo& codec, const CodecOptions& options, const float* rows,
                           int64_t tokens, int dim, const Windows& windows)
    : dim_(dim),
      first_(std::min(windows.sink, tokens)),
      count_(std::max<int64_t>(0, tokens - windows.recent - first_)),
      codes_(codec.encode(rows + first_ * dim, count_, dim, options)) {}

void HistoryCodes::decode(int64_t first, int64_t count, float* rows) const {
  const int64_t begin = std::clamp(first, first_, first_ + count_);
  const int64_t end = std::clamp(first + count, begin, first_ + count_);
  if (begin == end) {
    std::fill_n(rows, count * dim_, 0.0f);
    return;
  }
  std::fill_n(rows, (begin - first) * dim_, 0.0f);
  codes_->decode(begin - first_, end - begin, rows + (begin - first) * dim_);
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

CodeError code_error(const HistoryCodes& codes, const float* rows, int dim, int groups) {
  constexpr int64_t kBlock = 256;
  const int size = dim / groups;
  CodeError sum{.bytes = codes.bytes()};
  std::vector<float> decoded(static_cast<size_t>(kBlock * dim));
  const int64_t last = codes.first() + codes.count();
  for (int64_t first = codes.first(); first < last; first += kBlock) {
    const int64_t count = std::min(kBlock, last - first);
    codes.decode(first, count, decoded.data());
    const float* exact = rows + first * dim;
    for (int64_t i = 0; i < count * dim; ++i) {
      const double x = exact[i], difference = x - decoded[static_cast<size_t>(i)];
      sum.power += x * x;
      sum.error += difference * difference;
    }
    for (int64_t i = 0; i < count * dim; i += size) {
      const auto [low, high] = std::minmax_element(exact + i, exact + i + size);
      sum.range += static_cast<double>(*high) - *low;
    }
    sum.elements += count * dim;
    sum.groups += count * groups;
  }
  return sum;
}

}  // namespace oscar
