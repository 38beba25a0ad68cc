#include "libcalib/methods/support.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/error.h"
#include "libcalib/rotation.h"

namespace oscar {

static constexpr double kRankFloor = 1e-10;
static constexpr float kMostCoded =
    1e17f;  // squares of 64 channels stay within the range of nearest_codeword

std::string place(const LayerStatistics& layer, Side side, int head, std::string_view what) {
  return fmt::format("layer {}, {}{} ({})", layer.sums.shape().layer, side_name(side),
                     head >= 0 ? fmt::format(", head {}", head) : "", what);
}

static const TargetInfo& target_of(const std::string& name, Side side) {
  const TargetInfo& target = find_target(name);
  if (target.side == side) return target;
  std::string known;
  for (const auto& row : target_table()) {
    if (row.side == side) known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  throw invalid("target '{}' is of {}; targets of {}: {}", name, side_name(target.side), side_name(side),
                known);
}

std::vector<Matrix> head_targets(const LayerStatistics& layer, Side side, const std::string& target) {
  const TargetInfo& info = target_of(target, side);
  std::vector<Matrix> heads;
  for (int h = 0; h < layer.sums.shape().kv_heads; ++h) heads.push_back(info.of_head(layer.sums, h));
  if (mean_of(heads).cwiseAbs().maxCoeff() == 0)
    throw failure("{}: every row is zero: nothing can be fitted", place(layer, side, -1, target));
  return heads;
}

Matrix mean_of(const std::vector<Matrix>& matrices) {
  Matrix mean = Matrix::Zero(matrices[0].rows(), matrices[0].cols());
  for (const Matrix& matrix : matrices) mean += matrix;
  return mean / static_cast<double>(matrices.size());
}

// Files hold float32: what their readers would refuse is not written.
static void check_held(const Transform& transform, const Vector& eigenvalues, const std::string& what) {
  constexpr double kLimit = 1e-3;
  const auto held = [](const Matrix& m) { return Matrix(m.cast<float>().cast<double>()); };
  if (eigenvalues.size() && !eigenvalues.cast<float>().allFinite())
    throw failure(
        "{}: second moments up to {:.1e} do not fit the float32 of a file: rows of this size are no model's",
        what, eigenvalues.maxCoeff());
  const Matrix f = held(transform.forward);
  const Matrix back = f * (transform.inverse.size() ? held(transform.inverse) : Matrix(f.transpose()));
  const double error = (back - Matrix::Identity(f.rows(), f.rows())).cwiseAbs().maxCoeff();
  if (f.allFinite() && error <= kLimit) return;
  throw failure(
      "{}: the map and its inverse, as float32, are off the identity by {:.1e}, expected at most {:.0e}: "
      "channels of "
      "these rows differ by more than it can hold; take a method whose map is a rotation",
      what, error, kLimit);
}

void check_transform(LayerFit& fit, const Transform& transform, const Vector& eigenvalues, double residual,
                     const std::string& what) {
  constexpr double kLimit = 1e-8;
  const Matrix& f = transform.forward;
  const Matrix back = transform.inverse.size() ? Matrix(f * transform.inverse) : Matrix(f * f.transpose());
  const double error = (back - Matrix::Identity(f.rows(), f.rows())).cwiseAbs().maxCoeff();
  if (!(error <= kLimit)) {
    throw failure("{}: the {} is not {}: off the identity by {:.1e}, expected at most {:.0e}", what,
                  transform.inverse.size() ? "map" : "rotation",
                  transform.inverse.size() ? "invertible" : "orthogonal", error, kLimit);
  }
  check_held(transform, eigenvalues, what);
  FitCheck& check = fit.check;
  check.orthogonality = std::max(check.orthogonality, error);
  check.residual = std::max(check.residual, residual);
  if (eigenvalues.size() == 0) return;
  const Eigen::Index d = eigenvalues.size();
  const double largest = eigenvalues[d - 1], smallest = eigenvalues[0];
  const int rank = largest > 0 ? static_cast<int>((eigenvalues.array() > kRankFloor * largest).count()) : 0;
  if (rank <= 1) {
    fit.warnings.push_back(fmt::format("{}: constant statistics: {}", what,
                                       rank == 0 ? "every row is zero" : "every row lies on one direction"));
  } else if (rank < d) {
    fit.warnings.push_back(
        fmt::format("{}: rank {} of {}: {} directions were never seen", what, rank, d, d - rank));
  }
  check.rank = check.rank == 0 ? rank : std::min(check.rank, rank);
  check.condition =
      std::max(check.condition, smallest > kRankFloor * largest ? largest / smallest
                                                                : std::numeric_limits<double>::infinity());
}

void check_flatness(LayerFit& fit, const Matrix& rotation, const Matrix& target) {
  const Vector spread = (rotation.transpose() * target * rotation).diagonal();
  if (spread.mean() > 0) fit.check.lemma1 = std::max(fit.check.lemma1, spread.maxCoeff() / spread.mean());
}

HeadCode scalar_code(const MethodOptions& options, Transform transform, Vector eigenvalues) {
  const CodecInfo& codec = find_codec(options.codec);
  if (options.clip > 0 && !codec.clips)
    throw invalid("clip={}: codec {} clips nothing, use clip=0", options.clip, codec.name);
  return {.transform = std::move(transform),
          .codec = &codec,
          .options = {.groups = options.groups, .clip = options.clip},
          .eigenvalues = std::move(eigenvalues)};
}

std::string objective_name(const std::string& target, const std::string& composition, bool per_head) {
  if (target.empty()) return "hadamard";
  return (target == "sst-proxy" ? "sst" : target) + "_" + composition + (per_head ? "_perhead" : "");
}

double shared_rotation_loss(const std::vector<Matrix>& per_head) {
  if (per_head.size() < 2) return 0;
  const Eigen::Index d = per_head[0].rows(), top = std::max<Eigen::Index>(1, d / 4);
  const Matrix shared = eigen_decomposition(mean_of(per_head), "shared rotation").vectors.rightCols(top);
  double kept = 0;
  int counted = 0;
  for (const Matrix& head : per_head) {
    const double own = eigen_decomposition(head, "shared rotation").values.tail(top).sum();
    if (!(own > 0)) continue;  // a head that saw nothing loses nothing
    kept += (shared.transpose() * head * shared).trace() / own;
    ++counted;
  }
  return counted > 0 ? std::max(0.0, 1 - kept / counted) : 0;
}

TrainingRows training_rows(const LayerStatistics& layer, Side side, int head, const Transform& transform,
                           Importance importance, int64_t limit) {
  const bool weighted = importance != Importance::None;
  const LayerShape& shape = layer.sums.shape();
  const SampledRows& sampled = layer.rows;
  const int64_t total = sampled.count(), dim = shape.dim(side), heads = shape.kv_heads;
  if (total == 0) {
    throw invalid(
        "layer {}: this method trains on sampled rows, and the statistics hold none: run oscar-dump with "
        "--rows",
        shape.layer);
  }
  const std::vector<float>& weights = side == Side::V                    ? sampled.w
                                      : importance == Importance::Output ? sampled.x
                                                                         : sampled.u;
  if (weighted && weights.empty()) {
    throw invalid(
        "layer {}: the sampled rows carry no such importances: run (this) oscar-dump with score statistics, "
        "or use "
        "importance=none",
        shape.layer);
  }
  const std::vector<float>& values = side == Side::K ? sampled.k : sampled.v;
  const int64_t count = limit > 0 ? std::min(limit, total) : total;
  TrainingRows result;
  result.rows.reserve(static_cast<size_t>(count * dim));
  double mass = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = i * total / count;  // evenly, so that every sequence has its share
    const float weight = weighted ? weights[static_cast<size_t>(row * heads + head)] : 1.0f;
    if (!std::isfinite(weight))
      throw failure(
          "layer {}, head {}: the importance of sampled row {} is {}: the dump overflowed or is corrupt",
          shape.layer, head, row, weight);
    if (!(weight > 0)) continue;
    const float* from = values.data() + (row * heads + head) * dim;
    result.rows.insert(result.rows.end(), from, from + dim);
    result.weights.push_back(weight);
    mass += weight;
  }
  result.count = static_cast<int64_t>(result.weights.size());
  if (!(mass > 0)) {
    throw invalid(
        "layer {}, head {}: no sampled row of {} has any importance: sample more rows, or use "
        "importance=none",
        shape.layer, head, side_name(side));
  }
  std::vector<float> mapped(result.rows.size());
  const Eigen::VectorXf offset = transform.offset(static_cast<int>(dim)).cast<float>();
  transform.rows(result.rows.data(), dim, result.count, static_cast<int>(dim), mapped.data());
  for (int64_t r = 0; r < result.count; ++r) {
    for (int64_t c = 0; c < dim; ++c) mapped[static_cast<size_t>(r * dim + c)] -= offset[c];
  }
  const auto bad = std::ranges::find_if(mapped, [](float x) { return !(std::abs(x) <= kMostCoded); });
  if (bad != mapped.end())
    throw failure(
        "layer {}, head {}: the sampled rows of {} come to {}, expected numbers up to {}: the dump "
        "overflowed or "
        "is corrupt",
        shape.layer, head, side_name(side), *bad, kMostCoded);
  result.rows = std::move(mapped);
  return result;
}

double predicted_loss(const LayerStatistics& layer, Side side, int head, double error) {
  const LayerSums& sums = layer.sums;
  const double queries = sums.scalar(Sum::stream_queries, head);
  if (!(queries > 0)) {
    throw invalid(
        "layer {}: a budget needs the energies of the residual stream, which these statistics do not hold: "
        "dump again with "
        "score statistics, from sequences longer than the windows",
        sums.shape().layer);
  }
  const double stream = sums.scalar(Sum::stream, head) / queries, scale = sums.shape().scale;
  if (side == Side::K) return stream * scale * scale * sums.scalar(Sum::x, head) / queries * error;
  return stream * sums.scalar(Sum::w, head) / queries * error / sums.shape().group();
}

}  // namespace oscar
