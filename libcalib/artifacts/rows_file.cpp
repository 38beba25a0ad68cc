#include "libcalib/artifacts/rows_file.h"

#include <limits>

#include "formats/error.h"
#include "libcalib/artifacts/rank_files.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using pt_fields::Fields;
using pt_fields::pt;

constexpr int64_t kVersion = 1;

int64_t samples_of(int64_t tokens, int64_t stride) {
  return (tokens + stride - 1) / stride;
}

bool is_row_type(DType dtype) {
  return dtype == DType::BF16 || dtype == DType::F16 || dtype == DType::F32;
}

// (T, heads, D) of several ranks side by side.
Tensor side_by_side(const std::vector<Tensor>& parts, const std::string& where) {
  if (parts.size() == 1) return parts[0];
  Shape shape = parts[0].shape;
  shape[1] = 0;
  for (const Tensor& part : parts) {
    if (part.dtype != parts[0].dtype || part.shape[0] != shape[0]) {
      throw failure("{}: {} {} in one rank, {} {} in another", where, info(parts[0].dtype).name,
                    to_string(parts[0].shape), info(part.dtype).name, to_string(part.shape));
    }
    shape[1] += part.shape[1];
  }
  std::vector<std::byte> bytes;
  for (int64_t t = 0; t < shape[0]; ++t) {
    for (const Tensor& part : parts) {
      const auto row = part.bytes.size() / static_cast<size_t>(shape[0]);
      const auto from = part.bytes.subspan(static_cast<size_t>(t) * row, row);
      bytes.insert(bytes.end(), from.begin(), from.end());
    }
  }
  return make_tensor(parts[0].dtype, std::move(shape), std::move(bytes));
}

std::vector<int32_t> positions_of(const Fields& layer, int64_t tokens) {
  const Tensor& tensor = layer.need("positions").tensor(layer.where("positions"));
  if (tensor.dtype != DType::I32 && tensor.dtype != DType::I64)
    throw failure("{}: positions: expected I32, found {}", layer.where(), info(tensor.dtype).name);
  if (tensor.shape != Shape{tokens})
    throw failure("{}: positions: expected {}, found {}", layer.where(), to_string({tokens}),
                  to_string(tensor.shape));
  std::vector<int32_t> positions;
  for (const int64_t position : tensor.integers()) {
    if (position < 0 || position > std::numeric_limits<int32_t>::max())
      throw failure("{}: positions: {} is none", layer.where(), position);
    positions.push_back(static_cast<int32_t>(position));
  }
  return positions;
}

RowsLayer read_layer(const std::vector<RankFile>& ranks, int id, const RowsFile& rows) {
  std::vector<Tensor> k, v, q;
  RowsLayer result;
  int kv_heads = 0;
  for (const RankFile& rank : ranks) {
    const Fields layer = rank.layer(id);
    const int heads = rank.header.local_kv_heads, group = rows.q_heads / rows.kv_heads;
    const auto rows_of = [&](const char* name, int64_t count, int64_t width, int dim) {
      const Tensor& tensor = layer.floats(name, {count, width, dim});
      if (!is_row_type(tensor.dtype))
        throw failure("{}: {}: expected BF16, F16 or F32, found F64", layer.where(), name);
      return tensor;
    };
    k.push_back(rows_of("k", rows.tokens, heads, rows.dim_k));
    v.push_back(rows_of("v", rows.tokens, heads, rows.dim_v));
    q.push_back(rows_of("q_samples", samples_of(rows.tokens, rows.q_sample_stride), int64_t{heads} * group,
                        rows.dim_k));
    auto positions = positions_of(layer, rows.tokens);
    if (&rank != &ranks[0] && positions != result.positions)
      throw failure("{}: positions are not those of rank 0", layer.where());
    result.positions = std::move(positions);
    if (&rank == &ranks[0]) result.scale = layer.number("q_scaling");
    const Fields file(rank.root, rank.path.string());
    if (file.find("q_head_offset")) file.integer("q_head_offset", kv_heads * group, kv_heads * group);
    kv_heads += heads;
  }
  const auto where = [&](const char* name) { return ranks[0].layer(id).where(name); };
  result.k = side_by_side(k, where("k"));
  result.v = side_by_side(v, where("v"));
  result.q_samples = side_by_side(q, where("q_samples"));
  return result;
}

}  // namespace

