#include <algorithm>
#include <charconv>
#include <numeric>

#include "formats/atomic_write.h"
#include "formats/error.h"
#include "formats/sha256.h"
#include "libcalib/artifacts/provenance_fields.h"
#include "libcalib/artifacts/statistics_file.h"
#include "libcalib/exact_sums.h"
#include "libcalib/proxy.h"

namespace oscar {
namespace {

using Files = std::deque<StatisticsFile>;  // a file cannot be moved

struct Shard {
  int index = 0, count = 1;
};
Shard parse_shard(const StatisticsFile& file) {
  const std::string& text = file.header().provenance.shard;
  Shard shard;
  const char* end = text.data() + text.size();
  const auto [slash, bad] = std::from_chars(text.data(), end, shard.index);
  const bool head = bad == std::errc() && slash != end && *slash == '/';
  const bool whole = head && std::from_chars(slash + 1, end, shard.count).ptr == end;
  if (!whole || shard.count < 1 || shard.index < 0 || shard.index >= shard.count) {
    throw failure("{}: attribute 'shard': expected i/n with 0 <= i < n, found '{}'", file.path().string(),
                  text);
  }
  return shard;
}

[[noreturn]] void refuse(const StatisticsFile& a, const StatisticsFile& b, const std::string& field,
                         const std::string& here, const std::string& there) {
  throw invalid("{} and {} are not of one run: {} is '{}' in the first, '{}' in the second",
                a.path().string(), b.path().string(), field, here, there);
}

void need_same_run(const StatisticsFile& a, const StatisticsFile& b, bool sharded) {
  const auto same = [&](const char* field, const auto& here, const auto& there) {
    if (here != there) refuse(a, b, field, fmt::format("{}", here), fmt::format("{}", there));
  };
  const StatisticsHeader &x = a.header(), &y = b.header();
  for (const auto& field : kProvenanceTexts) {
    if (field.same) same(field.name, x.provenance.*field.value, y.provenance.*field.value);
  }
  same("layers_total", x.provenance.layers_total, y.provenance.layers_total);
  same("window_sink", x.windows.sink, y.windows.sink);
  same("window_recent", x.windows.recent, y.windows.recent);
  same("has_scores", x.has_scores, y.has_scores);
  same("has_output_scores", x.has_output_scores, y.has_output_scores);
  same("number of layers", x.layers.size(), y.layers.size());
  for (size_t i = 0; i < x.layers.size(); ++i) {
    const LayerShape &s = x.layers[i], &t = y.layers[i];
    const auto at = [&](const char* name) { return fmt::format("layer {}: {}", s.layer, name); };
    same("layer id", s.layer, t.layer);
    same(at("q_heads").c_str(), s.q_heads, t.q_heads);
    same(at("kv_heads").c_str(), s.kv_heads, t.kv_heads);
    same(at("dim_k").c_str(), s.dim_k, t.dim_k);
    same(at("dim_v").c_str(), s.dim_v, t.dim_v);
    same(at("scale").c_str(), s.scale, t.scale);
    same(at("sliding_window").c_str(), s.sliding_window, t.sliding_window);
    same(at("logit_cap").c_str(), s.logit_cap, t.logit_cap);
    if (s.sink_logits != t.sink_logits) refuse(a, b, at("sink_logits").c_str(), "of other values", "others");
  }
  if (!sharded) return;
  same("text_digest", x.provenance.text_digest, y.provenance.text_digest);
  same("command", x.provenance.command, y.provenance.command);
  same("shard_plan", x.shard_plan, y.shard_plan);
}

// Where each file belongs: by shard index when the run was sharded. Whole runs ("0/1") of different texts
// merge too.
std::vector<size_t> shard_order(const Files& files) {
  std::vector<Shard> shards;
  for (const auto& file : files) shards.push_back(parse_shard(file));
  const int count = shards[0].count;
  std::string given;
  for (size_t i = 0; i < files.size(); ++i) {
    const StatisticsFile &first = files[0], &file = files[i];
    given += fmt::format("{}{} ({})", i ? ", " : "", file.path().string(), file.header().provenance.shard);
    if (shards[i].count != count) {
      refuse(first, file, "shard", first.header().provenance.shard, file.header().provenance.shard);
    }
    need_same_run(first, file, count > 1);
    for (size_t j = 0; j < i; ++j) {
      const bool twice =
          count > 1 ? shards[i].index == shards[j].index
                    : file.header().provenance.text_digest == files[j].header().provenance.text_digest;
      if (!twice) continue;
      throw invalid(
          "{} and {} are the same shard: shard is '{}' and text_digest '{}' in both; give each file once",
          files[j].path().string(), file.path().string(), file.header().provenance.shard,
          file.header().provenance.text_digest);
    }
  }
  std::vector<size_t> order(files.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (count == 1) return order;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return shards[a].index < shards[b].index; });
  for (int i = 0; i < count; ++i) {
    if (static_cast<size_t>(i) < order.size() && shards[order[static_cast<size_t>(i)]].index == i) continue;
    throw invalid("shard {}/{} is missing: {} of {} files were given: {}", i, count, files.size(), count,
                  given);
  }
  return order;
}

// Every sequence of the run in one shard and no other.
void need_every_sequence(const Files& files) {
  const auto need = [&](const char* what, size_t count, auto ids) {
    std::vector<const StatisticsFile*> owner(count);
    for (const auto& file : files) {
      for (const int64_t id : ids(file.header())) {
        const bool known = id >= 0 && static_cast<size_t>(id) < count;
        if (!known || owner[static_cast<size_t>(id)])
          throw failure("{}: {} {} of {}: {}", file.path().string(), what, id, count,
                        known ? "is in " + owner[static_cast<size_t>(id)]->path().string() + " too"
                              : "the run has none of that number");
        owner[static_cast<size_t>(id)] = &file;
      }
    }
    const auto missing = std::ranges::find(owner, nullptr);
    if (missing != owner.end())
      throw failure("{}: {} {} of {} is in no shard of this run", files[0].path().string(), what,
                    missing - owner.begin(), count);
  };
  const StatisticsHeader& run = files[0].header();
  need("calibration sequence", run.provenance.sequence_lengths.size(),
       [](const auto& h) { return h.shard_sequences; });
  need("probe", run.probe_lengths.size(), [](const auto& h) { return h.shard_probes; });
}

// Whole runs of different texts.
std::string joint_text_digest(const Files& files) {
  Sha256 sha;
  for (const auto& file : files) sha.update(file.header().provenance.text_digest + "\n");
  return sha.hex();
}

// By sequence and position, as one run has them.
SampledRows in_order(const SampledRows& rows) {
  const auto count = static_cast<size_t>(rows.count());
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return std::pair(rows.sequence[i], rows.position[i]); });
  SampledRows out;
  const auto take = [&](auto& to, const auto& from) {
    const size_t width = count ? from.size() / count : 0;
    to.reserve(from.size());
    for (const size_t i : order) {
      const auto begin = from.begin() + static_cast<std::ptrdiff_t>(i * width);
      to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
    }
  };
  take(out.position, rows.position);
  take(out.sequence, rows.sequence);
  take(out.k, rows.k);
  take(out.v, rows.v);
  take(out.u, rows.u);
  take(out.w, rows.w);
  take(out.x, rows.x);
  return out;
}

}  // namespace

