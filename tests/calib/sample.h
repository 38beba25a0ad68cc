// Inputs of these tests: correlated rows with large means and a few outlier channels, and layers made of
// them.
#pragma once
#include <cmath>

#include "libcalib/statistics.h"
#include "tests/support/support.h"

namespace oscar::test {

// (tokens, heads, dim): per head and channel its own scale and mean, and one direction that all channels
// share.
inline std::vector<float> correlated(int64_t tokens, int heads, int dim, uint64_t seed) {
  const auto width = static_cast<size_t>(heads * dim);
  const auto scale = normal(width, seed, 0.7f), mean = normal(width, seed + 1, 0.5f),
             shared = normal(width, seed + 2, 1.5f);
  const auto noise = normal(static_cast<size_t>(tokens) * width, seed + 3),
             common = normal(static_cast<size_t>(tokens), seed + 4);
  std::vector<float> rows(noise.size());
  for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
    for (size_t i = 0; i < width; ++i) {
      rows[t * width + i] = noise[t * width + i] * std::exp(scale[i]) + mean[i] + common[t] * shared[i];
    }
  }
  return rows;
}

inline LayerShape shape_of(int layer, int q_heads, int kv_heads, int dim_k, int dim_v) {
  LayerShape shape;
  shape.layer = layer;
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.dim_k = dim_k;
  shape.dim_v = dim_v;
  shape.scale = 1 / std::sqrt(static_cast<double>(dim_k));
  return shape;
}

struct Rows {
  int64_t tokens;
  std::vector<float> q, k, v, o;
};
inline Rows rows_of(const LayerShape& s, int64_t tokens, uint64_t seed) {
  return {tokens, correlated(tokens, s.q_heads, s.dim_k, seed),
          correlated(tokens, s.kv_heads, s.dim_k, seed + 10),
          correlated(tokens, s.kv_heads, s.dim_v, seed + 20),
          correlated(tokens, s.q_heads, s.dim_v, seed + 30)};
}

// A layer with every sum, a metric and sampled rows.
inline LayerStatistics statistics_of(const LayerShape& shape, const Rows& r) {
  const int64_t tokens = r.tokens;
  LayerStatistics layer;
  layer.sums = LayerSums(shape);
  layer.sums.add_rows(r.q.data(), r.k.data(), r.v.data(), r.o.data(), tokens);
  std::vector<Matrix> sigma;
  for (int h = 0; h < shape.kv_heads; ++h) {
    sigma.push_back(layer.sums.matrix(Sum::qq, h) / static_cast<double>(tokens * shape.group()));
    layer.value_metric.push_back(layer.sums.matrix(Sum::oo, h));
  }
  layer.sums.add_proxy(sigma, r.k.data(), r.v.data(), tokens);
  std::vector<int32_t> queries;
  for (int32_t t = 0; t < tokens; t += 2) queries.push_back(t);
  const std::vector<float> mass(queries.size() * static_cast<size_t>(shape.q_heads), 0.25f);
  const std::vector<double> importance(static_cast<size_t>(tokens * shape.kv_heads), 0.5);
  layer.sums.add_scores(r.q.data(), r.k.data(), r.v.data(), tokens,
                        {queries, mass.data(), mass.data(), mass.data(), importance.data(), importance.data(),
                         mass.data(), importance.data()});
  const int64_t n = std::min<int64_t>(tokens, 5);
  for (int64_t i = 0; i < n; ++i) {
    layer.rows.position.push_back(i);
    layer.rows.sequence.push_back(i % 2);
  }
  layer.rows.k.assign(r.k.begin(), r.k.begin() + n * shape.kv_heads * shape.dim_k);
  layer.rows.v.assign(r.v.begin(), r.v.begin() + n * shape.kv_heads * shape.dim_v);
  layer.rows.u.assign(static_cast<size_t>(n * shape.kv_heads), 0.5f);
  layer.rows.w = layer.rows.x = layer.rows.u;
  return layer;
}

inline LayerStatistics statistics_of(const LayerShape& shape, int64_t tokens, uint64_t seed) {
  return statistics_of(shape, rows_of(shape, tokens, seed));
}

// The same with every row sampled, importances that differ from row to row, and the energies of the residual
// stream: what any method may ask for.
inline LayerStatistics full_statistics(const LayerShape& shape, const Rows& r, uint64_t seed) {
  const int64_t tokens = r.tokens;
  LayerStatistics layer = statistics_of(shape, r);
  for (const Sum sum : {Sum::qq_mass, Sum::mass, Sum::u, Sum::uk, Sum::ukk, Sum::w, Sum::wv, Sum::wvv,
                        Sum::qq_out, Sum::out, Sum::x, Sum::xk, Sum::xkk})
    std::ranges::fill(layer.sums.values(sum), 0);
  const auto n = static_cast<size_t>(tokens), heads = static_cast<size_t>(shape.kv_heads);
  std::vector<int32_t> queries;
  for (int32_t t = 0; t < tokens; ++t) queries.push_back(t);
  const auto positive = [](std::vector<float> values) {
    for (float& x : values) x = std::exp(x);
    return values;
  };
  const auto mass = positive(normal(n * static_cast<size_t>(shape.q_heads), seed + 50)),
             out = positive(normal(n * static_cast<size_t>(shape.q_heads), seed + 51));
  std::vector<double> importance[3];  // (Hkv, T): u, w, x
  std::vector<float>* sampled[] = {&layer.rows.u, &layer.rows.w, &layer.rows.x};
  for (size_t i = 0; i < 3; ++i) {
    const auto values = positive(normal(n * heads, seed + 60 + i));
    importance[i].assign(values.begin(), values.end());
    sampled[i]->resize(n * heads);
    for (size_t t = 0; t < n; ++t) {
      for (size_t h = 0; h < heads; ++h) (*sampled[i])[t * heads + h] = values[h * n + t];
    }
  }
  layer.sums.add_scores(r.q.data(), r.k.data(), r.v.data(), tokens,
                        {queries, mass.data(), mass.data(), mass.data(), importance[0].data(),
                         importance[1].data(), out.data(), importance[2].data()});
  for (int h = 0; h < shape.kv_heads; ++h) {
    layer.sums.scalar(Sum::stream, h) = 0.01 * static_cast<double>(tokens);
    layer.sums.scalar(Sum::stream_queries, h) = static_cast<double>(tokens);
  }
  layer.rows.position.clear();
  layer.rows.sequence.assign(n, 0);
  for (int64_t t = 0; t < tokens; ++t) layer.rows.position.push_back(t);
  layer.rows.k = r.k;
  layer.rows.v = r.v;
  return layer;
}
inline LayerStatistics full_statistics(const LayerShape& shape, int64_t tokens, uint64_t seed) {
  return full_statistics(shape, rows_of(shape, tokens, seed), seed);
}

}  // namespace oscar::test
