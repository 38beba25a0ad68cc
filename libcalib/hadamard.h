// Normalised Hadamard matrices, entries ±1/sqrt(d).
#pragma once
#include "libcalib/types.h"

namespace oscar {

// d = m 2^p: Sylvester (x) Paley I or II over a prime field, m in {1, 12, 20, 28, 36, …}: 64, 80, 96, 112, 128, 160, 192, 256 and
// most multiples of 4. The first row and the first column are all positive. For a power of two it is the Sylvester matrix of
// the published scripts. std::invalid_argument for an order that these constructions do not have.
Matrix hadamard(int d);

}  // namespace oscar
