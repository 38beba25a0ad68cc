// Two rotation files compared by what they mean: recovered covariance and subspaces; signs and degenerate directions do not
// matter.
#pragma once
#include "libcalib/rotation.h"

namespace oscar {

struct LayerDifference {
  int layer = 0;
  double covariance = 0;   // ||C_A - C_B||_F / ||C_A||_F, worst head; NaN where a file has no eigenvalues
  double subspace = 0;     // largest sine between the top-k spaces at the widest eigenvalue gap, worst head
  double rotation = 0;     // max |R_A - R_B| after the signs of the eigenvectors
};
struct Comparison {
  std::vector<LayerDifference> layers;
  std::vector<int> only_a, only_b;    // layer ids
  std::vector<std::string> remarks;   // objective, composition or grouping differ
  bool same_form = true;              // one composition: only then are equal covariances equal rotations
  // The same layers and, in each, the covariance (the rotation, where there is none) within `tolerance`.
  bool equal(double tolerance) const;
};
// std::invalid_argument when the files cannot be compared (K with V, different head dims).
Comparison compare(const RotationSet& a, const RotationSet& b);

}  // namespace oscar
