// What the INT2 codecs of the serving engine share: the packed rows, and what its launchers demand of a row.
#pragma once
#include <vector>

#include "libcalib/codecs/codec.h"

namespace oscar {

// Rows in the layout of kernels/int2.h, however their codes were chosen.
class Int2Rows : public EncodedRows {
 public:
  Int2Rows(int64_t n, int dim, int groups);  // all codes 0
  uint8_t* codes(int64_t row) { return codes_.data() + row * dim_ / 4; }
  float* scale_zero(int64_t row) { return scale_zero_.data() + row * 2 * groups_; }
  void decode(int64_t first, int64_t count, float* rows) const override;
  size_t bytes() const override { return codes_.size() + scale_zero_.size() * sizeof(float); }

 private:
  int dim_, groups_;
  std::vector<uint8_t> codes_;     // (n, D/4)
  std::vector<float> scale_zero_;  // (n, 2G)
};

// The same with scale and zero in bfloat16, after codes were chosen by those of `rows`.
class Int2Bf16Rows : public EncodedRows {
 public:
  Int2Bf16Rows(Int2Rows&& rows, int64_t n, int dim, int groups);
  void decode(int64_t first, int64_t count, float* rows) const override;
  size_t bytes() const override { return codes_.size() + scale_zero_.size() * sizeof(uint16_t); }

 private:
  int dim_, groups_;
  std::vector<uint8_t> codes_;        // (n, D/4)
  std::vector<uint16_t> scale_zero_;  // (n, 2G)
};

// std::invalid_argument unless the engine's kernels take such rows: head dims that are powers of two, groups
// that divide them, ratios up to 1.
void check_engine_rows(std::string_view codec, int64_t n, int dim, const CodecOptions& options);
void check_row_count(std::string_view codec, int64_t n);
void check_one_group(std::string_view codec, const CodecOptions& options);
void check_clip_ratio(std::string_view codec, const CodecOptions& options);

// The index-th smallest |x|; a NaN is above infinity.
float nth_magnitude(const float* row, int dim, int index);
double nth_magnitude(const double* row, int dim, int index);

// A row reaches the cache as float32 and is staged in bfloat16.
float round_bf16(float x);

}  // namespace oscar
