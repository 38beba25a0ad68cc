// What the algorithms share.
#pragma once
#include "libcalib/centred.h"
#include "libcalib/eigen_decomposition.h"
#include "libcalib/methods/method.h"
#include "libcalib/targets.h"

namespace oscar {

// "layer 7, v, head 2 (sst)"; head -1: the layer as a whole.
std::string place(const LayerStatistics& layer, Side side, int head, std::string_view what);

// The target of each KV head. std::invalid_argument for a target of the other side or one that the sums
// cannot give, std::runtime_error when it is zero for every head.
std::vector<Matrix> head_targets(const LayerStatistics& layer, Side side, const std::string& target);
Matrix mean_of(const std::vector<Matrix>& matrices);

// Rank, condition, residual and orthogonality of one head's transform, folded into the worst of `fit.check`;
// a rank below full is a warning. Maps that are not orthogonal by more than 1e-8 (F F^-1 = I) are
// std::runtime_error, and so are those that float32 cannot hold.
void check_transform(LayerFit& fit, const Transform& transform, const Vector& eigenvalues, double residual,
                     const std::string& what);
// diag(R^T Sigma R) of a rotation: Lemma 1.
void check_flatness(LayerFit& fit, const Matrix& rotation, const Matrix& target);

HeadCode scalar_code(const MethodOptions& options, Transform transform, Vector eigenvalues = {});

// "qqt_r_h_pbr": what the file's `objective` says. The published scripts call both score-weighted targets
// `sst`, and so do files (the manifest tells them apart); "_perhead" is added for one rotation per KV head;
// "hadamard" for a target "".
std::string objective_name(const std::string& target, const std::string& composition, bool per_head);

// 1 - mean over heads of sum_i lambda_i(shared basis order) captured / captured by the head's own basis, top
// D/4 directions: 0 when the heads agree, towards 1 when their subspaces are disjoint.
double shared_rotation_loss(const std::vector<Matrix>& per_head);

// The sampled rows of one head, (x - mean) forward, float32 (N, D) contiguous, and their importances (all 1
// when !weighted). `limit` > 0 takes every so many-th row. std::invalid_argument when the statistics hold no
// rows, or none with importance; std::runtime_error for rows that are not finite or beyond what codes can be made of.
struct TrainingRows {
  std::vector<float> rows, weights;  // (N, D), (N)
  int64_t count = 0;
};
TrainingRows training_rows(const LayerStatistics& layer, Side side, int head, const Transform& transform,
                           Importance importance, int64_t limit);

// What an error of the codes does to the model, to first order: the energy of the change of the residual
// stream over that of the stream itself, a query (docs/math.md). `error`: weighted mean of d M d^T over rows,
// M the mean of q^T q weighted as qqt-out for keys, G for values. std::invalid_argument when the statistics
// do not hold what it takes.
double predicted_loss(const LayerStatistics& layer, Side side, int head, double error);

}  // namespace oscar
