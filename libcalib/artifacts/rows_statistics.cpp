#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "kernels/gram.h"
#include "libcalib/artifacts/rank_files.h"
#include "libcalib/artifacts/rows_file.h"
#include "libcalib/parallel.h"

namespace oscar {
namespace {

constexpr int64_t kBlock = 256;  // rows converted at a time: they stay in cache

// work(first, count, float32 rows) over the blocks of a (T, heads, D) tensor.
template <typename Work>
void for_rows(const Tensor& tensor, Work work) {
  const auto width = static_cast<size_t>(tensor.shape[1] * tensor.shape[2]);
  std::vector<float> buffer;
  for (int64_t first = 0; first < tensor.shape[0]; first += kBlock) {
    const int64_t count = std::min(kBlock, tensor.shape[0] - first);
    buffer.resize(static_cast<size_t>(count) * width);
    to_float(tensor.dtype,
             tensor.bytes.data() + static_cast<size_t>(first) * width * info(tensor.dtype).size(),
             buffer.size(), buffer.data());
    work(first, count, buffer.data());
  }
}

LayerSums sums_of(const RowsFile& rows, int id, const RowsLayer& layer) {
  LayerShape shape;
  shape.layer = id;
  shape.q_heads = rows.q_heads;
  shape.kv_heads = rows.kv_heads;
  shape.dim_k = rows.dim_k;
  shape.dim_v = rows.dim_v;
  shape.scale = layer.scale.value_or(1 / std::sqrt(static_cast<double>(rows.dim_k)));
  LayerSums sums(shape);
  sums.tokens = rows.tokens;
  const auto add = [&](const Tensor& tensor, int heads, int dim, Sum second, std::optional<Sum> first) {
    for_rows(tensor, [&](int64_t, int64_t n, const float* x) {
      for (int j = 0; j < heads; ++j) {
        const int h = j / (heads / rows.kv_heads);
        const float* head = x + int64_t{j} * dim;
        add_gram(head, int64_t{heads} * dim, nullptr, n, dim, sums.matrix(second, h).data());
        if (first) add_rows(head, int64_t{heads} * dim, nullptr, n, dim, sums.row(*first, h).data());
      }
    });
  };
  add(layer.q_samples, rows.q_heads, rows.dim_k, Sum::qq, std::nullopt);
  add(layer.k, rows.kv_heads, rows.dim_k, Sum::kk, Sum::k_sum);
  add(layer.v, rows.kv_heads, rows.dim_v, Sum::vv, Sum::v_sum);
  const double scale = static_cast<double>(rows.tokens) / static_cast<double>(layer.q_samples.shape[0]);
  for (double& x : sums.values(Sum::qq)) x *= scale;
  std::vector<Matrix> sigma_q;
  for (int h = 0; h < rows.kv_heads; ++h)
    sigma_q.push_back(sums.matrix(Sum::qq, h) / (static_cast<double>(rows.tokens) * shape.group()));
  std::vector<float> values;
  for_rows(layer.k, [&](int64_t first, int64_t n, const float* k) {
    const size_t width = static_cast<size_t>(rows.kv_heads) * static_cast<size_t>(rows.dim_v);
    values.resize(static_cast<size_t>(n) * width);
    to_float(layer.v.dtype,
             layer.v.bytes.data() + static_cast<size_t>(first) * width * info(layer.v.dtype).size(),
             values.size(), values.data());
    sums.add_proxy(sigma_q, k, values.data(), n);
  });
  return sums;
}

}  // namespace

MergedStatistics statistics_of_rows(const RowsFile& rows, int threads) {
  check(rows, "rows");
  std::vector<std::pair<int, LayerSums>> sums;
  std::vector<const RowsLayer*> layers;
  for (const auto& [id, layer] : rows.layers) {
    sums.emplace_back(id, LayerSums());
    layers.push_back(&layer);
  }
  parallel_for(static_cast<int64_t>(sums.size()), threads, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    sums[at].second = sums_of(rows, sums[at].first, *layers[at]);
  });
  MergedStatistics merged;
  std::vector<LayerShape> shapes;
  for (auto& [id, layer] : sums) {
    shapes.push_back(layer.shape());
    merged.layers[id].sums = std::move(layer);
  }
  RankHeader header;
  header.model_path = rows.model_path;
  header.prompt_sha256 = rows.prompt_sha256;
  header.tokens = rows.tokens;
  merged.header = statistics_header(header, shapes);
  merged.header.provenance.sequence_lengths = sequence_lengths(layers[0]->positions);
  if (rows.q_sample_stride > 1) {
    merged.notes.push_back(
        fmt::format("queries are every {}-th token's: qqt and sst-proxy are estimates from {} of {} tokens",
                    rows.q_sample_stride, layers[0]->q_samples.shape[0], rows.tokens));
  }
  return merged;
}

std::vector<int64_t> sequence_lengths(const std::vector<int32_t>& positions) {
  std::vector<int64_t> lengths;
  for (size_t t = 0; t < positions.size(); ++t) {
    if (t == 0 || positions[t] != positions[t - 1] + 1) lengths.push_back(0);
    ++lengths.back();
  }
  return lengths;
}

}  // namespace oscar
