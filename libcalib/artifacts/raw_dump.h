// Raw Q/K/V dumps of serving engines and of other programs that write layer_<number>/{q,k,v}/<chunk>.pt, each
// file a bare tensor (T, heads, D). Lengths of the sequences of a chunk are 1-D int32 in seq_lens/<chunk>.pt,
// of each layer or of all.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>

#include "formats/tensor.h"
#include "libcalib/artifacts/raw_dialects.h"
#include "libcalib/statistics.h"

namespace oscar {

struct RawDump {
  std::filesystem::path directory;      // the one with layer_<number>/
  const RawDialect* dialect = nullptr;  // a row of raw_dialect_table()
  IdSpace id_space = IdSpace::Global;   // what the numbers of the directories were taken for
  std::vector<int> layers;              // ascending global ids
  std::vector<int> numbers;             // of their directories; differ from `layers` only by a layer_map.json
  std::vector<int64_t> chunks;          // numeric order, those that are used; the same in every layer
  DType dtype = DType::BF16;            // of every file
  // Sequences of each chunk, in the order of its rows; they sum to its rows. Positions restart, so nothing is
  // computed across them, nor from one chunk to the next; a prompt that a server ran in pieces counts as
  // several.
  std::vector<std::vector<int64_t>> chunk_lengths;
  std::vector<int64_t> sequence_lengths;  // the same, one chunk after the other
  std::vector<std::string> notes;         // for the user: what was found and why, "warning: …" among them
};
// Of the directory with the layers, or the work directory of the staged pipeline. `id_space` decides what the
// layer numbers mean, against the evidence too; without it, std::invalid_argument with both readings where
// they cannot be told (raw_dialects.h). std::invalid_argument when the directory is no dump,
// std::runtime_error for one that is not whole.
RawDump open_raw_dump(const std::filesystem::path& directory, std::optional<IdSpace> id_space = {});
// Sums that q, k and v alone give (no o, no scores; sst is left to sst-proxy). A dump does not say the scale,
// which is taken as 1 / sqrt(D), nor a sliding window. Files are mapped: memory is a block of rows, however
// long the dump.
LayerStatistics read_raw_layer(const RawDump& dump, int layer);
// Every layer, `threads` at a time; the result does not depend on it. progress(done, total) comes from any
// thread, one at a time; may be empty.
std::map<int, LayerStatistics> read_raw_layers(const RawDump& dump, int threads,
                                               const std::function<void(int64_t, int64_t)>& progress = {});

// Writes one chunk of one layer; values are rounded to `dtype` (BF16, F16 or F32). Files appear whole. Chunk
// 0 is for a warm-up that readers skip: number calibration chunks from 1.
class RawDumpWriter {
 public:
  RawDumpWriter(std::filesystem::path directory, DType dtype);
  void chunk(int layer, int64_t chunk, const LayerShape& shape, const float* q, const float* k,
             const float* v, int64_t tokens);
  void lengths(int64_t chunk, const std::vector<int32_t>& seq_lens);

 private:
  std::filesystem::path directory_;
  DType dtype_;
};

}  // namespace oscar
