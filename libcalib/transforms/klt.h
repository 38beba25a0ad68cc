// The Karhunen-Loeve transform in a metric: F = M^1/2 E, E the eigenvectors (descending) of M^1/2 C M^1/2. A
// squared error in r = (x - mean) F is the error of x in the metric, |r - r^|^2 = (x - x^) M (x - x^)^T
// (Parseval), and the channels of r are uncorrelated with variances Lambda (NOVA-KV, Theorem 1;
// docs/math.md).
#pragma once
#include <string>

#include "libcalib/centred.h"
#include "libcalib/transforms/transform.h"

namespace oscar {

// Which ranks (descending variance) share a group of `size` consecutive columns; L groups. Volume: rank r
// goes to group r mod L. Snake: the same with every second round of L backwards, which evens the volumes out.
// Contiguous: as they come. Anti: each group takes from both ends, its largest ranks beside its smallest.
enum class Partition : uint8_t { Volume, Snake, Contiguous, Anti };
// order[c]: the rank that column c holds.
std::vector<int> partition_order(int dim, int size, Partition partition);

struct Klt {
  Transform transform;
  Vector variances;     // (D) of the columns of r, in their order
  Vector eigenvalues;   // (D) ascending
  double residual = 0;  // of the decomposition
};
// Eigenvalues of a metric below this share of the largest count as that in its +-1/2 powers: as float32 in a file,
// map times inverse is then the identity to 3e-4, within what readers allow.
inline constexpr double kMetricFloor = 1e-9;
Klt klt(const Matrix& metric, const Centred& rows, Partition partition, int size, const std::string& what);

// Largest over smallest geometric mean of the variances of a group.
double volume_spread(const Vector& variances, int size);

// M^exponent of a symmetric positive semidefinite matrix; eigenvalues below `floor` of the largest count as
// that. The identity where M is zero.
Matrix matrix_power(const Matrix& m, double exponent, double floor, const std::string& what);

}  // namespace oscar
