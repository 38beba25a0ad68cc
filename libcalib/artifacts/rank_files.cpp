#include "libcalib/artifacts/rank_files.h"

#include <algorithm>

#include "formats/error.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using pt_fields::Fields;
using pt_fields::pt;

struct CountField {
  const char* name;
  int RankHeader::*value;
  bool same;  // in every rank of a run
};
constexpr CountField kCounts[] = {
    {"tp_size", &RankHeader::tp_size, true},          {"local_kv_heads", &RankHeader::local_kv_heads, false},
    {"global_kv_heads", &RankHeader::kv_heads, true}, {"global_q_heads", &RankHeader::q_heads, true},
    {"head_dim", &RankHeader::dim_k, true},           {"v_head_dim", &RankHeader::dim_v, true},
};

RankFile read_rank(const fs::path& path) {
  RankFile rank{path, read_pt(path), {}, {}};
  const Fields file(rank.root, path.string());
  RankHeader& header = rank.header;
  header.model_path = file.text("model_path");
  header.prompt_sha256 = file.text("prompt_sha256");
  header.tokens = file.integer("tokens", 1);
  for (const auto& field : kCounts)
    header.*field.value = static_cast<int>(file.integer(field.name, 1, 1 << 24));
  header.tp_rank = static_cast<int>(file.integer("tp_rank", 0, header.tp_size - 1));
  if (header.q_heads % header.kv_heads != 0) {
    throw failure("{}: expected query heads that are a multiple of the KV heads, found {} and {}",
                  path.string(), header.q_heads, header.kv_heads);
  }
  const std::string where = file.where("layers");
  for (const auto& [key, value] : file.need("layers").dict(where).items) {
    const int id = pt_fields::layer_id(key, where);
    if (!rank.layers.emplace(id, &value).second) throw failure("{}: layer {} is there twice", where, id);
  }
  if (rank.layers.empty()) throw failure("{}: no layers", path.string());
  return rank;
}

std::string ids(const RankFile& rank) {
  std::vector<int> all;
  for (const auto& [id, value] : rank.layers) all.push_back(id);
  return fmt::format("{}", fmt::join(all, ", "));
}

void need_same_run(const RankFile& a, const RankFile& b) {
  const auto same = [&](const char* field, const auto& here, const auto& there) {
    if (here == there) return;
    throw invalid("{} and {} are not of one run: {} is '{}' in the first, '{}' in the second",
                  a.path.string(), b.path.string(), field, here, there);
  };
  same("model_path", a.header.model_path, b.header.model_path);
  same("prompt_sha256", a.header.prompt_sha256, b.header.prompt_sha256);
  same("tokens", a.header.tokens, b.header.tokens);
  for (const auto& field : kCounts) {
    if (field.same) same(field.name, a.header.*field.value, b.header.*field.value);
  }
  same("layers", ids(a), ids(b));
}

}  // namespace

Fields RankFile::layer(int id) const {
  return Fields(*layers.at(id), fmt::format("{}: layer {}", path.string(), id));
}

std::vector<RankFile> read_ranks(const std::vector<fs::path>& paths) {
  if (paths.empty()) throw invalid("no file was given");
  std::vector<RankFile> ranks;
  for (const auto& path : paths) {
    ranks.push_back(read_rank(path));
    need_same_run(ranks[0], ranks.back());
  }
  std::ranges::stable_sort(ranks, {}, [](const RankFile& rank) { return rank.header.tp_rank; });
  const int size = ranks[0].header.tp_size;
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (ranks[i].header.tp_rank != ranks[i - 1].header.tp_rank) continue;
    throw invalid("{} and {} are both rank {} of {}: give each file once", ranks[i - 1].path.string(),
                  ranks[i].path.string(), ranks[i].header.tp_rank, size);
  }
  int heads = 0;
  for (int r = 0; r < size; ++r) {
    const auto at = static_cast<size_t>(r);
    if (at >= ranks.size() || ranks[at].header.tp_rank != r) {
      throw invalid("{}: rank {} of {} is missing: {} of {} files were given", ranks[0].path.string(), r,
                    size, ranks.size(), size);
    }
    heads += ranks[at].header.local_kv_heads;
  }
  if (heads != ranks[0].header.kv_heads) {
    throw failure("{}: the ranks have {} KV heads in all, expected global_kv_heads, {}",
                  ranks[0].path.string(), heads, ranks[0].header.kv_heads);
  }
  return ranks;
}

PtDict rank_header(int64_t format_version, const RankHeader& header) {
  PtDict file;
  file.set("format_version", pt(format_version));
  file.set("model_path", pt(header.model_path));
  file.set("model_revision", pt(PtNone{}));
  file.set("prompt_sha256", pt(header.prompt_sha256));
  file.set("tokens", pt(header.tokens));
  file.set("tp_rank", pt(int64_t{header.tp_rank}));
  for (const auto& field : kCounts) file.set(field.name, pt(int64_t{header.*field.value}));
  return file;
}

StatisticsHeader statistics_header(const RankHeader& header, const std::vector<LayerShape>& layers) {
  StatisticsHeader statistics;
  statistics.layers = layers;
  Provenance& p = statistics.provenance;
  p.tool_version = OSCAR_VERSION;
  p.model_name = header.model_path;
  p.text_digest = header.prompt_sha256;
  p.tokens = header.tokens;
  p.layers_total = layers.back().layer + 1;  // at least: the files do not say how many more there are
  return statistics;
}

}  // namespace oscar
