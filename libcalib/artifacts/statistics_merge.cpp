#include <algorithm>
#include <charconv>
#include <deque>
#include <numeric>

#include "formats/error.h"
#include "formats/sha256.h"
#include "libcalib/artifacts/provenance_fields.h"
#include "libcalib/artifacts/statistics_file.h"

namespace oscar {
namespace {

using Readers = std::deque<StatisticsReader>;  // a reader cannot be moved

struct Shard {
  int index = 0, count = 1;
};
Shard parse_shard(const StatisticsReader& reader) {
  const std::string& text = reader.header().provenance.shard;
  Shard shard;
  const char* end = text.data() + text.size();
  const auto [slash, bad] = std::from_chars(text.data(), end, shard.index);
  const bool head = bad == std::errc() && slash != end && *slash == '/';
  const bool whole = head && std::from_chars(slash + 1, end, shard.count).ptr == end;
  if (!whole || shard.count < 1 || shard.index < 0 || shard.index >= shard.count) {
    throw failure("{}: attribute 'shard': expected i/n with 0 <= i < n, found '{}'", reader.path().string(),
                  text);
  }
  return shard;
}

[[noreturn]] void refuse(const StatisticsReader& a, const StatisticsReader& b, const std::string& field,
                         const std::string& here, const std::string& there) {
  throw invalid("{} and {} are not of one run: {} is '{}' in the first, '{}' in the second",
                a.path().string(), b.path().string(), field, here, there);
}

void need_same_run(const StatisticsReader& a, const StatisticsReader& b) {
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
}

// Where each file belongs: by shard index when the run was sharded. Whole runs ("0/1") of different texts
// merge too.
std::vector<size_t> shard_order(const Readers& readers) {
  std::vector<Shard> shards;
  for (const auto& reader : readers) shards.push_back(parse_shard(reader));
  const int count = shards[0].count;
  for (size_t i = 0; i < readers.size(); ++i) {
    const StatisticsReader &first = readers[0], &reader = readers[i];
    if (shards[i].count != count) {
      refuse(first, reader, "shard", first.header().provenance.shard, reader.header().provenance.shard);
    }
    need_same_run(first, reader);
    for (size_t j = 0; j < i; ++j) {
      const bool twice =
          count > 1 ? shards[i].index == shards[j].index
                    : reader.header().provenance.text_digest == readers[j].header().provenance.text_digest;
      if (!twice) continue;
      throw invalid(
          "{} and {} are the same shard: shard is '{}' and text_digest '{}' in both; give each file once",
          readers[j].path().string(), reader.path().string(), reader.header().provenance.shard,
          reader.header().provenance.text_digest);
    }
  }
  std::vector<size_t> order(readers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (count == 1) return order;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return shards[a].index < shards[b].index; });
  for (int i = 0; i < count; ++i) {
    if (static_cast<size_t>(i) < order.size() && shards[order[static_cast<size_t>(i)]].index == i) continue;
    throw invalid("shard {}/{} is missing: {} of {} files were given", i, count, readers.size(), count);
  }
  return order;
}

// Files of one sharded run may all carry the digest of the whole text, or each that of its own sequences.
std::string joint_text_digest(const Readers& readers,
                              const std::vector<size_t>& order) {
  const std::string& first = readers[order[0]].header().provenance.text_digest;
  Sha256 sha;
  bool one = true;
  for (const size_t i : order) {
    const std::string& digest = readers[i].header().provenance.text_digest;
    one = one && digest == first;
    sha.update(digest + "\n");
  }
  return one ? first : sha.hex();
}

}  // namespace

MergedStatistics read_merged(const std::vector<std::filesystem::path>& paths) {
  if (paths.empty()) throw invalid("no statistics file was given");
  Readers readers;
  for (const auto& path : paths) readers.emplace_back(path);
  std::vector<size_t> order(readers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (readers.size() > 1 || parse_shard(readers[0]).count > 1) order = shard_order(readers);

  MergedStatistics merged;
  merged.header = readers[order[0]].header();
  Provenance& p = merged.header.provenance;
  for (size_t i = 0; i < order.size(); ++i) {
    const StatisticsReader& reader = readers[order[i]];
    const Provenance& q = reader.header().provenance;
    for (const auto& shape : reader.header().layers) {
      LayerStatistics layer = reader.layer(shape.layer);
      if (i == 0) {
        merged.layers.emplace(shape.layer, std::move(layer));
      } else {
        merged.layers.at(shape.layer).sums.merge(layer.sums);
      }
    }
    if (i == 0) continue;
    p.tokens += q.tokens;
    p.sequence_lengths.insert(p.sequence_lengths.end(), q.sequence_lengths.begin(), q.sequence_lengths.end());
  }
  if (order.size() > 1) {
    p.text_digest = joint_text_digest(readers, order);
    p.shard = "0/1";
    merged.notes.push_back(
        fmt::format("{} files merged: sst-proxy weights the tokens of each by its own Sigma_Q, every other "
                    "target is exact",
                    order.size()));
  }
  return merged;
}

std::function<SampledRows(int)> row_reader(const std::vector<std::filesystem::path>& paths) {
  auto readers = std::make_shared<Readers>();
  for (const auto& path : paths) readers->emplace_back(path);
  return [readers](int layer) {
    SampledRows all;
    for (const auto& reader : *readers) {
      const SampledRows rows = reader.rows(layer);
      const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
      append(all.position, rows.position);
      append(all.sequence, rows.sequence);
      append(all.k, rows.k);
      append(all.v, rows.v);
      append(all.u, rows.u);
      append(all.w, rows.w);
      append(all.x, rows.x);
    }
    return all;
  };
}

}  // namespace oscar
