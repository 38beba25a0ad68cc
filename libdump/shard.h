// Which of a run's sequences one of several workers runs.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "libdump/sequences.h"

namespace oscar {

struct Shard {
  int index = 0, count = 1;  // 0 <= index < count
  std::string text() const;  // "0/4"
  bool whole() const { return count == 1; }
  bool operator==(const Shard&) const = default;
};

// Ids of calibration sequences and of probes in the run's SequenceSet, ascending.
struct Dealt {
  std::vector<int64_t> calibration, probes;
};
// For each of `count` workers. Calibration sequences, then probes, are dealt longest first (of equal ones the
// lower id first) to the worker with the fewest tokens (of equal ones the lower index). std::invalid_argument
// when there are more workers than calibration sequences.
std::vector<Dealt> deal(const SequenceSet& sequences, int count);

// What worker `shard` runs.
SequenceSet share_of(const SequenceSet& sequences, const Shard& shard);

// SHA-256 of who runs what: the dealt ids, the token ids of text and probes, and `options`, whatever else
// must agree.
std::string plan_digest(const SequenceSet& sequences, const std::vector<Dealt>& dealt,
                        const std::string& options);

// stats.h5 -> stats.shard-0-of-4.h5; the path itself when there is one worker.
std::filesystem::path shard_path(const std::filesystem::path& output, const Shard& shard);

}  // namespace oscar
