#include <algorithm>

#include "formats/error.h"
#include "libcalib/artifacts/provenance_fields.h"
#include "libcalib/artifacts/statistics_file.h"
#include "libcalib/artifacts/statistics_layout.h"

namespace oscar {
namespace {

std::vector<double> copied(std::span<const double> values) {
  return {values.begin(), values.end()};
}

Tensor stored(DType dtype, Shape shape, std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * info(dtype).size());
  from_float(dtype, values.data(), values.size(), bytes.data());
  return make_tensor(dtype, std::move(shape), std::move(bytes));
}

}  // namespace

StatisticsWriter::StatisticsWriter(const std::filesystem::path& path, DType rows_dtype)
    : file_(std::make_unique<Hdf5Writer>(path)), rows_dtype_(rows_dtype) {
  if (rows_dtype != DType::F32 && rows_dtype != DType::BF16 && rows_dtype != DType::F16) {
    throw invalid("{}: rows are stored as F32, BF16 or F16, not {}", path.string(), info(rows_dtype).name);
  }
}
StatisticsWriter::~StatisticsWriter() = default;

void StatisticsWriter::layer(const LayerStatistics& layer, const std::vector<Probe>& probes) {
  const LayerSums& sums = layer.sums;
  const LayerShape& s = sums.shape();
  const std::string path = layer_path(s.layer);
  for (const auto& sum : sum_table()) {
    file_->dataset(path + "/" + std::string(sum.name),
                   make_tensor(sum_shape(sum.kind, s), copied(sums.values(sum.sum))));
  }
  for (size_t plane = 0; plane < layer.remainders.size(); ++plane) {
    for (const auto& sum : sum_table()) {
      const auto values = layer.remainders[plane].values(sum.sum);
      if (std::ranges::all_of(values, [](double x) { return x == 0; })) continue;
      file_->dataset(remainder_path(s.layer, plane) + "/" + std::string(sum.name),
                     make_tensor(sum_shape(sum.kind, s), copied(values)));
    }
  }
  const std::pair<const char*, int64_t> numbers[] = {{"layer", s.layer},
                                                     {"q_heads", s.q_heads},
                                                     {"kv_heads", s.kv_heads},
                                                     {"dim_k", s.dim_k},
                                                     {"dim_v", s.dim_v},
                                                     {"sliding_window", s.sliding_window},
                                                     {"tokens", sums.tokens},
                                                     {"score_queries", sums.score_queries},
                                                     {"score_tokens", sums.score_tokens}};
  for (const auto& [name, value] : numbers) file_->attribute(path, name, value);
  file_->attribute(path, "scale", s.scale);
  if (s.logit_cap > 0) file_->attribute(path, "logit_cap", s.logit_cap);
  if (!s.sink_logits.empty())
    file_->dataset(path + "/sink_logits",
                   make_tensor<float>({s.q_heads}, std::vector<float>(s.sink_logits)));

  if (!layer.value_metric.empty()) {
    std::vector<double> metric;
    for (const Matrix& g : layer.value_metric) metric.insert(metric.end(), g.data(), g.data() + g.size());
    const int64_t heads = static_cast<int64_t>(layer.value_metric.size());
    file_->dataset(path + "/value_metric", make_tensor({heads, s.dim_v, s.dim_v}, std::move(metric)));
  }
  if (const SampledRows& rows = layer.rows; rows.count() > 0) {
    const int64_t n = rows.count();
    file_->dataset(path + "/rows/position", make_tensor({n}, std::vector<int64_t>(rows.position)));
    file_->dataset(path + "/rows/sequence", make_tensor({n}, std::vector<int64_t>(rows.sequence)));
    file_->dataset(path + "/rows/k", stored(rows_dtype_, {n, s.kv_heads, s.dim_k}, rows.k));
    file_->dataset(path + "/rows/v", stored(rows_dtype_, {n, s.kv_heads, s.dim_v}, rows.v));
    if (!rows.u.empty()) file_->dataset(path + "/rows/u", stored(DType::F32, {n, s.kv_heads}, rows.u));
    if (!rows.w.empty()) file_->dataset(path + "/rows/w", stored(DType::F32, {n, s.kv_heads}, rows.w));
    if (!rows.x.empty()) file_->dataset(path + "/rows/x", stored(DType::F32, {n, s.kv_heads}, rows.x));
  }
  for (size_t i = 0; i < probes.size(); ++i) {
    if (probes[i].tokens == 0) continue;
    const std::string at = probe_path(s.layer, static_cast<int>(i));
    const int64_t t = probes[i].tokens;
    file_->dataset(at + "/q", stored(rows_dtype_, {t, s.q_heads, s.dim_k}, probes[i].q));
    file_->dataset(at + "/k", stored(rows_dtype_, {t, s.kv_heads, s.dim_k}, probes[i].k));
    file_->dataset(at + "/v", stored(rows_dtype_, {t, s.kv_heads, s.dim_v}, probes[i].v));
  }
}

void StatisticsWriter::sequence(const LayerShape& s, int64_t sequence, int64_t tokens, const float* k,
                                const float* v) {
  const std::string at = sequence_path(s.layer, sequence);
  const auto rows = [&](const char* name, const float* from, int64_t dim) {
    const auto size = static_cast<size_t>(tokens * s.kv_heads * dim);
    file_->dataset(at + name, stored(rows_dtype_, {tokens, s.kv_heads, dim}, {from, size}));
  };
  rows("/k", k, s.dim_k);
  rows("/v", v, s.dim_v);
}

void StatisticsWriter::finish(const StatisticsHeader& header) {
  const Provenance& p = header.provenance;
  const auto list = [&](const char* name, const std::vector<int64_t>& values) {
    file_->dataset(name, make_tensor({static_cast<int64_t>(values.size())}, std::vector<int64_t>(values)));
  };
  if (!p.sequence_lengths.empty()) list("/sequence_lengths", p.sequence_lengths);
  if (!header.probe_lengths.empty()) list("/probe_lengths", header.probe_lengths);
  if (!header.probe_ids.empty()) {
    std::vector<int32_t> ids;
    for (const auto& probe : header.probe_ids) ids.insert(ids.end(), probe.begin(), probe.end());
    const auto count = static_cast<int64_t>(ids.size());
    file_->dataset("/probe_ids", make_tensor({count}, std::move(ids)));
  }
  if (!header.shard_plan.empty()) {
    list("/shard_sequences", header.shard_sequences);
    list("/shard_probes", header.shard_probes);
    file_->attribute("/", "shard_plan", header.shard_plan);
  }
  if (!header.memory_plan.empty()) file_->attribute("/", "memory_plan", header.memory_plan);
  file_->attribute("/", "schema", std::string(kStatisticsSchema));
  for (const auto& field : kProvenanceTexts) file_->attribute("/", field.name, p.*field.value);
  file_->attribute("/", "layers_total", int64_t{p.layers_total});
  file_->attribute("/", "tokens", p.tokens);
  file_->attribute("/", "window_sink", header.windows.sink);
  file_->attribute("/", "window_recent", header.windows.recent);
  file_->attribute("/", "has_scores", int64_t{header.has_scores});
  file_->close();
}

}  // namespace oscar