std::string rows_file_name(int rank) {
  return fmt::format("oscar_rows_rank{}.pt", rank);
}

void check(const RowsFile& rows, const std::string& where) {
  if (rows.layers.empty() || rows.tokens < 1 || rows.q_sample_stride < 1 || rows.kv_heads < 1 ||
      rows.q_heads % rows.kv_heads != 0) {
    throw invalid("{}: {} layers, {} tokens, a stride of {}, {} query and {} KV heads are no rows", where,
                  rows.layers.size(), rows.tokens, rows.q_sample_stride, rows.q_heads, rows.kv_heads);
  }
  for (const auto& [id, layer] : rows.layers) {
    const auto need = [&, id = id](const char* name, const Tensor& found, const Shape& shape, bool any_type) {
      if (found.shape == shape && (any_type ? is_row_type(found.dtype) : found.dtype == DType::F32)) return;
      throw invalid("{}: layer {}: {}: expected {} {}, found {} {}", where, id, name,
                    any_type ? "BF16, F16 or F32" : "F32", to_string(shape), info(found.dtype).name,
                    to_string(found.shape));
    };
    need("k", layer.k, {rows.tokens, rows.kv_heads, rows.dim_k}, true);
    need("v", layer.v, {rows.tokens, rows.kv_heads, rows.dim_v}, true);
    need("q_samples", layer.q_samples,
         {samples_of(rows.tokens, rows.q_sample_stride), rows.q_heads, rows.dim_k}, false);
    if (static_cast<int64_t>(layer.positions.size()) != rows.tokens)
      throw invalid("{}: layer {}: positions: expected {}, found {}", where, id, rows.tokens,
                    layer.positions.size());
  }
}

RowsFile read_rows(const std::vector<fs::path>& paths) {
  const std::vector<RankFile> ranks = read_ranks(paths);
  const RankHeader& header = ranks[0].header;
  RowsFile rows{.model_path = header.model_path,
                .prompt_sha256 = header.prompt_sha256,
                .tokens = header.tokens,
                .q_heads = header.q_heads,
                .kv_heads = header.kv_heads,
                .dim_k = header.dim_k,
                .dim_v = header.dim_v,
                .layers = {}};
  for (const RankFile& rank : ranks) {
    const Fields file(rank.root, rank.path.string());
    const int64_t stride = file.integer("q_sample_stride", 1, 1 << 24);
    if (&rank != &ranks[0] && stride != rows.q_sample_stride)
      throw failure("{}: q_sample_stride: {} in rank 0, {} here", file.where(), rows.q_sample_stride, stride);
    rows.q_sample_stride = static_cast<int>(stride);
  }
  for (const auto& [id, value] : ranks[0].layers) rows.layers.emplace(id, read_layer(ranks, id, rows));
  return rows;
}

void write_rows(const fs::path& path, const RowsFile& rows) {
  check(rows, path.string());
  PtDict layers;
  for (const auto& [id, layer] : rows.layers) {
    PtDict entry;
    entry.set("k", pt(layer.k));
    entry.set("v", pt(layer.v));
    entry.set("q_samples", pt(layer.q_samples));
    entry.set("positions", pt(make_tensor({rows.tokens}, std::vector<int32_t>(layer.positions))));
    entry.set("q_scaling", layer.scale ? pt(*layer.scale) : pt(PtNone{}));
    entry.set("count", pt(rows.tokens));
    layers.set(int64_t{id}, pt(std::move(entry)));
  }
  PtDict file = rank_header(kVersion, {.model_path = rows.model_path,
                                       .prompt_sha256 = rows.prompt_sha256,
                                       .tokens = rows.tokens,
                                       .tp_rank = 0,
                                       .tp_size = 1,
                                       .local_kv_heads = rows.kv_heads,
                                       .kv_heads = rows.kv_heads,
                                       .q_heads = rows.q_heads,
                                       .dim_k = rows.dim_k,
                                       .dim_v = rows.dim_v});
  file.set("q_head_offset", pt(int64_t{0}));
  file.set("q_sample_stride", pt(int64_t{rows.q_sample_stride}));
  file.set("layers", pt(std::move(layers)));
  write_pt(path, pt(std::move(file)), path.stem().string());
}

}  // namespace oscar
