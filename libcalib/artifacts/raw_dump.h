// Raw Q/K/V dumps in the serving engine's dialect: layer_<global id>/{q,k,v}/<chunk>.pt, each a bare tensor (T, heads, D) in
// the model's dtype, and seq_lens/<chunk>.pt (1-D int32). Chunk 0 is the server's warm-up and is skipped when read.
// Dumps that number the layers with attention 0, 1, … carry a layer_map.json {"local_to_global": [ids]}, which is followed.
#pragma once
#include <filesystem>
#include <functional>

#include "formats/tensor.h"
#include "libcalib/statistics.h"

namespace oscar {

struct RawDump {
  std::filesystem::path directory;
  std::vector<int> layers;               // ascending global ids
  std::vector<int> numbers;              // of their directories; differ from `layers` only by a layer_map.json
  std::vector<int64_t> chunks;           // numeric order, 0 left out; the same in every layer or std::runtime_error
  std::vector<int64_t> sequence_lengths; // from seq_lens/, in chunk order; empty when a chunk has none
};
// std::invalid_argument when the directory is no dump, std::runtime_error for one that is not whole.
RawDump open_raw_dump(const std::filesystem::path& directory);
// Sums that q, k and v alone give (no o, no scores; sst is left to sst-proxy). A dump does not say the scale, which is taken
// as 1 / sqrt(D), nor a sliding window. Files are mapped: memory is a block of rows, however long the dump.
LayerStatistics read_raw_layer(const RawDump& dump, int layer);
// Every layer, `threads` at a time; the result does not depend on it. progress(done, total) comes from any thread, one at a
// time; may be empty.
std::map<int, LayerStatistics> read_raw_layers(const RawDump& dump, int threads,
                                               const std::function<void(int64_t, int64_t)>& progress = {});

// Writes one chunk of one layer; values are rounded to `dtype` (BF16, F16 or F32). Files appear whole. Chunk 0 is for a
// warm-up that readers skip: number calibration chunks from 1.
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
