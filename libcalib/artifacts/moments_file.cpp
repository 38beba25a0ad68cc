#include "libcalib/artifacts/moments_file.h"

#include <cmath>
#include <functional>

#include "formats/error.h"
#include "libcalib/artifacts/rank_files.h"

namespace oscar {
namespace {

using pt_fields::Fields;
using pt_fields::pt;

constexpr int64_t kVersion = 2;
constexpr double kLeastEnergy = 1e-12;  // the calibrator divides by no less

Matrix symmetric(const Matrix& m) {
  return (m + m.transpose()) / 2;
}

// (H, d, d) symmetric matrices.
std::vector<Matrix> moments(const Fields& layer, const char* name, int heads, int d) {
  const auto values = layer.finite(name, {heads, d, d});
  std::vector<Matrix> result;
  for (int h = 0; h < heads; ++h) {
    const Matrix m = ConstMatrixMap(values.data() + int64_t{h} * d * d, d, d);
    if ((m - m.transpose()).cwiseAbs().maxCoeff() > 1e-6 * m.cwiseAbs().maxCoeff() || m.trace() < 0)
      throw failure("{}: {}: head {} is no second moment: not symmetric, or of negative trace", layer.where(),
                    name, h);
    result.push_back(symmetric(m));
  }
  return result;
}

// The heads of one rank into those of the model, from head `first` on.
void add_rank(LayerSums& sums, const Fields& layer, int heads, int first) {
  const LayerShape& s = sums.shape();
  const auto m_q = moments(layer, "M_q", heads, s.dim_k), m_k = moments(layer, "M_k", heads, s.dim_k),
             s_v = moments(layer, "S_v", heads, s.dim_v);
  const auto k_sum = layer.finite("k_sum", {heads, s.dim_k});
  const double rows = static_cast<double>(sums.tokens) * s.group();
  for (int h = 0; h < heads; ++h) {
    const auto from = static_cast<size_t>(h);
    const int to = first + h;
    sums.matrix(Sum::qq, to) = m_q[from] * rows;
    sums.matrix(Sum::kk, to) = m_k[from];
    sums.row(Sum::k_sum, to) = ConstVectorMap(k_sum.data() + int64_t{h} * s.dim_k, s.dim_k);
    // sum over t of k M_q k^T is the trace of M_q M_k: what S_v was divided by.
    const double energy = std::max(m_q[from].cwiseProduct(m_k[from]).sum(), kLeastEnergy);
    sums.scalar(Sum::proxy_weight, to) = energy;
    sums.matrix(Sum::vv_proxy, to) = s_v[from] * energy;
  }
}

LayerShape shape_of(const Fields& layer, int id, const RankHeader& header) {
  LayerShape shape;
  shape.layer = id;
  shape.q_heads = header.q_heads;
  shape.kv_heads = header.kv_heads;
  shape.dim_k = header.dim_k;
  shape.dim_v = header.dim_v;
  shape.scale = layer.number("q_scaling").value_or(1 / std::sqrt(static_cast<double>(header.dim_k)));
  return shape;
}

PtValue stacked(const LayerSums& sums, int d, const std::function<Matrix(int head)>& of_head) {
  std::vector<double> values;
  for (int h = 0; h < sums.shape().kv_heads; ++h) {
    const Matrix m = of_head(h);
    values.insert(values.end(), m.data(), m.data() + m.size());
  }
  return pt(make_tensor({sums.shape().kv_heads, d, d}, std::move(values)));
}

PtDict layer_entry(const LayerSums& sums) {
  const LayerShape& s = sums.shape();
  const auto energy = [&](int h) { return sums.scalar(Sum::proxy_weight, h); };
  for (int h = 0; h < s.kv_heads; ++h) {
    const bool rows = sums.matrix(Sum::qq, h).trace() > 0 && sums.matrix(Sum::kk, h).trace() > 0;
    if (!rows || energy(h) > 0) continue;
    throw invalid(
        "layer {}: the statistics have no sst-proxy sums, which a moments file holds as S_v: dump again",
        s.layer);
  }
  const auto k_sum = sums.values(Sum::k_sum);
  const double rows = static_cast<double>(sums.tokens) * s.group();
  PtDict entry;
  entry.set("M_q", stacked(sums, s.dim_k, [&](int h) { return symmetric(sums.matrix(Sum::qq, h) / rows); }));
  entry.set("k_sum", pt(make_tensor({s.kv_heads, s.dim_k}, std::vector<double>(k_sum.begin(), k_sum.end()))));
  entry.set("M_k", stacked(sums, s.dim_k, [&](int h) { return Matrix(sums.matrix(Sum::kk, h)); }));
  entry.set("S_v", stacked(sums, s.dim_v, [&](int h) {
              return Matrix(sums.matrix(Sum::vv_proxy, h) / std::max(energy(h), kLeastEnergy));
            }));
  entry.set("rho", pt(PtNone{}));
  entry.set("q_scaling", pt(s.scale));
  entry.set("count", pt(sums.tokens));
  return entry;
}

}  // namespace

std::string moments_file_name(int rank) {
  return fmt::format("oscar_moments_rank{}.pt", rank);
}

MergedStatistics read_moments(const std::vector<std::filesystem::path>& paths) {
  const std::vector<RankFile> ranks = read_ranks(paths);
  MergedStatistics merged;
  std::vector<LayerShape> shapes;
  for (const auto& [id, value] : ranks[0].layers) {
    const Fields first = ranks[0].layer(id);
    LayerSums sums(shapes.emplace_back(shape_of(first, id, ranks[0].header)));
    sums.tokens = first.integer("count", 1);
    int head = 0;
    for (const RankFile& rank : ranks) {
      const Fields layer = rank.layer(id);
      layer.integer("count", sums.tokens, sums.tokens);
      add_rank(sums, layer, rank.header.local_kv_heads, head);
      head += rank.header.local_kv_heads;
    }
    merged.layers[id].sums = std::move(sums);
  }
  merged.header = statistics_header(ranks[0].header, shapes);
  merged.notes.push_back(
      "moments hold what the targets qqt, ktk and sst-proxy and the means of keys need, no rows and no "
      "scores");
  return merged;
}

void write_moments(const std::filesystem::path& path, const Provenance& provenance,
                   const std::map<int, LayerStatistics>& layers) {
  if (layers.empty()) throw invalid("{}: no layers", path.string());
  const LayerSums& first = layers.begin()->second.sums;
  const LayerShape& s = first.shape();
  PtDict entries;
  for (const auto& [id, layer] : layers) {
    const LayerShape& t = layer.sums.shape();
    if (t.q_heads != s.q_heads || t.kv_heads != s.kv_heads || t.dim_k != s.dim_k || t.dim_v != s.dim_v ||
        layer.sums.tokens != first.tokens) {
      throw invalid(
          "{}: layer {} has other heads, dims or tokens than layer {}: a moments file holds one of each",
          path.string(), id, s.layer);
    }
    if (layer.sums.tokens < 1) throw invalid("{}: layer {}: no tokens were counted", path.string(), id);
    entries.set(int64_t{id}, pt(layer_entry(layer.sums)));
  }
  PtDict file = rank_header(kVersion, {.model_path = provenance.model_name,
                                       .prompt_sha256 = provenance.text_digest,
                                       .tokens = first.tokens,
                                       .tp_rank = 0,
                                       .tp_size = 1,
                                       .local_kv_heads = s.kv_heads,
                                       .kv_heads = s.kv_heads,
                                       .q_heads = s.q_heads,
                                       .dim_k = s.dim_k,
                                       .dim_v = s.dim_v});
  file.set("layers", pt(std::move(entries)));
  write_pt(path, pt(std::move(file)), path.stem().string());
}

}  // namespace oscar
