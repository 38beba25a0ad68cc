#include "libcalib/artifacts/statistics_file.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "formats/error.h"
#include "libcalib/artifacts/provenance_fields.h"
#include "libcalib/artifacts/statistics_layout.h"

namespace oscar {
namespace {

int64_t need_integer(const Hdf5Reader& file, const std::string& object, const char* name) {
  const auto value = file.integer(object, name);
  if (!value) {
    throw failure("{}: {}: integer attribute '{}' is missing: the file is not complete {}",
                  file.path().string(), object, name, kStatisticsSchema);
  }
  return *value;
}

int need_count(const Hdf5Reader& file, const std::string& object, const char* name, int64_t least) {
  const int64_t value = need_integer(file, object, name);
  if (value < least || value > (1 << 24)) {
    throw failure("{}: {}: attribute '{}': expected {} to {}, found {}", file.path().string(), object, name,
                  least, 1 << 24, value);
  }
  return static_cast<int>(value);
}

Tensor need(const Hdf5Reader& file, const std::string& path, const Shape& shape) {
  if (!file.exists(path)) throw failure("{}: dataset {} is missing", file.path().string(), path);
  Tensor tensor = file.dataset(path);
  if (tensor.shape != shape) {
    throw failure("{}: {}: expected shape {}, found {}", file.path().string(), path, to_string(shape),
                  to_string(tensor.shape));
  }
  return tensor;
}

int64_t leading(const Hdf5Reader& file, const std::string& path) {
  if (!file.exists(path)) throw failure("{}: dataset {} is missing", file.path().string(), path);
  const Shape shape = file.shape(path);
  return shape.empty() ? 0 : shape[0];
}

LayerShape read_shape(const Hdf5Reader& file, const std::string& path) {
  LayerShape shape;
  shape.layer = need_count(file, path, "layer", 0);
  shape.q_heads = need_count(file, path, "q_heads", 1);
  shape.kv_heads = need_count(file, path, "kv_heads", 1);
  shape.dim_k = need_count(file, path, "dim_k", 1);
  shape.dim_v = need_count(file, path, "dim_v", 1);
  shape.sliding_window = need_integer(file, path, "sliding_window");
  const auto scale = file.number(path, "scale");
  if (!scale) throw failure("{}: {}: attribute 'scale' is missing", file.path().string(), path);
  shape.scale = *scale;
  if (path != layer_path(shape.layer))
    throw failure("{}: {}: attribute 'layer' is {}, whose place is {}", file.path().string(), path,
                  shape.layer, layer_path(shape.layer));
  if (shape.q_heads % shape.kv_heads != 0)
    throw failure("{}: {}: expected query heads that are a multiple of the KV heads, found {} and {}",
                  file.path().string(), path, shape.q_heads, shape.kv_heads);
  if (shape.sliding_window < 0 || !(shape.scale > 0) || !std::isfinite(shape.scale))
    throw failure("{}: {}: expected a sliding window of at least 0 and a scale above 0, found {} and {}",
                  file.path().string(), path, shape.sliding_window, shape.scale);
  // Files of models without these, and those written before, lack both.
  shape.logit_cap = file.number(path, "logit_cap").value_or(0);
  if (!(shape.logit_cap >= 0) || !std::isfinite(shape.logit_cap))
    throw failure("{}: {}: attribute 'logit_cap': expected a number of at least 0, found {}",
                  file.path().string(), path, shape.logit_cap);
  if (file.exists(path + "/sink_logits")) {
    shape.sink_logits = need(file, path + "/sink_logits", {shape.q_heads}).floats();
    for (const float logit : shape.sink_logits) {
      if (!std::isfinite(logit))
        throw failure("{}: {}/sink_logits holds {}", file.path().string(), path, logit);
    }
  }
  return shape;
}

std::vector<std::vector<int32_t>> read_probe_ids(const Hdf5Reader& file,
                                                 const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int32_t>> probes;
  if (!file.exists("/probe_ids")) return probes;
  const Tensor all = file.dataset("/probe_ids");
  for (const int64_t length : lengths) {
    if (length < 0) throw failure("{}: /probe_lengths: found {}", file.path().string(), length);
  }
  expect(all, DType::I32, {std::accumulate(lengths.begin(), lengths.end(), int64_t{0})},
         file.path().string() + ": /probe_ids");
  const std::vector<int64_t> ids = all.integers();
  auto from = ids.begin();
  for (const int64_t length : lengths) {
    probes.emplace_back(from, from + length);
    from += length;
  }
  return probes;
}

StatisticsHeader read_header(const Hdf5Reader& file) {
  const std::string where = file.path().string();
  const auto schema = file.text("/", "schema");
  if (!schema || *schema != kStatisticsSchema) {
    throw failure("{}: attribute 'schema': expected {}, found {}: not a statistics file of oscar-dump{}",
                  where, kStatisticsSchema, schema ? *schema : "none", schema ? " of this version" : "");
  }
  StatisticsHeader header;
  Provenance& p = header.provenance;
  for (const auto& field : kProvenanceTexts) p.*field.value = file.text("/", field.name).value_or("");
  p.layers_total = need_count(file, "/", "layers_total", 0);
  p.tokens = need_integer(file, "/", "tokens");
  header.windows.sink = need_integer(file, "/", "window_sink");
  header.windows.recent = need_integer(file, "/", "window_recent");
  header.has_scores = need_integer(file, "/", "has_scores") != 0;
  if (file.exists("/sequence_lengths")) p.sequence_lengths = file.dataset("/sequence_lengths").integers();
  if (file.exists("/probe_lengths")) header.probe_lengths = file.dataset("/probe_lengths").integers();
  header.probe_ids = read_probe_ids(file, header.probe_lengths);
  header.memory_plan = file.text("/", "memory_plan").value_or("");
  header.shard_plan = file.text("/", "shard_plan").value_or("");
  if (file.exists("/shard_sequences")) header.shard_sequences = file.dataset("/shard_sequences").integers();
  if (file.exists("/shard_probes")) header.shard_probes = file.dataset("/shard_probes").integers();
  if (file.exists("/layers")) {
    for (const auto& name : file.children("/layers"))
      header.layers.push_back(read_shape(file, "/layers/" + name));
  }
  std::sort(header.layers.begin(), header.layers.end(),
            [](const auto& a, const auto& b) { return a.layer < b.layer; });
  for (const auto& shape : header.layers) {
    for (const auto& sum : sum_table()) {  // one that is there says that all of them must be
      const bool there =
          of_output(sum.sum) && file.exists(layer_path(shape.layer) + "/" + std::string(sum.name));
      header.has_output_scores = header.has_output_scores || (there && header.has_scores);
    }
  }
  return header;
}

const LayerShape& shape_of(const StatisticsFile& reader, int id) {
  for (const auto& shape : reader.header().layers) {
    if (shape.layer == id) return shape;
  }
  throw invalid("{}: layer {} is not in the file", reader.path().string(), id);
}

}  // namespace

StatisticsFile::StatisticsFile(const std::filesystem::path& path)
    : file_(path), header_(read_header(file_)) {}

LayerStatistics StatisticsFile::layer(int id) const {
  const LayerShape& shape = shape_of(*this, id);
  const std::string path = layer_path(id);
  LayerStatistics layer;
  std::vector<std::pair<Sum, Tensor>> stored;  // before memory is taken for what the attributes claim
  for (const auto& sum : sum_table()) {
    if (of_output(sum.sum) && !header_.has_output_scores) continue;
    const std::string at = path + "/" + std::string(sum.name);
    stored.emplace_back(sum.sum, need(file_, at, sum_shape(sum.kind, shape)));
  }
  layer.sums = LayerSums(shape);
  layer.sums.tokens = need_integer(file_, path, "tokens");
  layer.sums.score_queries = need_integer(file_, path, "score_queries");
  layer.sums.score_tokens = need_integer(file_, path, "score_tokens");
  for (const auto& [sum, tensor] : stored) {
    const auto to = layer.sums.values(sum);
    to_double(tensor.dtype, tensor.bytes.data(), to.size(), to.data());
  }
  for (size_t plane = 0; file_.exists(remainder_path(id, plane)); ++plane) {
    LayerSums& rest = layer.remainders.emplace_back(shape);
    for (const auto& sum : sum_table()) {
      const std::string at = remainder_path(id, plane) + "/" + std::string(sum.name);
      if (!file_.exists(at)) continue;
      const Tensor tensor = need(file_, at, sum_shape(sum.kind, shape));
      const auto to = rest.values(sum.sum);
      to_double(tensor.dtype, tensor.bytes.data(), to.size(), to.data());
    }
  }
  if (file_.exists(path + "/value_metric")) {
    const Tensor tensor = need(file_, path + "/value_metric", {shape.kv_heads, shape.dim_v, shape.dim_v});
    const auto values = tensor.doubles();
    for (int h = 0; h < shape.kv_heads; ++h) {
      layer.value_metric.push_back(
          ConstMatrixMap(values.data() + int64_t{h} * shape.dim_v * shape.dim_v, shape.dim_v, shape.dim_v));
    }
  }
  return layer;
}

SampledRows StatisticsFile::rows(int id) const {
  const LayerShape& s = shape_of(*this, id);
  const std::string path = layer_path(id) + "/rows";
  SampledRows rows;
  if (!file_.exists(path)) return rows;
  const int64_t n = leading(file_, path + "/position");
  rows.position = need(file_, path + "/position", {n}).integers();
  rows.sequence = need(file_, path + "/sequence", {n}).integers();
  rows.k = need(file_, path + "/k", {n, s.kv_heads, s.dim_k}).floats();
  rows.v = need(file_, path + "/v", {n, s.kv_heads, s.dim_v}).floats();
  if (file_.exists(path + "/u")) rows.u = need(file_, path + "/u", {n, s.kv_heads}).floats();
  if (file_.exists(path + "/w")) rows.w = need(file_, path + "/w", {n, s.kv_heads}).floats();
  if (file_.exists(path + "/x")) rows.x = need(file_, path + "/x", {n, s.kv_heads}).floats();
  return rows;
}

Probe StatisticsFile::probe(int id, int index) const {
  const LayerShape& s = shape_of(*this, id);
  const std::string path = probe_path(id, index);
  if (index < 0 || !file_.exists(path)) {
    throw invalid("{}: layer {}: probe {} is not in the file, which has {}", file_.path().string(), id, index,
                  header_.probe_lengths.size());
  }
  Probe probe;
  probe.tokens = leading(file_, path + "/k");
  probe.q = need(file_, path + "/q", {probe.tokens, s.q_heads, s.dim_k}).floats();
  probe.k = need(file_, path + "/k", {probe.tokens, s.kv_heads, s.dim_k}).floats();
  probe.v = need(file_, path + "/v", {probe.tokens, s.kv_heads, s.dim_v}).floats();
  return probe;
}

bool StatisticsFile::has_sequence(int id, int64_t sequence) const {
  return file_.exists(sequence_path(id, sequence) + "/k");
}

SequenceRows StatisticsFile::sequence(int id, int64_t sequence) const {
  const LayerShape& s = shape_of(*this, id);
  const std::string path = sequence_path(id, sequence);
  SequenceRows rows;
  rows.tokens = leading(file_, path + "/k");
  rows.k = need(file_, path + "/k", {rows.tokens, s.kv_heads, s.dim_k}).floats();
  rows.v = need(file_, path + "/v", {rows.tokens, s.kv_heads, s.dim_v}).floats();
  return rows;
}

void assemble(const std::vector<std::filesystem::path>& parts, const StatisticsHeader& header,
              DType rows_dtype, const std::filesystem::path& destination) {
  StatisticsWriter writer(destination, rows_dtype);
  for (const auto& part : parts) {
    const StatisticsFile reader(part);
    for (const auto& shape : reader.header().layers) {
      LayerStatistics layer = reader.layer(shape.layer);
      layer.rows = reader.rows(shape.layer);
      const StatisticsHeader& own = reader.header();
      std::vector<Probe> probes(own.probe_lengths.size());
      for (size_t i = 0; i < probes.size(); ++i) {
        if (own.shard_plan.empty() || std::ranges::binary_search(own.shard_probes, static_cast<int64_t>(i)))
          probes[i] = reader.probe(shape.layer, static_cast<int>(i));
      }
      writer.layer(layer, probes);
      for (const int64_t sequence : own.shard_sequences) {
        if (!reader.has_sequence(shape.layer, sequence)) continue;
        const SequenceRows rows = reader.sequence(shape.layer, sequence);
        writer.sequence(shape, sequence, rows.tokens, rows.k.data(), rows.v.data());
      }
    }
  }
  writer.finish(header);
}

}  // namespace oscar
