// How a transformed row becomes bits and back, exactly as a consumer of the cache does it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

// The trained tables of one KV head's vector codes. The channels of a row are cut, in order, into groups; a
// group of `size` channels is one index of `bits` bits into 2^bits codewords. bits = 0: nothing is stored,
// the one codeword is what the group reads as.
struct CodeGroup {
  int size = 0, bits = 0;
  std::vector<float> words;  // (2^bits, size), as the consumer reads them: after int8 or fp8 rounding
};
struct Codebook {
  std::vector<CodeGroup> groups;
  bool norm = false;             // rows are divided by their RMS, kept as one fp16 a row
  int dim() const;               // sum of sizes
  int64_t payload_bits() const;  // of a row, without the norm
};
// "4x8": every group alike; else the distinct shapes joined, "4x10+4x6", and "-norm" where rows are divided.
std::string shape_name(const Codebook& codebook);

struct CodecOptions {
  int groups = 1;                              // scalar codecs: quantisation groups of a row
  double clip = 0;                             // scalar codecs: ratio; <= 0: off
  std::shared_ptr<const Codebook> codebook{};  // vector codecs
  uint64_t seed = 0;                           // codecs with a random part (qjl)
};

// The packed rows of one KV head. decode() is what the attention kernel calls, tile by tile; it must be
// thread-safe.
class EncodedRows {
 public:
  virtual ~EncodedRows() = default;
  virtual void decode(int64_t first, int64_t count, float* rows) const = 0;  // (count, D)
  virtual size_t bytes() const = 0;  // payload and metadata really held, without tables that all rows share
};

struct CodecInfo {
  std::string_view name;     // "sglang-prefill"
  std::string_view storage;  // what is really held, for a report: "packed INT2"
  int64_t window_multiple;   // sink and recent windows come in multiples of it (a page of the consumer)
  bool clips;                // honours CodecOptions::clip
  std::string_view summary;  // one line for --help
  // n rows of `dim` floats; std::invalid_argument on a dim, group count or codebook that the consumer does
  // not support.
  std::unique_ptr<EncodedRows> (*encode)(const float* rows, int64_t n, int dim, const CodecOptions& options);
  // The same values in double, from the rule itself and not from the packed bytes: the reference of the
  // tests.
  void (*reference)(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded);
};

std::span<const CodecInfo> codec_table();
const CodecInfo& find_codec(std::string_view name);  // std::invalid_argument "unknown codec 'x'; known: …"

}  // namespace oscar
