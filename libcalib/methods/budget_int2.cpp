// A budget for an INT2 engine: its one code, or BF16, for the keys and the values of each layer. What is
// predicted is the error of the engine's own quantiser on sampled rows, without the part that all keys of a
// head share: the softmax does not see that.
#include "kernels/gram.h"
#include "libcalib/methods/support.h"

namespace oscar {

namespace zero_point {
LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options);
}

// Weighted mean of d M d^T, d = x - x^ about its mean.
static double coded_error(const HeadCode& code, const TrainingRows& rows, const Matrix& metric) {
  const auto dim = static_cast<int>(metric.rows());
  std::vector<float> difference(rows.rows.size());
  code.codec->encode(rows.rows.data(), rows.count, dim, code.options)
      ->decode(0, rows.count, difference.data());
  Vector mean = Vector::Zero(dim);
  double mass = 0;
  for (int64_t r = 0; r < rows.count; ++r) {
    const double weight = rows.weights[static_cast<size_t>(r)];
    mass += weight;
    for (int i = 0; i < dim; ++i) {
      float& d = difference[static_cast<size_t>(r * dim + i)];
      d -= rows.rows[static_cast<size_t>(r * dim + i)];
      mean[i] += weight * d;
    }
  }
  mean /= mass;
  Matrix moment = Matrix::Zero(dim, dim);
  add_gram(difference.data(), dim, rows.weights.data(), rows.count, dim, moment.data());
  const Matrix error = moment / mass - mean * mean.transpose();
  const Matrix& r = code.transform.forward;
  return (error * (r.transpose() * metric * r)).trace();
}

namespace budget_int2 {

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  LayerFit fit = zero_point::fit(layer, side, options);
  const LayerShape& shape = layer.sums.shape();
  const auto metrics = side == Side::K ? head_targets(layer, side, "qqt-out") : layer.value_metric;
  for (int h = 0; h < shape.kv_heads; ++h) {
    HeadCode code = fit.heads[fit.heads.size() == 1 ? 0 : static_cast<size_t>(h)];
    const TrainingRows rows =
        training_rows(layer, side, h, code.transform,
                      side == Side::K ? Importance::Output : Importance::Attention, options.rows);
    const double error = coded_error(code, rows, metrics[static_cast<size_t>(h)]);
    const auto encoded = code.codec->encode(rows.rows.data(), rows.count, shape.dim(side), code.options);
    const double bits = 8.0 * static_cast<double>(encoded->bytes()) / static_cast<double>(rows.count);
    HeadCode exact = code;
    exact.codec = &find_codec("bf16");
    exact.options = {};
    fit.candidates.push_back({{std::move(code), bits, predicted_loss(layer, side, h, error)},
                              {std::move(exact), 16.0 * shape.dim(side), 0}});
  }
  fit.heads.clear();
  fit.tied = true;
  return fit;
}

std::string objective(Side, const MethodOptions& options) {
  return objective_name(options.target, "dc_h", options.granularity == Granularity::Head);
}

}  // namespace budget_int2
}  // namespace oscar
