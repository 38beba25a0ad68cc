#include "libdump/shard.h"

#include <algorithm>
#include <numeric>

#include "formats/error.h"
#include "formats/sha256.h"

namespace oscar {

std::string Shard::text() const {
  return fmt::format("{}/{}", index, count);
}

std::vector<Dealt> deal(const SequenceSet& set, int count) {
  if (count < 1) throw invalid("--shard: expected at least 1 worker, found {}", count);
  if (static_cast<size_t>(count) > set.calibration.size() && count > 1)
    throw invalid(
        "--shard: {} workers for {} calibration sequences: use {} workers or fewer, a smaller --seq-len, or "
        "more "
        "text",
        count, set.calibration.size(), set.calibration.size());
  std::vector<Dealt> workers(static_cast<size_t>(count));
  std::vector<int64_t> load(workers.size(), 0);
  const auto hand_out = [&](const std::vector<std::vector<int32_t>>& sequences, auto Dealt::*to) {
    std::vector<size_t> order(sequences.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::greater{}, [&](size_t i) { return sequences[i].size(); });
    for (const size_t i : order) {
      const auto worker = static_cast<size_t>(std::ranges::min_element(load) - load.begin());
      (workers[worker].*to).push_back(static_cast<int64_t>(i));
      load[worker] += static_cast<int64_t>(sequences[i].size());
    }
  };
  hand_out(set.calibration, &Dealt::calibration);
  hand_out(set.probes, &Dealt::probes);
  for (Dealt& worker : workers) {
    std::ranges::sort(worker.calibration);
    std::ranges::sort(worker.probes);
  }
  return workers;
}

SequenceSet share_of(const SequenceSet& set, const Shard& shard) {
  const Dealt own = deal(set, shard.count).at(static_cast<size_t>(shard.index));
  SequenceSet share;
  for (const int64_t id : own.calibration)
    share.calibration.push_back(set.calibration[static_cast<size_t>(id)]);
  for (const int64_t id : own.probes) share.probes.push_back(set.probes[static_cast<size_t>(id)]);
  return share;
}

std::string plan_digest(const SequenceSet& set, const std::vector<Dealt>& dealt, const std::string& options) {
  Sha256 sha;
  sha.update(fmt::format("{}\n{}\n{}\n", digest(set.calibration), digest(set.probes), options));
  for (const Dealt& worker : dealt)
    sha.update(fmt::format("{} | {}\n", fmt::join(worker.calibration, " "), fmt::join(worker.probes, " ")));
  return sha.hex();
}

std::filesystem::path shard_path(const std::filesystem::path& output, const Shard& shard) {
  if (shard.whole()) return output;
  return output.parent_path() / fmt::format("{}.shard-{}-of-{}{}", output.stem().string(), shard.index,
                                            shard.count, output.extension().string());
}

}  // namespace oscar
