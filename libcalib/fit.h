// Statistics in, rotations out.
#pragma once
#include "libcalib/composition.h"
#include "libcalib/methods/method.h"
#include "libcalib/rotation.h"
#include "libcalib/targets.h"

namespace oscar {

struct FitOptions {
  std::string target_k, target_v;   // of targets.def; "" for both: H alone, layers need only their shapes
  std::string composition = "r_h_pbr";
  bool per_head = false;
  bool allow_undersampled = false;  // fewer than 4 D tokens per head are refused otherwise (Wanting)
  int threads = 1;                  // layers in parallel; the result does not depend on it
};

// One line per layer and side of what was checked.
struct FitCheck {
  int layer = 0;
  Side side = Side::K;
  double orthogonality = 0, residual = 0;  // of R, of the decomposition; worst head
  // Of the statistics, worst head; all 0 where a rotation needs none (hadamard).
  int rank = 0;                            // eigenvalues above 1e-10 of the largest
  double condition = 0;                    // largest / smallest eigenvalue; infinite below full rank
  double lemma1 = 0;                       // max / mean of diag(R^T Sigma R); 1 after U H (OSCAR Lemma 1)
  double shared_loss = 0;                  // of a shared rotation against one per head, see shared_rotation_loss()
};
struct FitResult {
  RotationSet k, v;
  std::vector<FitCheck> checks;
  std::vector<std::string> warnings;       // rank deficiency, constant statistics, shared against per head
};

// "qqt_r_h_pbr": what the file's `objective` says. The published scripts call both score-weighted targets `sst`, and so do
// files (the manifest tells them apart); "_perhead" is added for one rotation per KV head; "hadamard" for a target "".
std::string objective_name(const std::string& target, const std::string& composition, bool per_head);

// Every layer of `layers` (by id). A layer with zero tokens, non-finite or all-zero sums is std::runtime_error by name; fewer
// than 4 D tokens are Wanting; a target of the wrong side or one that the statistics cannot give is std::invalid_argument.
FitResult fit(const std::map<int, LayerStatistics>& layers, const FitOptions& options);

// 1 - mean over heads of sum_i lambda_i(shared basis order) captured / captured by the head's own basis, top D/4 directions:
// 0 when the heads agree, towards 1 when their subspaces are disjoint.
double shared_rotation_loss(const std::vector<Matrix>& per_head);

}  // namespace oscar
