// P_br: which eigenvector goes to which column, so that every group of channels gets its share of the top directions.
#pragma once
#include "libcalib/types.h"

namespace oscar {

// Bit reversal of {0..d-1}; for d not a power of two the van-der-Corput order of the same positions (docs/math.md).
std::vector<int> bit_reversal(int d);
// Columns: P(:, beta(i)) = e_sigma(i), sigma = eigenvalues descending (stable), beta = bit_reversal.
Matrix bit_reversal_permutation(const Vector& eigenvalues);

}  // namespace oscar
