#include "libcalib/fit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/error.h"
#include "libcalib/hadamard.h"
#include "libcalib/parallel.h"

namespace oscar {
namespace {

constexpr double kRankFloor = 1e-10;

struct Job {
  const LayerStatistics* layer;
  Side side;
  const TargetInfo* target;            // nullptr: hadamard
  const CompositionInfo* composition;  // as target
  LayerRotation rotation;
  FitCheck check;
  std::vector<std::string> warnings;

  std::string name() const {
    const std::string what = target ? std::string(target->name) : "hadamard";
    return fmt::format("layer {}, {} ({})", layer->sums.shape().layer, side_name(side), what);
  }
};

Matrix mean_of(const std::vector<Matrix>& matrices) {
  Matrix mean = Matrix::Zero(matrices[0].rows(), matrices[0].cols());
  for (const Matrix& matrix : matrices) mean += matrix;
  return mean / static_cast<double>(matrices.size());
}

void fit_hadamard(Job& job) {
  const int d = job.layer->sums.shape().dim(job.side);
  job.rotation.rotation.push_back(hadamard(d));
  job.rotation.eigenvalues.push_back(Vector::Ones(d));  // as in the published files
  job.check.orthogonality = orthogonality_error(job.rotation.rotation[0]);
}

void fit_matrix(Job& job, const Matrix& covariance, const std::string& name) {
  const EigenDecomposition eigen = eigen_decomposition(covariance, name);
  const Eigen::Index d = eigen.values.size();
  const double largest = eigen.values[d - 1], smallest = eigen.values[0];
  const int rank = largest > 0 ? static_cast<int>((eigen.values.array() > kRankFloor * largest).count()) : 0;
  if (rank <= 1) {
    job.warnings.push_back(fmt::format("{}: constant statistics: {}", name,
                                       rank == 0 ? "every row is zero" : "every row lies on one direction"));
  } else if (rank < d) {
    job.warnings.push_back(
        fmt::format("{}: rank {} of {}: {} directions were never seen", name, rank, d, d - rank));
  }
  const Matrix r = compose(*job.composition, eigen);
  const Vector spread = (r.transpose() * covariance * r).diagonal();
  FitCheck& check = job.check;
  check.residual = std::max(check.residual, eigen.residual);
  check.orthogonality = std::max(check.orthogonality, orthogonality_error(r));
  check.rank = job.rotation.rotation.empty() ? rank : std::min(check.rank, rank);
  check.condition =
      std::max(check.condition, smallest > kRankFloor * largest ? largest / smallest
                                                                : std::numeric_limits<double>::infinity());
  if (largest > 0) check.lemma1 = std::max(check.lemma1, spread.maxCoeff() / spread.mean());
  job.rotation.rotation.push_back(r);
  job.rotation.eigenvalues.push_back(eigen.values);
}

void need_tokens(const Job& job, const FitOptions& options) {
  const LayerSums& sums = job.layer->sums;
  const LayerShape& shape = sums.shape();
  if (sums.tokens <= 0) throw failure("{}: no tokens were counted; the statistics are empty", job.name());
  if (!sums.finite())
    throw failure("{}: the sums are not finite; the dump overflowed or is corrupt", job.name());
  const int64_t least = 4 * int64_t{shape.dim(job.side)};
  if (sums.tokens < least && !options.allow_undersampled) {
    throw wanting(
        "{}: {} tokens per head, expected at least 4 D = {}; calibrate on more text, or allow an "
        "under-sampled fit",
        job.name(), sums.tokens, least);
  }
}

void fit_job(Job& job, const FitOptions& options) {
  job.check.layer = job.layer->sums.shape().layer;
  job.check.side = job.side;
  if (!job.target) return fit_hadamard(job);
  need_tokens(job, options);
  std::vector<Matrix> heads;
  for (int h = 0; h < job.layer->sums.shape().kv_heads; ++h)
    heads.push_back(job.target->of_head(job.layer->sums, h));
  const Matrix mean = mean_of(heads);
  if (mean.cwiseAbs().maxCoeff() == 0)
    throw failure("{}: every row is zero: nothing can be fitted", job.name());
  if (options.per_head) {
    for (size_t h = 0; h < heads.size(); ++h)
      fit_matrix(job, heads[h], fmt::format("{}, head {}", job.name(), h));
  } else {
    fit_matrix(job, mean, job.name());
    job.check.shared_loss = shared_rotation_loss(heads);
  }
  constexpr double kLimit = 1e-8;
  if (!(job.check.orthogonality <= kLimit)) {
    throw failure("{}: the rotation is not orthogonal: max |R R^T - I| is {:.1e}, expected at most {:.0e}",
                  job.name(), job.check.orthogonality, kLimit);
  }
}

// One line a side for the whole model, where one rotation a layer gives up much of what the heads' own would
// keep.
void warn_shared(FitResult& result, Side side) {
  constexpr double kMean = 0.1, kWorst = 0.25;
  double sum = 0;
  int count = 0;
  const FitCheck* worst = nullptr;
  for (const FitCheck& check : result.checks) {
    if (check.side != side) continue;
    sum += check.shared_loss;
    ++count;
    if (!worst || check.shared_loss > worst->shared_loss) worst = &check;
  }
  if (!worst || (sum / count < kMean && worst->shared_loss < kWorst)) return;
  result.warnings.push_back(
      fmt::format("{}: one rotation a layer keeps {:.0f} % less energy in its top D/4 directions than one "
                  "per KV head (worst: layer {}, "
                  "{:.0f} %); a rotation per head (v2 file) loses nothing",
                  side_name(side), 100 * sum / count, worst->layer, 100 * worst->shared_loss));
}

const TargetInfo* target_of(const std::string& name, Side side) {
  if (name.empty()) return nullptr;
  const TargetInfo& target = find_target(name);
  if (target.side == side) return &target;
  std::string known;
  for (const auto& row : target_table()) {
    if (row.side == side) known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  throw invalid("target '{}' is of {}; targets of {}: {}", name, side_name(target.side), side_name(side),
                known);
}

RotationSet empty_set(Side side, const std::string& target, const FitOptions& options) {
  RotationSet set;
  set.side = side;
  set.objective = objective_name(target, options.composition, options.per_head);
  set.composition = target.empty() ? "" : options.composition;
  set.per_head = !target.empty() && options.per_head;
  return set;
}

}  // namespace

std::string objective_name(const std::string& target, const std::string& composition, bool per_head) {
  if (target.empty()) return "hadamard";
  return (target == "sst-proxy" ? "sst" : target) + "_" + composition + (per_head ? "_perhead" : "");
}

FitResult fit(const std::map<int, LayerStatistics>& layers, const FitOptions& options) {
  if (layers.empty()) throw invalid("fit: there are no layers in the statistics");
  const TargetInfo* const targets[] = {target_of(options.target_k, Side::K),
                                       target_of(options.target_v, Side::V)};
  const bool fitted = targets[0] || targets[1];
  const CompositionInfo* const composition = fitted ? &find_composition(options.composition) : nullptr;

  std::vector<Job> jobs;
  for (const auto& [id, layer] : layers) {
    for (const Side side : {Side::K, Side::V}) {
      jobs.push_back({&layer, side, targets[static_cast<int>(side)], composition, {}, {}, {}});
    }
  }
  parallel_for(static_cast<int64_t>(jobs.size()), options.threads,
               [&](int64_t i) { fit_job(jobs[static_cast<size_t>(i)], options); });

  FitResult result{
      empty_set(Side::K, options.target_k, options), empty_set(Side::V, options.target_v, options), {}, {}};
  for (Job& job : jobs) {
    RotationSet& set = job.side == Side::K ? result.k : result.v;
    set.layers.emplace(job.check.layer, std::move(job.rotation));
    result.checks.push_back(job.check);
    result.warnings.insert(result.warnings.end(), job.warnings.begin(), job.warnings.end());
  }
  for (const Side side : {Side::K, Side::V}) warn_shared(result, side);
  return result;
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

}  // namespace oscar