StatisticsReader::StatisticsReader(const std::vector<std::filesystem::path>& paths, int threads)
    : threads_(threads) {
  if (paths.empty()) throw invalid("no statistics file was given");
  Files found;
  for (const auto& path : paths) found.emplace_back(path);
  sharded_ = parse_shard(found[0]).count > 1;
  if (found.size() == 1 && !sharded_) {
    files_.swap(found);
    header_ = files_[0].header();
    return;
  }
  for (const size_t i : shard_order(found)) files_.emplace_back(found[i].path());
  if (sharded_) need_every_sequence(files_);

  header_ = files_[0].header();
  Provenance& p = header_.provenance;
  for (size_t i = 1; i < files_.size(); ++i) {
    const Provenance& q = files_[i].header().provenance;
    p.tokens += q.tokens;
    if (!sharded_)
      p.sequence_lengths.insert(p.sequence_lengths.end(), q.sequence_lengths.begin(),
                                q.sequence_lengths.end());
  }
  if (!sharded_) p.text_digest = joint_text_digest(files_);
  p.shard = "0/1";
  header_.memory_plan.clear();
  header_.shard_plan.clear();
  header_.shard_sequences.clear();
  header_.shard_probes.clear();
}

std::vector<std::filesystem::path> StatisticsReader::paths() const {
  std::vector<std::filesystem::path> paths;
  for (const auto& file : files_) paths.push_back(file.path());
  return paths;
}

