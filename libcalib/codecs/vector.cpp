// Product vector codes: a row is cut into groups of channels, a group is the index of its nearest codeword.
//
//   payload   the indices in the order of the groups, each of its group's bits, least significant bit first;
//             a row is padded to whole bytes
//   norm      one fp16 a row: the root mean square of the row, within what fp16 can hold (2^-24 to 65504).
//             The row is divided, and the words are multiplied, by the rounded value.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/dtype.h"
#include "formats/error.h"
#include "kernels/codebook.h"
#include "libcalib/codecs/vector.h"

namespace oscar::vector_codes {
namespace {

constexpr int kMaxSize = 64, kMaxBits = 16;
constexpr float kMaxWord =
    1e17f;  // of words and rows: the squares of 64 such channels stay within the search's range
constexpr double kMinNorm = 0x1p-24, kMaxNorm = 65504;

uint16_t fp16_norm(double squares, int dim) {
  return float_to_f16(static_cast<float>(std::clamp(std::sqrt(squares / dim), kMinNorm, kMaxNorm)));
}

// Where a group is in a packed row, and where its channels are in an unpacked one.
struct Field {
  int64_t byte;
  int shift;  // 0..7
  uint32_t mask;
  int size, channel;
  const float* words;
};

// The next `count` rows' words of one group; `norms` is nullptr, or one fp16 a row.
template <int kSize>  // 0: any
void read_group(const Field& field, const uint8_t* codes, int64_t row_bytes, int64_t count, int dim,
                float* rows) {
  const int size = kSize ? kSize : field.size;
  float* to = rows + field.channel;
  for (int64_t r = 0; r < count; ++r, to += dim) {
    uint32_t bits;
    std::memcpy(&bits, codes + r * row_bytes + field.byte, sizeof bits);
    const float* word = field.words + static_cast<size_t>(bits >> field.shift & field.mask) * size;
    std::copy_n(word, size, to);
  }
}

class VectorRows : public EncodedRows {
 public:
  VectorRows(const float* rows, int64_t n, int dim, std::shared_ptr<const Codebook> codebook)
      : codebook_(std::move(codebook)), n_(n), dim_(dim), row_bytes_((codebook_->payload_bits() + 7) / 8) {
    int64_t bit = 0;
    for (int channel = 0; const auto& group : codebook_->groups) {
      fields_.push_back({bit / 8, static_cast<int>(bit % 8), (uint32_t{1} << group.bits) - 1, group.size,
                         channel, group.words.data()});
      bit += group.bits;
      channel += group.size;
    }
    codes_.resize(static_cast<size_t>(n * row_bytes_) + kOverread);
    std::vector<float> divided;
    if (codebook_->norm) {
      divided.assign(rows, rows + n * dim);
      divide(divided);
      rows = divided.data();
    }
    search(rows);
  }

  void decode(int64_t first, int64_t count, float* rows) const override {
    // Blocks, so that the groups of a row find it in the cache.
    constexpr int64_t kBlock = 64;
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const int64_t block = std::min(kBlock, count - begin);
      const uint8_t* codes = codes_.data() + (first + begin) * row_bytes_;
      float* to = rows + begin * dim_;
      for (const Field& field : fields_) {
        const auto read = field.size == 1   ? read_group<1>
                          : field.size == 2 ? read_group<2>
                          : field.size == 4 ? read_group<4>
                          : field.size == 8 ? read_group<8>
                                            : read_group<0>;
        read(field, codes, row_bytes_, block, dim_, to);
      }
      for (int64_t r = 0; r < block && codebook_->norm; ++r) {
        const float norm = f16_to_float(norms_[static_cast<size_t>(first + begin + r)]);
        for (int i = 0; i < dim_; ++i) to[r * dim_ + i] *= norm;
      }
    }
  }
  size_t bytes() const override { return codes_.size() - kOverread + norms_.size() * sizeof(uint16_t); }

 private:
  static constexpr size_t kOverread = 3;  // an index is read as four bytes

  void divide(std::vector<float>& rows) {
    norms_.resize(static_cast<size_t>(n_));
    for (int64_t r = 0; r < n_; ++r) {
      float* row = rows.data() + r * dim_;
      double squares = 0;
      for (int i = 0; i < dim_; ++i) squares += double(row[i]) * row[i];
      norms_[static_cast<size_t>(r)] = fp16_norm(squares, dim_);
      const float norm = f16_to_float(norms_[static_cast<size_t>(r)]);
      for (int i = 0; i < dim_; ++i) row[i] /= norm;
    }
  }

