// C = U diag(lambda) U^T, the same bytes on every machine.
#pragma once
#include "libcalib/types.h"

namespace oscar {

struct EigenDecomposition {
  Vector values;   // ascending
  Matrix vectors;  // columns
  double residual = 0;         // max |C U - U L| / max |C|
  double orthogonality = 0;    // max |U^T U - I|
};

// Symmetrises first. Signs: the largest-magnitude entry of a vector is positive, ties to the lowest index; vectors of equal
// eigenvalues (relative 1e-12) are ordered by the index of that entry. Throws std::runtime_error on a non-finite matrix, on
// failure to converge, and when residual or orthogonality exceed 1e-8 (`what` names the layer and target).
EigenDecomposition eigen_decomposition(const Matrix& c, const std::string& what);

}  // namespace oscar
