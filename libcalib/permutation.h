// P_br: which eigenvector goes to which column, so that every group of channels gets its share of the top directions.
#pragma once
#include "libcalib/types.h"

namespace oscar {

// beta. Bit reversal of {0..d-1}; for d not a power of two the van-der-Corput order of the same positions: the bit reversal
// of the next power of two without the positions that do not exist. For every group size 2^j that divides d, the first
// d / 2^j entries lie in distinct groups.
std::vector<int> bit_reversal(int d);
// Columns: P(:, beta(i)) = e_sigma(i), sigma = eigenvalues descending, beta = bit_reversal. Of equal eigenvalues the
// higher index comes first, so that ascending eigenvalues give one constant P, whatever rounding did to them in a file.
Matrix bit_reversal_permutation(const Vector& eigenvalues);

}  // namespace oscar
