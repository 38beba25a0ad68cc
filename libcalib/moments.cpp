#include "libcalib/moments.h"

#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "kernels/gram.h"
#include "kernels/quadratic_gram.h"

namespace oscar {
namespace {

constexpr SumInfo kSums[] = {
#define OSCAR_SUM(field, kind, meaning) {Sum::field, #field, SumKind::kind, meaning},
#include "libcalib/moments.def"
#undef OSCAR_SUM
};

int64_t size_of(SumKind kind, const LayerShape& shape) {
  const int64_t dk = shape.dim_k, dv = shape.dim_v;
  switch (kind) {
    case SumKind::MatrixK:
      return dk * dk;
    case SumKind::MatrixV:
      return dv * dv;
    case SumKind::RowK:
      return dk;
    case SumKind::RowV:
      return dv;
    case SumKind::Scalar:
      return 1;
  }
  return 0;
}

int order(SumKind kind, const LayerShape& shape) {
  return kind == SumKind::MatrixK || kind == SumKind::RowK ? shape.dim_k : shape.dim_v;
}

std::string describe(const LayerShape& s) {
  return fmt::format("layer {} with {} query heads, {} KV heads, D {} / {}, scale {}, window {}", s.layer,
                     s.q_heads, s.kv_heads, s.dim_k, s.dim_v, s.scale, s.sliding_window);
}

}  // namespace

std::span<const SumInfo> sum_table() {
  return kSums;
}

int64_t size_of(Sum sum, const LayerShape& shape) {
  return size_of(kSums[static_cast<size_t>(sum)].kind, shape);
}

LayerSums::LayerSums(const LayerShape& shape) : shape_(shape) {
  if (shape.kv_heads < 1 || shape.dim_k < 1 || shape.dim_v < 1 || shape.q_heads < shape.kv_heads ||
      shape.q_heads % shape.kv_heads != 0) {
    throw invalid("sums: {}: query heads must be a multiple of the KV heads and dims positive",
                  describe(shape));
  }
  for (const auto& sum : kSums) {
    const auto size = static_cast<size_t>(size_of(sum.kind, shape) * shape.kv_heads);
    values_[static_cast<size_t>(sum.sum)].assign(size, 0.0);
  }
}

int64_t LayerSums::size_per_head(Sum sum) const {
  return size_of(sum, shape_);
}

MatrixMap LayerSums::matrix(Sum sum, int head) {
  const int d = order(kSums[static_cast<size_t>(sum)].kind, shape_);
  return {values(sum).data() + head * size_per_head(sum), d, d};
}
ConstMatrixMap LayerSums::matrix(Sum sum, int head) const {
  const int d = order(kSums[static_cast<size_t>(sum)].kind, shape_);
  return {values(sum).data() + head * size_per_head(sum), d, d};
}
VectorMap LayerSums::row(Sum sum, int head) {
  return {values(sum).data() + head * size_per_head(sum),
          order(kSums[static_cast<size_t>(sum)].kind, shape_)};
}
ConstVectorMap LayerSums::row(Sum sum, int head) const {
  return {values(sum).data() + head * size_per_head(sum),
          order(kSums[static_cast<size_t>(sum)].kind, shape_)};
}
double& LayerSums::scalar(Sum sum, int head) {
  return values(sum)[static_cast<size_t>(head)];
}
double LayerSums::scalar(Sum sum, int head) const {
  return values(sum)[static_cast<size_t>(head)];
}

void LayerSums::add_rows(const float* q, const float* k, const float* v, const float* o, int64_t n) {
  const int group = shape_.group(), dk = shape_.dim_k, dv = shape_.dim_v;
  const int64_t q_stride = int64_t{shape_.q_heads} * dk, o_stride = int64_t{shape_.q_heads} * dv;
  const int64_t k_stride = int64_t{shape_.kv_heads} * dk, v_stride = int64_t{shape_.kv_heads} * dv;
  for (int h = 0; h < shape_.kv_heads; ++h) {
    const float* kh = k + int64_t{h} * dk;
    const float* vh = v + int64_t{h} * dv;
    for (int j = h * group; j < (h + 1) * group; ++j) {
      add_gram(q + int64_t{j} * dk, q_stride, nullptr, n, dk, matrix(Sum::qq, h).data());
      if (o) add_gram(o + int64_t{j} * dv, o_stride, nullptr, n, dv, matrix(Sum::oo, h).data());
    }
    add_gram(kh, k_stride, nullptr, n, dk, matrix(Sum::kk, h).data());
    add_gram(vh, v_stride, nullptr, n, dv, matrix(Sum::vv, h).data());
    oscar::add_rows(kh, k_stride, nullptr, n, dk, row(Sum::k_sum, h).data());
    oscar::add_rows(vh, v_stride, nullptr, n, dv, row(Sum::v_sum, h).data());
  }
  tokens += n;
}

void LayerSums::add_proxy(const std::vector<Matrix>& sigma_q, const float* k, const float* v, int64_t n) {
  if (sigma_q.size() != static_cast<size_t>(shape_.kv_heads)) {
    throw invalid("sums: layer {}: add_proxy needs one Sigma_Q for each of {} KV heads, got {}", shape_.layer,
                  shape_.kv_heads, sigma_q.size());
  }
  QuadraticGram problem;
  problem.n = n;
  problem.dim_k = shape_.dim_k;
  problem.dim_v = shape_.dim_v;
  problem.k_stride = int64_t{shape_.kv_heads} * shape_.dim_k;
  problem.v_stride = int64_t{shape_.kv_heads} * shape_.dim_v;
  for (int h = 0; h < shape_.kv_heads; ++h) {
    problem.k = k + int64_t{h} * shape_.dim_k;
    problem.v = v + int64_t{h} * shape_.dim_v;
    problem.form = sigma_q[static_cast<size_t>(h)].data();
    add_quadratic_gram(problem, matrix(Sum::vv_proxy, h).data(), &scalar(Sum::proxy_weight, h));
  }
}

void LayerSums::add_scores(const float* q, const float* k, const float* v, int64_t n,
                           const SequenceScores& scores) {
  const auto& queries = scores.queries;
  const int group = shape_.group(), dk = shape_.dim_k, dv = shape_.dim_v;
  const int64_t k_stride = int64_t{shape_.kv_heads} * dk, v_stride = int64_t{shape_.kv_heads} * dv;
  const int64_t counted = static_cast<int64_t>(queries.size());
  bool all = counted == n;
  for (int64_t i = 0; i < counted; ++i) {
    const int32_t t = queries[static_cast<size_t>(i)];
    if (t < 0 || t >= n)
      throw invalid("sums: layer {}: query position {} is outside of {} tokens", shape_.layer, t, n);
    all = all && t == i;
  }
  std::vector<float> rows(all ? 0 : static_cast<size_t>(counted * dk)), weight(static_cast<size_t>(n));
  const auto sum = [](const auto* values, int64_t count) {
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += static_cast<double>(values[i]);
    return total;
  };
  for (int h = 0; h < shape_.kv_heads; ++h) {
    for (int j = h * group; j < (h + 1) * group; ++j) {
      for (int64_t i = 0; i < counted && !all; ++i) {
        const float* from = q + (int64_t{queries[static_cast<size_t>(i)]} * shape_.q_heads + j) * dk;
        std::copy_n(from, dk, rows.data() + i * dk);
      }
      const auto sensitivity = [&](const float* from, Sum total, Sum second) {
        scalar(total, h) += sum(from, counted);
        const float* x = all ? q + int64_t{j} * dk : rows.data();
        add_gram(x, all ? int64_t{shape_.q_heads} * dk : dk, from, counted, dk, matrix(second, h).data());
      };
      sensitivity(scores.mass + j * counted, Sum::mass, Sum::qq_mass);
      if (scores.a) sensitivity(scores.a + j * counted, Sum::out, Sum::qq_out);
      scalar(Sum::entropy, h) += sum(scores.entropy + j * counted, counted);
      scalar(Sum::sink_mass, h) += sum(scores.sink_mass + j * counted, counted);
    }
    const auto importance = [&](const double* from, const float* x_rows, int64_t stride, int d, Sum total,
                                Sum first, Sum second) {
      std::copy_n(from, n, weight.begin());
      scalar(total, h) += sum(from, n);
      oscar::add_rows(x_rows, stride, weight.data(), n, d, row(first, h).data());
      add_gram(x_rows, stride, weight.data(), n, d, matrix(second, h).data());
    };
    const float *kh = k + int64_t{h} * dk, *vh = v + int64_t{h} * dv;
    importance(scores.u + h * n, kh, k_stride, dk, Sum::u, Sum::uk, Sum::ukk);
    importance(scores.w + h * n, vh, v_stride, dv, Sum::w, Sum::wv, Sum::wvv);
    if (scores.x) importance(scores.x + h * n, kh, k_stride, dk, Sum::x, Sum::xk, Sum::xkk);
  }
  score_queries += counted;
  score_tokens += n;
}

void LayerSums::merge(const LayerSums& other) {
  if (!(shape_ == other.shape_)) {
    throw invalid("sums cannot be merged: {} here, {} there", describe(shape_), describe(other.shape_));
  }
  for (size_t i = 0; i < kSumCount; ++i) {
    for (size_t j = 0; j < values_[i].size(); ++j) values_[i][j] += other.values_[i][j];
  }
  tokens += other.tokens;
  score_queries += other.score_queries;
  score_tokens += other.score_tokens;
}

bool LayerSums::finite() const {
  return std::all_of(values_.begin(), values_.end(), [](const std::vector<double>& sum) {
    return std::all_of(sum.begin(), sum.end(), [](double x) { return std::isfinite(x); });
  });
}

}  // namespace oscar
