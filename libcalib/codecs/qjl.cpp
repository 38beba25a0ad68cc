// Vector codes and one bit a channel for what they leave: TurboQuant's keys (arXiv 2504.19874, algorithm 2).
//
// S is a (D, D) matrix of independent normal numbers, made from `seed`. With y the row as its vector code
// reads it, and e = x - y:
//
//   signs   (ceil(D / 8)) uint8 a row: bit i of byte b is whether row 8b + i of S has a product >= 0 with e
//   norm    one fp16 a row: |e|
//
// Read back: y + sqrt(pi / 2) / D |e| S^T signs (as -1 and 1), whose product with any q is q.x in the mean
// over S.
#include <cmath>
#include <numbers>

#include "libcalib/codecs/affine.h"
#include "libcalib/codecs/vector.h"
#include "libcalib/gaussian.h"

namespace oscar::qjl {
namespace {

std::vector<float> sketch(uint64_t seed, int dim) {
  GaussianSource source(seed);
  std::vector<float> s(static_cast<size_t>(dim) * static_cast<size_t>(dim));
  for (auto& x : s) x = static_cast<float>(source());
  return s;
}

double factor(int dim) {
  return std::sqrt(std::numbers::pi / 2) / dim;
}

template <typename Float>
double dot(const float* s, const Float* x, int dim) {
  double sum = 0;
  for (int i = 0; i < dim; ++i) sum += double(s[i]) * x[i];
  return sum;
}

class QjlRows : public EncodedRows {
 public:
  QjlRows(const float* rows, int64_t n, int dim, const CodecOptions& options)
      : vectors_(vector_codes::encode(rows, n, dim, options)),
        dim_(dim),
        sign_bytes_((dim + 7) / 8),
        sketch_(sketch(options.seed, dim)),
        signs_(static_cast<size_t>(n * sign_bytes_)),
        norms_(static_cast<size_t>(n)) {
    std::vector<float> rest(static_cast<size_t>(dim));
    for (int64_t r = 0; r < n; ++r) {
      vectors_->decode(r, 1, rest.data());
      std::transform(rows + r * dim, rows + (r + 1) * dim, rest.begin(), rest.begin(), std::minus{});
      double squares = 0;
      for (const float x : rest) squares += double(x) * x;
      norms_[static_cast<size_t>(r)] = finite_f16(std::sqrt(squares));
      for (int i = 0; i < dim; ++i) {
        const bool positive = dot(row(i), rest.data(), dim) >= 0;
        signs_[static_cast<size_t>(r * sign_bytes_ + i / 8)] |= static_cast<uint8_t>(positive << i % 8);
      }
    }
  }

  void decode(int64_t first, int64_t count, float* rows) const override {
    vectors_->decode(first, count, rows);
    std::vector<float> sum(static_cast<size_t>(dim_));
    for (int64_t r = first; r < first + count; ++r, rows += dim_) {
      std::ranges::fill(sum, 0.0f);
      for (int i = 0; i < dim_; ++i) {
        const bool positive = signs_[static_cast<size_t>(r * sign_bytes_ + i / 8)] >> i % 8 & 1;
        const float sign = positive ? 1.0f : -1.0f, *s = row(i);
        for (int j = 0; j < dim_; ++j) sum[static_cast<size_t>(j)] += sign * s[j];
      }
      const auto scale = static_cast<float>(factor(dim_) * f16_to_float(norms_[static_cast<size_t>(r)]));
      for (int j = 0; j < dim_; ++j) rows[j] += scale * sum[static_cast<size_t>(j)];
    }
  }
  size_t bytes() const override {
    return vectors_->bytes() + signs_.size() + norms_.size() * sizeof(uint16_t);
  }

 private:
  const float* row(int i) const { return sketch_.data() + int64_t{i} * dim_; }

  std::unique_ptr<EncodedRows> vectors_;
  int dim_, sign_bytes_;
  std::vector<float> sketch_;  // (D, D), made from the seed and so not counted
  std::vector<uint8_t> signs_;
  std::vector<uint16_t> norms_;  // fp16
};

}  // namespace

std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  vector_codes::check_options("qjl", n, dim, options);
  return std::make_unique<QjlRows>(rows, n, dim, options);
}

void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  vector_codes::check_options("qjl", n, dim, options);
  vector_codes::reference(rows, n, dim, options, decoded);
  const std::vector<float> s = sketch(options.seed, dim);
  std::vector<double> rest(static_cast<size_t>(dim));
  for (int64_t r = 0; r < n; ++r, rows += dim, decoded += dim) {
    std::transform(rows, rows + dim, decoded, rest.begin(), std::minus{});
    double squares = 0;
    for (const double x : rest) squares += x * x;
    const double scale = factor(dim) * f16_to_float(finite_f16(std::sqrt(squares)));
    for (int i = 0; i < dim; ++i) {
      const float* row = s.data() + int64_t{i} * dim;
      const double sign = dot(row, rest.data(), dim) >= 0 ? 1 : -1;
      for (int j = 0; j < dim; ++j) decoded[j] += scale * sign * row[j];
    }
  }
}

}  // namespace oscar::qjl
