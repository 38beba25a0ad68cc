// Codecs without a quantiser: rows as they are ("none"), and rounded to bfloat16 ("bf16").
#include <algorithm>

#include "formats/dtype.h"
#include "formats/error.h"
#include "libcalib/codecs/codec.h"

namespace oscar {
namespace {

void check_options(std::string_view codec, int64_t n, int dim, const CodecOptions& options) {
  if (n < 0 || dim < 1) throw invalid("codec {}: {} rows of {} elements", codec, n, dim);
  if (options.groups != 1) {
    throw invalid("codec {}: it has no groups, expected --groups 1, found {}", codec, options.groups);
  }
}

class FloatRows : public EncodedRows {
 public:
  FloatRows(const float* rows, int64_t n, int dim) : rows_(rows, rows + n * dim), dim_(dim) {}
  void decode(int64_t first, int64_t count, float* rows) const override {
    std::copy_n(rows_.begin() + first * dim_, count * dim_, rows);
  }
  size_t bytes() const override { return rows_.size() * sizeof(float); }

 private:
  std::vector<float> rows_;
  int dim_;
};

class Bf16Rows : public EncodedRows {
 public:
  Bf16Rows(const float* rows, int64_t n, int dim) : rows_(static_cast<size_t>(n * dim)), dim_(dim) {
    std::transform(rows, rows + n * dim, rows_.begin(), float_to_bf16);
  }
  void decode(int64_t first, int64_t count, float* rows) const override {
    const auto begin = rows_.begin() + first * dim_;
    std::transform(begin, begin + count * dim_, rows, bf16_to_float);
  }
  size_t bytes() const override { return rows_.size() * sizeof(uint16_t); }

 private:
  std::vector<uint16_t> rows_;
  int dim_;
};

}  // namespace

// A clip ratio is ignored by both: it belongs to the quantiser that they do not have.
namespace none {
std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  check_options("none", n, dim, options);
  return std::make_unique<FloatRows>(rows, n, dim);
}
void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  check_options("none", n, dim, options);
  std::copy_n(rows, n * dim, decoded);
}
}  // namespace none

namespace bf16 {
std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  check_options("bf16", n, dim, options);
  return std::make_unique<Bf16Rows>(rows, n, dim);
}
void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  check_options("bf16", n, dim, options);
  std::transform(rows, rows + n * dim, decoded,
                 [](double x) { return bf16_to_float(float_to_bf16(static_cast<float>(x))); });
}
}  // namespace bf16

}  // namespace oscar
