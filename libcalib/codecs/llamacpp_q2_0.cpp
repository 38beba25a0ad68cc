// The Q2_0 cache type of OSCAR's llama.cpp fork, with its own Hadamard off (LLAMA_KV_NO_HADAMARD=1): the
// rotation is the method's.
//
// A row is cut into vectors of 128 channels, a vector into four blocks of 32:
//   d    fp16        root mean square of the block
//   m    fp16        mean of the whole vector in its first block, 0 in the others
//   qs   8 uint8     2-bit codes, four neighbours a byte, bits 0-1 first
// so 12 bytes a block, 3 bits a channel.
//
// Rule, in float32: the mean is removed from the vector; a clip ratio in (0, 1) clamps it to the
// trunc(ratio 128)-th smallest magnitude that is then left (in float32); code = how many of -0.6745, 0 and
// 0.6745 are at most x / d (0.6745 is the quartile of a normal variable); read back m + d level.
//
// As shipped, levels are +-0.4528 and +-0.9816: the outer Lloyd-Max level would be 1.5104, and 0.9816 its
// threshold. Writing such a row as llama.cpp does loses what llama.cpp loses.
#include <algorithm>
#include <array>
#include <cmath>

#include "formats/dtype.h"
#include "formats/error.h"
#include "libcalib/codecs/int2_rows.h"

namespace oscar::llamacpp_q2_0 {
namespace {

constexpr int kVector = 128, kBlock = 32;
constexpr std::array kLevels = {-0.9816f, -0.4528f, 0.4528f, 0.9816f};
constexpr float kThreshold = 0.6745f;

struct Block {
  uint16_t d, m;  // fp16
  uint8_t codes[kBlock / 4];
};
static_assert(sizeof(Block) == 12);

void check_options(int64_t n, int dim, const CodecOptions& options) {
  check_row_count("llamacpp-q2_0", n);
  if (dim < kVector || dim % kVector != 0) {
    throw invalid(
        "codec llamacpp-q2_0: head dim {}: the fork takes the mean over {} channels of the row of all heads, "
        "which would span heads; expected a multiple of {}",
        dim, kVector, kVector);
  }
  check_one_group("llamacpp-q2_0", options);
  check_clip_ratio("llamacpp-q2_0", options);
}

// Of the sorted magnitudes of a vector; -1: no clipping, as for a ratio of 1.
int clip_index(double ratio) {
  return ratio > 0 && ratio < 1 ? static_cast<int>(static_cast<float>(ratio) * kVector) : -1;
}

void encode_vector(const float* row, int clip, Block* blocks) {
  std::array<float, kVector> x;
  float mean = 0;
  for (int i = 0; i < kVector; ++i) mean += row[i];
  mean /= kVector;
  for (int i = 0; i < kVector; ++i) x[static_cast<size_t>(i)] = row[i] - mean;
  if (clip >= 0) {
    const float tau = nth_magnitude(x.data(), kVector, clip);
    for (float& value : x) value = value < -tau ? -tau : value > tau ? tau : value;
  }
  for (int b = 0; b < kVector / kBlock; ++b) {
    const float* block = x.data() + b * kBlock;
    float squares = 0;
    for (int i = 0; i < kBlock; ++i) squares += block[i] * block[i];
    const float sigma = std::sqrt(squares / kBlock), inverse = sigma > 1e-8f ? 1 / sigma : 0;
    blocks[b] = {.d = float_to_f16(sigma), .m = float_to_f16(b == 0 ? mean : 0), .codes = {}};
    for (int i = 0; i < kBlock; ++i) {
      const float z = block[i] * inverse;
      const int code = (z >= -kThreshold) + (z >= 0) + (z >= kThreshold);
      blocks[b].codes[i / 4] |= static_cast<uint8_t>(code << 2 * (i % 4));
    }
  }
}

class Q2Rows : public EncodedRows {
 public:
  Q2Rows(const float* rows, int64_t n, int dim, int clip)
      : dim_(dim), blocks_(static_cast<size_t>(n * dim / kBlock)) {
    for (int64_t i = 0; i < n * dim; i += kVector) encode_vector(rows + i, clip, blocks_.data() + i / kBlock);
  }
  void decode(int64_t first, int64_t count, float* rows) const override {
    const Block* block = blocks_.data() + first * dim_ / kBlock;
    float mean = 0;
    for (int64_t i = 0; i < count * dim_; i += kBlock, ++block) {
      if (i % kVector == 0) mean = f16_to_float(block->m);
      const float sigma = f16_to_float(block->d);
      for (int j = 0; j < kBlock; ++j) {
        const auto code = static_cast<size_t>(block->codes[j / 4] >> 2 * (j % 4) & 3);
        rows[i + j] = kLevels[code] * sigma + mean;
      }
    }
  }
  size_t bytes() const override { return blocks_.size() * sizeof(Block); }

 private:
  int dim_;
  std::vector<Block> blocks_;  // (n, D/32)
};

}  // namespace

std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  check_options(n, dim, options);
  return std::make_unique<Q2Rows>(rows, n, dim, clip_index(options.clip));
}

void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  check_options(n, dim, options);
  const int clip = clip_index(options.clip);
  std::array<double, kVector> magnitude;
  for (int64_t first = 0; first < n * dim; first += kVector) {
    double mean = 0;
    for (int i = 0; i < kVector; ++i) mean += rows[first + i] / kVector;
    double* x = decoded + first;
    for (int i = 0; i < kVector; ++i) {
      x[i] = rows[first + i] - mean;
      magnitude[static_cast<size_t>(i)] = std::abs(x[i]);
    }
    std::ranges::sort(magnitude);
    const double tau = clip < 0 ? magnitude.back() : magnitude[static_cast<size_t>(clip)];
    for (int i = 0; i < kVector; ++i) x[i] = std::clamp(x[i], -tau, tau);
    const double kept_mean = f16_to_float(float_to_f16(static_cast<float>(mean)));
    for (double* block = x; block < x + kVector; block += kBlock) {
      double squares = 0;
      for (int i = 0; i < kBlock; ++i) squares += block[i] * block[i];
      const double sigma = std::sqrt(squares / kBlock);
      const double kept_sigma = f16_to_float(float_to_f16(static_cast<float>(sigma)));
      for (int i = 0; i < kBlock; ++i) {
        const double z = sigma > 1e-8 ? block[i] / sigma : 0;
        const double level = std::abs(z) < double(kThreshold) || z == -double(kThreshold) ? 0.4528 : 0.9816;
        block[i] = kept_mean + (z < 0 ? -level : level) * kept_sigma;
      }
    }
  }
}

}  // namespace oscar::llamacpp_q2_0
