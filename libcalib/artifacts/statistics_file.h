// stats.h5, schema "oscar-stats/1" (docs/file-formats.md).
#pragma once
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>

#include "formats/dtype.h"
#include "formats/hdf5.h"
#include "libcalib/statistics.h"

namespace oscar {

// The rows of one calibration sequence: k (T, Hkv, Dk), v (T, Hkv, Dv).
struct SequenceRows {
  int64_t tokens = 0;
  std::vector<float> k, v;
};

// Writes /layers/0007/… as the layers come, the header last. The caller owns atomicity (path of an
// AtomicFile).
class StatisticsWriter {
 public:
  // Rows and probes are stored as `rows_dtype`, F32, BF16 or F16.
  StatisticsWriter(const std::filesystem::path& path, DType rows_dtype);
  ~StatisticsWriter();
  // `probes` by their index in the run; those of 0 tokens (run by other workers) are left out.
  void layer(const LayerStatistics& layer, const std::vector<Probe>& probes);
  // Of a shard: the rows that the second pass (sst-proxy) reads when Sigma_Q of the whole run is known.
  void sequence(const LayerShape& shape, int64_t sequence, int64_t tokens, const float* k, const float* v);
  void finish(const StatisticsHeader& header);

 private:
  std::unique_ptr<Hdf5Writer> file_;
  DType rows_dtype_;
};

// One file as it is: a whole run, one shard of it, or the part of an unfinished run that holds one layer.
class StatisticsFile {
 public:
  explicit StatisticsFile(const std::filesystem::path& path);
  const StatisticsHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return file_.path(); }

  LayerStatistics layer(int id) const;  // sums, their remainders, value metric; rows are left empty
  SampledRows rows(int id) const;       // empty if none are stored
  Probe probe(int id, int index) const;
  bool has_sequence(int id, int64_t sequence) const;
  SequenceRows sequence(int id, int64_t sequence) const;

 private:
  Hdf5Reader file_;
  StatisticsHeader header_;
};

// A run, of one file or of the shards that its workers wrote: the same bits either way, provided that the
// workers' sequences had them (docs/file-formats.md says when). Whole runs of different texts go together
// too.
class StatisticsReader {
 public:
  // Refuses (std::invalid_argument) a shard that is doubled, missing or foreign, of another model, tokenizer,
  // text, plan, windows or schema, and names the files, the field and both values. Shards are read by up to
  // `threads` threads.
  explicit StatisticsReader(const std::vector<std::filesystem::path>& paths, int threads = 1);
  explicit StatisticsReader(const std::filesystem::path& path) : StatisticsReader(std::vector{path}) {}

  const StatisticsHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return files_.front().path(); }  // of the first, for messages
  std::vector<std::filesystem::path> paths() const;

  LayerStatistics layer(int id) const;  // sums, value metric; rows are left empty
  SampledRows rows(int id) const;       // in the order of the run; of several runs one after the other
  Probe probe(int id, int index) const;
  std::vector<std::string> notes() const;  // what a merge could not make exact

 private:
  void add_proxy(LayerSums& sums, int id) const;

  std::deque<StatisticsFile> files_;  // by shard index
  StatisticsHeader header_;
  int threads_;
  bool sharded_ = false;
};

// One layer part of an interrupted dump is a complete little file of the same schema; assemble() makes the
// final file from the parts, in order, byte for byte as an uninterrupted run would have written it.
void assemble(const std::vector<std::filesystem::path>& parts, const StatisticsHeader& header,
              DType rows_dtype, const std::filesystem::path& destination);
// The shards of a run as the one file that a run without workers writes: the same bytes. Atomic.
void write_whole(const StatisticsReader& reader, const std::filesystem::path& destination);

// What a fit reads of a run.
struct MergedStatistics {
  StatisticsHeader header;
  std::map<int, LayerStatistics> layers;
  std::vector<std::string> notes;
};
MergedStatistics read_merged(const std::vector<std::filesystem::path>& paths, int threads = 1);
// StatisticsReader::rows of all files. Not thread-safe.
std::function<SampledRows(int layer)> row_reader(const std::vector<std::filesystem::path>& paths);

}  // namespace oscar