  void search(const float* rows) {
    const auto* bad =
        std::find_if(rows, rows + n_ * dim_, [](float x) { return !(std::abs(x) <= kMaxWord); });
    if (bad != rows + n_ * dim_)
      throw failure("codec vector: row {}, channel {}: {} is not a finite number up to {}",
                    (bad - rows) / dim_, (bad - rows) % dim_, *bad, kMaxWord);
    std::vector<uint16_t> index(static_cast<size_t>(n_));
    for (const Field& field : fields_) {
      if (field.mask == 0) continue;
      nearest_codeword(rows + field.channel, dim_, n_, field.size, field.words,
                       static_cast<int>(field.mask + 1), index.data(), 1, nullptr);
      uint8_t* to = codes_.data() + field.byte;
      for (int64_t r = 0; r < n_; ++r, to += row_bytes_) {
        const uint32_t bits = uint32_t{index[static_cast<size_t>(r)]} << field.shift;
        for (int byte = 0; bits >> 8 * byte; ++byte) to[byte] |= static_cast<uint8_t>(bits >> 8 * byte);
      }
    }
  }

  std::shared_ptr<const Codebook> codebook_;
  int64_t n_;
  int dim_;
  int64_t row_bytes_;
  std::vector<Field> fields_;
  std::vector<uint8_t> codes_;   // (n, row_bytes), then kOverread
  std::vector<uint16_t> norms_;  // (n) fp16, or none
};

}  // namespace

void check_options(std::string_view codec, int64_t n, int dim, const CodecOptions& options) {
  if (n < 0) throw invalid("codec {}: {} rows", codec, n);
  if (options.groups != 1) {
    throw invalid("codec {}: its groups are those of the codebook, expected --groups 1, found {}", codec,
                  options.groups);
  }
  if (!options.codebook) throw invalid("codec {}: no codebook: it must be trained first (oscar-fit)", codec);
  const auto& groups = options.codebook->groups;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& [size, bits, words] = groups[i];
    if (size < 1 || size > kMaxSize) {
      throw invalid("codec {}: group {} has {} channels, expected 1 to {}", codec, i, size, kMaxSize);
    }
    if (bits < 0 || bits > kMaxBits) {
      throw invalid("codec {}: group {} has {} bits, expected 0 to {}", codec, i, bits, kMaxBits);
    }
    const size_t expected = (size_t{1} << bits) * static_cast<size_t>(size);
    if (words.size() != expected) {
      throw invalid("codec {}: group {} of {} channels and {} bits has {} numbers, expected {}", codec, i,
                    size, bits, words.size(), expected);
    }
    const auto bad = std::ranges::find_if(words, [](float x) { return !(std::abs(x) <= kMaxWord); });
    if (bad != words.end()) {
      throw invalid("codec {}: group {}, codeword {}: {} is not a finite number up to {}", codec, i,
                    (bad - words.begin()) / size, *bad, kMaxWord);
    }
  }
  if (options.codebook->dim() != dim) {
    throw invalid("codec {}: the groups of the codebook have {} channels in all, the head dim is {}", codec,
                  options.codebook->dim(), dim);
  }
}

std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  check_options("vector", n, dim, options);
  return std::make_unique<VectorRows>(rows, n, dim, options.codebook);
}

void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  check_options("vector", n, dim, options);
  for (int64_t r = 0; r < n; ++r) {
    const double* x = rows + r * dim;
    double* out = decoded + r * dim;
    double norm = 1;
    if (options.codebook->norm) {
      double squares = 0;
      for (int i = 0; i < dim; ++i) squares += x[i] * x[i];
      norm = f16_to_float(fp16_norm(squares, dim));
    }
    for (int channel = 0; const auto& group : options.codebook->groups) {
      const float* nearest = nullptr;
      double least = INFINITY;
      for (const float* word = group.words.data(); word != group.words.data() + group.words.size();
           word += group.size) {
        double distance = 0;
        for (int i = 0; i < group.size; ++i) {
          const double difference = x[channel + i] / norm - word[i];
          distance += difference * difference;
        }
        if (!nearest || distance < least) {
          least = distance;
          nearest = word;
        }
      }
      for (int i = 0; i < group.size; ++i) out[channel + i] = norm * nearest[i];
      channel += group.size;
    }
  }
}

}  // namespace oscar::vector_codes
