// Normalised Hadamard matrices, entries ±1/sqrt(d).
#pragma once
#include "libcalib/types.h"

namespace oscar {

// d = m 2^p: Sylvester (x) Paley, m in {1, 12, 20, 28, …}. std::invalid_argument for an order this construction has not.
// For a power of two it is the Sylvester matrix of the published scripts.
Matrix hadamard(int d);

}  // namespace oscar
