#include "libcalib/artifacts/statistics_file.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "formats/error.h"
#include "libcalib/artifacts/provenance_fields.h"

namespace oscar {
namespace {

constexpr const char* kSchema = "oscar-stats/1";

std::string layer_path(int id) {
  return fmt::format("/layers/{:04}", id);
}
std::string probe_path(int id, int index) {
  return fmt::format("{}/probes/{}", layer_path(id), index);
}

// Sums that files written before do not have.
bool of_output(Sum sum) {
  return sum == Sum::qq_out || sum == Sum::out || sum == Sum::x || sum == Sum::xk || sum == Sum::xkk ||
         sum == Sum::stream || sum == Sum::stream_queries;
}

Shape sum_shape(SumKind kind, const LayerShape& s) {
  switch (kind) {
    case SumKind::MatrixK:
      return {s.kv_heads, s.dim_k, s.dim_k};
    case SumKind::MatrixV:
      return {s.kv_heads, s.dim_v, s.dim_v};
    case SumKind::RowK:
      return {s.kv_heads, s.dim_k};
    case SumKind::RowV:
      return {s.kv_heads, s.dim_v};
    case SumKind::Scalar:
      return {s.kv_heads};
  }
  return {};
}

Tensor stored(DType dtype, Shape shape, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * info(dtype).size());
  from_float(dtype, values.data(), values.size(), bytes.data());
  return make_tensor(dtype, std::move(shape), std::move(bytes));
}

int64_t need_integer(const Hdf5Reader& file, const std::string& object, const char* name) {
  const auto value = file.integer(object, name);
  if (!value) {
    throw failure("{}: {}: integer attribute '{}' is missing: the file is not complete {}",
                  file.path().string(), object, name, kSchema);
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
  if (!schema || *schema != kSchema) {
    throw failure("{}: attribute 'schema': expected {}, found {}: not a statistics file of oscar-dump{}",
                  where, kSchema, schema ? *schema : "none", schema ? " of this version" : "");
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

const LayerShape& shape_of(const StatisticsReader& reader, int id) {
  for (const auto& shape : reader.header().layers) {
    if (shape.layer == id) return shape;
  }
  throw invalid("{}: layer {} is not in the file", reader.path().string(), id);
}

}  // namespace

StatisticsWriter::StatisticsWriter(const std::filesystem::path& path, DType rows_dtype)
    : file_(std::make_unique<Hdf5Writer>(path)), rows_dtype_(rows_dtype) {
  if (rows_dtype != DType::F32 && rows_dtype != DType::BF16) {
    throw invalid("{}: rows are stored as F32 or BF16, not {}", path.string(), info(rows_dtype).name);
  }
}
StatisticsWriter::~StatisticsWriter() = default;

void StatisticsWriter::layer(const LayerStatistics& layer, const std::vector<Probe>& probes) {
  const LayerSums& sums = layer.sums;
  const LayerShape& s = sums.shape();
  const std::string path = layer_path(s.layer);
  for (const auto& sum : sum_table()) {
    const auto values = sums.values(sum.sum);
    file_->dataset(path + "/" + std::string(sum.name),
                   make_tensor(sum_shape(sum.kind, s), std::vector<double>(values.begin(), values.end())));
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
    file_->dataset(path + "/sink_logits", make_tensor<float>({s.q_heads}, std::vector<float>(s.sink_logits)));

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
    const std::string at = probe_path(s.layer, static_cast<int>(i));
    const int64_t t = probes[i].tokens;
    file_->dataset(at + "/q", stored(rows_dtype_, {t, s.q_heads, s.dim_k}, probes[i].q));
    file_->dataset(at + "/k", stored(rows_dtype_, {t, s.kv_heads, s.dim_k}, probes[i].k));
    file_->dataset(at + "/v", stored(rows_dtype_, {t, s.kv_heads, s.dim_v}, probes[i].v));
  }
}

void StatisticsWriter::finish(const StatisticsHeader& header) {
  const Provenance& p = header.provenance;
  if (!p.sequence_lengths.empty()) {
    file_->dataset("/sequence_lengths", make_tensor({static_cast<int64_t>(p.sequence_lengths.size())},
                                                    std::vector<int64_t>(p.sequence_lengths)));
  }
  if (!header.probe_lengths.empty()) {
    file_->dataset("/probe_lengths", make_tensor({static_cast<int64_t>(header.probe_lengths.size())},
                                                 std::vector<int64_t>(header.probe_lengths)));
  }
  if (!header.probe_ids.empty()) {
    std::vector<int32_t> ids;
    for (const auto& probe : header.probe_ids) ids.insert(ids.end(), probe.begin(), probe.end());
    const auto count = static_cast<int64_t>(ids.size());
    file_->dataset("/probe_ids", make_tensor({count}, std::move(ids)));
  }
  file_->attribute("/", "schema", std::string(kSchema));
  for (const auto& field : kProvenanceTexts) file_->attribute("/", field.name, p.*field.value);
  file_->attribute("/", "layers_total", int64_t{p.layers_total});
  file_->attribute("/", "tokens", p.tokens);
  file_->attribute("/", "window_sink", header.windows.sink);
  file_->attribute("/", "window_recent", header.windows.recent);
  file_->attribute("/", "has_scores", int64_t{header.has_scores});
  file_->close();
}

StatisticsReader::StatisticsReader(const std::filesystem::path& path)
    : file_(path), header_(read_header(file_)) {}

LayerStatistics StatisticsReader::layer(int id) const {
  const LayerShape& shape = shape_of(*this, id);
  const std::string path = layer_path(id);
  LayerStatistics layer;
  layer.sums = LayerSums(shape);
  layer.sums.tokens = need_integer(file_, path, "tokens");
  layer.sums.score_queries = need_integer(file_, path, "score_queries");
  layer.sums.score_tokens = need_integer(file_, path, "score_tokens");
  for (const auto& sum : sum_table()) {
    if (of_output(sum.sum) && !header_.has_output_scores) continue;
    const std::string at = path + "/" + std::string(sum.name);
    const Tensor tensor = need(file_, at, sum_shape(sum.kind, shape));
    const auto to = layer.sums.values(sum.sum);
    to_double(tensor.dtype, tensor.bytes.data(), to.size(), to.data());
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

SampledRows StatisticsReader::rows(int id) const {
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

Probe StatisticsReader::probe(int id, int index) const {
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

void assemble(const std::vector<std::filesystem::path>& parts, const StatisticsHeader& header,
              DType rows_dtype, const std::filesystem::path& destination) {
  StatisticsWriter writer(destination, rows_dtype);
  for (const auto& part : parts) {
    const StatisticsReader reader(part);
    for (const auto& shape : reader.header().layers) {
      LayerStatistics layer = reader.layer(shape.layer);
      layer.rows = reader.rows(shape.layer);
      std::vector<Probe> probes;
      for (size_t i = 0; i < reader.header().probe_lengths.size(); ++i) {
        probes.push_back(reader.probe(shape.layer, static_cast<int>(i)));
      }
      writer.layer(layer, probes);
    }
  }
  writer.finish(header);
}

}  // namespace oscar
