// How a transformed row becomes bits and back, exactly as a consumer of the cache does it.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

struct CodecOptions {
  int groups = 1;   // per row
  double clip = 0;  // ratio; <= 0: off
};

// The packed rows of one KV head. decode() is what the attention kernel calls, tile by tile; it must be
// thread-safe.
class EncodedRows {
 public:
  virtual ~EncodedRows() = default;
  virtual void decode(int64_t first, int64_t count, float* rows) const = 0;  // (count, D)
  virtual size_t bytes() const = 0;  // payload and metadata really held
};

struct CodecInfo {
  std::string_view name;     // "sglang-prefill"
  std::string_view storage;  // what is really held, for a report: "packed INT2"
  int64_t window_multiple;   // sink and recent windows come in multiples of it (a page of the consumer)
  std::string_view summary;  // one line for --help
  // n rows of `dim` floats; std::invalid_argument on a dim or group count that the consumer does not support.
  std::unique_ptr<EncodedRows> (*encode)(const float* rows, int64_t n, int dim, const CodecOptions& options);
  // The same values in double, from the rule itself and not from the packed bytes: the reference of the
  // tests.
  void (*reference)(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded);
};

std::span<const CodecInfo> codec_table();
const CodecInfo& find_codec(std::string_view name);  // std::invalid_argument "unknown codec 'x'; known: …"

}  // namespace oscar
