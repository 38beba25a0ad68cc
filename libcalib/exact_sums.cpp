#include "libcalib/exact_sums.h"

#include <algorithm>
#include <cmath>

#include "formats/error.h"

namespace oscar {
namespace {

// a + b is sum + error exactly. Needs round-to-nearest and no contraction, which the build asks for.
inline void two_sum(double& sum, double& error) {
  const double a = sum, b = error;
  sum = a + b;
  const double taken = sum - a;
  error = (a - (sum - taken)) + (b - taken);
}

// Non-overlapping parts of one number, growing in size.
class Expansion {
 public:
  void add(double x) {
    size_t kept = 0;
    for (double part : parts_) {
      if (std::abs(x) < std::abs(part)) std::swap(x, part);
      two_sum(x, part);
      if (part != 0) parts_[kept++] = part;
    }
    parts_.resize(kept);
    parts_.push_back(x);
  }
  // The nearest double: parts from the largest down until one does not change the total any more; that one
  // decides a tie with the sign of what is below it.
  double rounded() const {
    double total = 0;
    size_t i = parts_.size();
    while (i > 0) {
      double low = parts_[--i];
      two_sum(total, low);
      if (low == 0) continue;
      if (i > 0 && (low < 0) == (parts_[i - 1] < 0) && parts_[i - 1] != 0) {
        const double twice = low * 2, up = total + twice;
        if (up - total == twice) total = up;
      }
      break;
    }
    return total;
  }
  void clear() { parts_.clear(); }

 private:
  std::vector<double> parts_;
};

// The i-th number of a sum. True, with its two parts, when no more than two planes hold it, as is usual.
bool two_parts(const std::vector<LayerSums>& planes, Sum sum, size_t i, double& high, double& low) {
  for (size_t p = 2; p < planes.size(); ++p) {
    if (planes[p].values(sum)[i] != 0) return false;
  }
  high = planes[0].values(sum)[i];
  low = planes.size() > 1 ? planes[1].values(sum)[i] : 0;
  two_sum(high, low);
  return true;
}

}  // namespace

ExactSums::ExactSums(const LayerShape& shape) : shape_(shape) {
  planes_.emplace_back(shape);
}

void ExactSums::add(const LayerSums& sums) {
  if (planes_.empty()) throw std::logic_error("ExactSums: used before it has a shape");
  if (!(sums.shape() == shape_))
    throw invalid("sums cannot be added: layer {} of {} KV heads and layer {} of {} differ in shape",
                  shape_.layer, shape_.kv_heads, sums.shape().layer, sums.shape().kv_heads);
  std::vector<double> carry;
  for (const SumInfo& info : sum_table()) {
    const auto values = sums.values(info.sum);
    carry.assign(values.begin(), values.end());
    for (size_t p = 0; std::ranges::any_of(carry, [](double x) { return x != 0; }); ++p) {
      if (p == planes_.size()) planes_.emplace_back(shape_);
      double* plane = planes_[p].values(info.sum).data();
      for (size_t i = 0; i < carry.size(); ++i) two_sum(plane[i], carry[i]);
    }
  }
  planes_[0].tokens += sums.tokens;
  planes_[0].score_queries += sums.score_queries;
  planes_[0].score_tokens += sums.score_tokens;
}

void ExactSums::add(const ExactSums& other) {
  for (const LayerSums& plane : other.planes_) add(plane);
}

LayerSums ExactSums::rounded() const {
  LayerSums out(shape_);
  out.tokens = planes_.at(0).tokens;
  out.score_queries = planes_[0].score_queries;
  out.score_tokens = planes_[0].score_tokens;
  Expansion number;
  for (const SumInfo& info : sum_table()) {
    const auto to = out.values(info.sum);
    for (size_t i = 0; i < to.size(); ++i) {
      double rest = 0;
      if (two_parts(planes_, info.sum, i, to[i], rest)) continue;
      number.clear();
      for (const LayerSums& plane : planes_) number.add(plane.values(info.sum)[i]);
      to[i] = number.rounded();
    }
  }
  return out;
}

std::vector<LayerSums> ExactSums::remainders() const {
  std::vector<LayerSums> planes;
  Expansion number;
  for (const SumInfo& info : sum_table()) {
    for (size_t i = 0; i < planes_.at(0).values(info.sum).size(); ++i) {
      double high = 0, rest = 0;
      if (two_parts(planes_, info.sum, i, high, rest)) {
        if (rest == 0) continue;
        if (planes.empty()) planes.emplace_back(shape_);
        planes[0].values(info.sum)[i] = rest;
        continue;
      }
      number.clear();
      for (const LayerSums& plane : planes_) number.add(plane.values(info.sum)[i]);
      number.add(-number.rounded());
      for (size_t p = 0;; ++p) {
        const double part = number.rounded();
        if (part == 0) break;
        if (p == planes.size()) planes.emplace_back(shape_);
        planes[p].values(info.sum)[i] = part;
        number.add(-part);
      }
    }
  }
  return planes;
}

}  // namespace oscar
