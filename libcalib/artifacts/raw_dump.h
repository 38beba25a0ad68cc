// Raw Q/K/V dumps in the serving engine's dialect: layer_<global id>/{q,k,v}/<chunk>.pt, each a bare tensor (T, heads, D) in
// the model's dtype, and seq_lens/<chunk>.pt (1-D int32). Chunk 0 is the server's warm-up and is skipped when read.
#pragma once
#include <filesystem>

#include "formats/tensor.h"
#include "libcalib/statistics.h"

namespace oscar {

struct RawDump {
  std::filesystem::path directory;
  std::vector<int> layers;               // ascending, from the directory names
  std::vector<int64_t> chunks;           // numeric order, 0 left out; the same in every layer or std::runtime_error
};
RawDump open_raw_dump(const std::filesystem::path& directory);
// Sums that q, k and v alone give (no o, no scores; sst is left to sst-proxy); sequences of a chunk by seq_lens where present.
LayerStatistics read_raw_layer(const RawDump& dump, int layer);

// Writes one chunk of one layer; values are rounded to `dtype` (BF16, F16 or F32). Files appear whole.
class RawDumpWriter {
 public:
  RawDumpWriter(std::filesystem::path directory, DType dtype);
  void chunk(int layer, int64_t chunk, const LayerShape& shape, const float* q, const float* k, const float* v, int64_t tokens);
  void lengths(int64_t chunk, const std::vector<int32_t>& seq_lens);

 private:
  std::filesystem::path directory_;
  DType dtype_;
};

}  // namespace oscar
