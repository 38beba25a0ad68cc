// stats.h5, schema "oscar-stats/1" (docs/file-formats.md).
#pragma once
#include <filesystem>
#include <functional>
#include <memory>

#include "formats/dtype.h"
#include "formats/hdf5.h"
#include "libcalib/statistics.h"

namespace oscar {

// Writes /layers/0007/… as the layers come, the header last. The caller owns atomicity (path of an AtomicFile).
class StatisticsWriter {
 public:
  // Rows and probes are stored as `rows_dtype`, F32 or BF16.
  StatisticsWriter(const std::filesystem::path& path, DType rows_dtype);
  ~StatisticsWriter();
  // `probes` in order, may be empty.
  void layer(const LayerStatistics& layer, const std::vector<Probe>& probes);
  void finish(const StatisticsHeader& header);

 private:
  std::unique_ptr<Hdf5Writer> file_;
  DType rows_dtype_;
};

class StatisticsReader {
 public:
  explicit StatisticsReader(const std::filesystem::path& path);
  const StatisticsHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return file_.path(); }

  LayerStatistics layer(int id) const;                    // sums, value metric; rows are left empty
  SampledRows rows(int id) const;                         // empty if none are stored
  Probe probe(int id, int index) const;

 private:
  Hdf5Reader file_;
  StatisticsHeader header_;
};

// One layer part of an interrupted dump is a complete little file of the same schema; assemble() makes the final file
// from the parts, in order, byte for byte as an uninterrupted run would have written it.
void assemble(const std::vector<std::filesystem::path>& parts, const StatisticsHeader& header, DType rows_dtype,
              const std::filesystem::path& destination);

// Sums of several shards of one run. Refuses (std::invalid_argument) a shard that is doubled, missing or foreign: another
// model, tokenizer, rotary parameters, windows or schema; names the field and both values.
struct MergedStatistics {
  StatisticsHeader header;
  std::map<int, LayerStatistics> layers;
  std::vector<std::string> notes;  // e.g. that sst-proxy of merged shards weights each shard by its own Sigma_Q
};
MergedStatistics read_merged(const std::vector<std::filesystem::path>& paths);
// The sampled rows of a layer, of all files one after the other; sequences count from 0 in each. Not thread-safe.
std::function<SampledRows(int layer)> row_reader(const std::vector<std::filesystem::path>& paths);

}  // namespace oscar
