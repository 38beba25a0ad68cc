#include "libcalib/fit_trial.h"

#include <Eigen/Cholesky>

#include "libcalib/methods/support.h"
#include "libcalib/transforms/trial.h"

namespace oscar {

// D rows whose mean second moment is `sum` / count.
static std::vector<float> rows_of_moment(const Matrix& sum, double count) {
  const Eigen::Index d = sum.rows();
  const Eigen::LDLT<Matrix> factors(sum * (static_cast<double>(d) / count));
  const Vector scale = factors.vectorD().cwiseMax(0.0).cwiseSqrt();
  const Matrix root = factors.matrixL();
  const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> rows =
      (factors.transpositionsP().transpose() * (root * scale.asDiagonal())).transpose().cast<float>();
  return {rows.data(), rows.data() + rows.size()};
}

void try_on_statistics(const LayerStatistics& layer, Side side, const LayerFit& fit,
                       std::string_view method) {
  constexpr double kLimit = 0.75 * kTrialLimit;  // verify looks at other rows
  const LayerSums& sums = layer.sums;
  const LayerShape& shape = sums.shape();
  if (sums.tokens <= 0 || !sums.finite()) return;  // of a method that needs none
  const auto tokens = static_cast<double>(sums.tokens);
  for (int h = 0; h < shape.kv_heads; ++h) {
    std::vector<const Transform*> transforms;
    if (!fit.heads.empty())
      transforms = {&fit.heads[fit.heads.size() == 1 ? 0 : static_cast<size_t>(h)].transform};
    if (!fit.candidates.empty()) {
      for (const Candidate& candidate : fit.candidates[static_cast<size_t>(h)])
        transforms.push_back(&candidate.code.transform);
    }
    std::erase_if(transforms, [](const Transform* t) { return !t->forward.size(); });
    if (transforms.empty()) continue;
    const std::string where = place(layer, side, h, method);
    if (side == Side::V) {
      const auto values = rows_of_moment(sums.matrix(Sum::vv, h), tokens);
      for (const Transform* t : transforms) check_values(*t, values, shape.dim_v, kLimit, where);
    } else {
      const auto queries = rows_of_moment(sums.matrix(Sum::qq, h), tokens * shape.group());
      const auto keys = rows_of_moment(sums.matrix(Sum::kk, h), tokens);
      for (const Transform* t : transforms)
        check_logits(*t, queries, keys, shape.dim_k, shape.scale, kLimit, where);
    }
  }
}

}  // namespace oscar