LayerStatistics StatisticsReader::layer(int id) const {
  LayerStatistics merged = files_[0].layer(id);
  if (files_.size() == 1 && !sharded_) return merged;
  ExactSums exact(merged.sums.shape());
  for (size_t i = 0; i < files_.size(); ++i) {
    const LayerStatistics part = i == 0 ? merged : files_[i].layer(id);
    exact.add(part.sums);
    for (const LayerSums& rest : part.remainders) exact.add(rest);
  }
  merged.sums = exact.rounded();
  merged.remainders.clear();
  if (sharded_) add_proxy(merged.sums, id);
  return merged;
}

void StatisticsReader::add_proxy(LayerSums& sums, int id) const {
  struct Place {
    const StatisticsFile* file;
    int64_t sequence;
  };
  std::vector<Place> places;
  for (const auto& file : files_) {
    for (const int64_t sequence : file.header().shard_sequences) {
      if (file.has_sequence(id, sequence)) places.push_back({&file, sequence});
    }
  }
  if (places.empty()) return;  // a run without this target, whose users say so
  if (places.size() != header_.provenance.sequence_lengths.size())
    throw failure("{}: layer {}: the rows of k and v are there of {} sequences, expected all {} or none",
                  path().string(), id, places.size(), header_.provenance.sequence_lengths.size());
  oscar::add_proxy(sums, static_cast<int64_t>(places.size()), threads_, [&](int64_t i) {
    const Place& at = places[static_cast<size_t>(i)];
    const auto rows = std::make_shared<const SequenceRows>(at.file->sequence(id, at.sequence));
    return RowsOfSequence{rows->tokens, rows->k.data(), rows->v.data(), rows};
  });
}

SampledRows StatisticsReader::rows(int id) const {
  SampledRows all;
  for (const auto& file : files_) all.append(file.rows(id));
  return sharded_ ? in_order(all) : all;
}

Probe StatisticsReader::probe(int id, int index) const {
  for (const auto& file : files_) {
    if (std::ranges::binary_search(file.header().shard_probes, int64_t{index})) return file.probe(id, index);
  }
  return files_[0].probe(id, index);  // of a whole run, or its error
}

std::vector<std::string> StatisticsReader::notes() const {
  if (files_.size() == 1 || sharded_) return {};
  return {fmt::format(
      "{} runs of different texts together: sst-proxy weights the tokens of each by its own Sigma_Q, "
      "every other target is exact, and the probes are those of {}",
      files_.size(), path().string())};
}

void write_whole(const StatisticsReader& reader, const std::filesystem::path& destination) {
  const StatisticsHeader& header = reader.header();
  AtomicFile file(destination);
  StatisticsWriter writer(file.path(), header.provenance.dtype == "bfloat16"  ? DType::BF16
                                       : header.provenance.dtype == "float16" ? DType::F16
                                                                              : DType::F32);
  for (const auto& shape : header.layers) {
    LayerStatistics layer = reader.layer(shape.layer);
    layer.rows = reader.rows(shape.layer);
    std::vector<Probe> probes;
    for (size_t i = 0; i < header.probe_lengths.size(); ++i)
      probes.push_back(reader.probe(shape.layer, static_cast<int>(i)));
    writer.layer(layer, probes);
  }
  writer.finish(header);
  file.commit();
}

MergedStatistics read_merged(const std::vector<std::filesystem::path>& paths, int threads) {
  const StatisticsReader reader(paths, threads);
  MergedStatistics merged{reader.header(), {}, reader.notes()};
  for (const auto& shape : reader.header().layers)
    merged.layers.emplace(shape.layer, reader.layer(shape.layer));
  return merged;
}

std::function<SampledRows(int)> row_reader(const std::vector<std::filesystem::path>& paths) {
  const auto reader = std::make_shared<const StatisticsReader>(paths);
  return [reader](int layer) { return reader->rows(layer); };
}

}  // namespace oscar
