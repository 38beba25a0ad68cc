// Rotations aligned with the zero point. An affine group keeps min and scale in high precision, so what all
// its channels share costs no levels. R = B H with the first basis vector on the all-ones row of H: x R =
// (x.u) / sqrt(D) on every channel and a rest without that component. With G groups there are G such
// directions, H = H_G (x) H_(D/G): those whose row in H is constant on each group.
#pragma once
#include <string>

#include "libcalib/types.h"

namespace oscar {

struct ZeroPointRotation {
  Matrix rotation;     // (D, D) orthogonal
  Vector eigenvalues;  // (D) ascending, of the target without the mean direction; its place holds 0
  double residual = 0;
};
// mean (D): u = mean / |mean|; a zero mean takes the target's top eigenvector. The other directions are
// eigenvectors of (I - u u^T) target (I - u u^T), descending; with `groups` > 1 the top groups - 1 of
// `spread` (D, D), a second moment of the rows, come before them on the group-constant rows.
// std::invalid_argument when groups does not divide D.
ZeroPointRotation zero_point_rotation(const Vector& mean, const Matrix& target, const Matrix& spread,
                                      int groups, const std::string& what);

}  // namespace oscar
