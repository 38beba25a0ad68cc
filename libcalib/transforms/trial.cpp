#include "libcalib/transforms/trial.h"

#include <algorithm>
#include <cmath>

#include "formats/error.h"

namespace oscar {
namespace {

double dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}
double squares(std::span<const float> rows) {
  double sum = 0;
  for (const float x : rows) sum += static_cast<double>(x) * x;
  return sum;
}

std::runtime_error not_invertible(const std::string& place, const char* identity, const char* side,
                                  double found, double limit) {
  return failure(
      "{}: {} fails by {:.3g} (relative, limit {}): the {} transform is not invertible as stored (a rotation "
      "must be orthogonal), or stretches rows like these by more than float32 holds (take a method whose map "
      "is a rotation), or is not for this model",
      place, identity, found, limit, side);
}

}  // namespace

void check_logits(const Transform& k, std::span<const float> queries, std::span<const float> keys, int dim,
                  double scale, double limit, const std::string& place) {
  const auto n = static_cast<int64_t>(queries.size()) / dim, m = static_cast<int64_t>(keys.size()) / dim;
  std::vector<float> q_cache(queries.size()), k_cache(keys.size());
  k.queries(queries.data(), dim, n, dim, q_cache.data());
  k.rows(keys.data(), dim, m, dim, k_cache.data());
  double error = 0, power = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j) {
      const double exact = dot(queries.data() + i * dim, keys.data() + j * dim, dim);
      error += std::pow(dot(q_cache.data() + i * dim, k_cache.data() + j * dim, dim) - exact, 2);
      power += exact * exact;
    }
  }
  if (error == 0) return;
  const auto pairs = static_cast<double>(n * m);
  const double moved = std::sqrt(error / pairs), norms = std::sqrt(squares(queries) * squares(keys) / pairs);
  if (!(moved <= limit * norms)) throw not_invertible(place, "(qR)(kR)^T = qk^T", "K", moved / norms, limit);
  const double held = scale * moved, unit = std::max(1.0, scale * std::sqrt(power / pairs));
  if (!(held <= limit * unit))
    throw failure(
        "{}: float32 moves the logits by {:.3g} where they are of {:.3g}, expected at most {:.3g}: queries "
        "and keys cancel over channels that the K transform mixes; take a method that mixes none, such as "
        "naive or kivi",
        place, held, scale * std::sqrt(power / pairs), limit * unit);
}

void check_values(const Transform& v, std::span<const float> values, int dim, double limit,
                  const std::string& place) {
  const auto n = static_cast<int64_t>(values.size()) / dim;
  std::vector<float> back(values.size());
  v.rows(values.data(), dim, n, dim, back.data());
  v.outputs(back.data(), n, dim);
  for (size_t i = 0; i < back.size(); ++i) back[i] -= values[i];
  const double error = squares(back);
  if (error == 0) return;
  const double found = std::sqrt(error / squares(values));
  if (!(found <= limit)) throw not_invertible(place, "vRR^-1 = v", "V", found, limit);
}

}  // namespace oscar
