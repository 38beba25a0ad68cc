#include "libcalib/permutation.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "formats/error.h"

namespace oscar {

std::vector<int> bit_reversal(int d) {
  if (d < 1) throw invalid("bit reversal: expected a positive size, got {}", d);
  const int bits = std::bit_width(static_cast<unsigned>(d - 1));
  std::vector<int> order;
  order.reserve(static_cast<size_t>(d));
  for (int i = 0; i < 1 << bits; ++i) {
    int reversed = 0;
    for (int b = 0; b < bits; ++b) reversed |= (i >> b & 1) << (bits - 1 - b);
    if (reversed < d) order.push_back(reversed);
  }
  return order;
}

Matrix bit_reversal_permutation(const Vector& eigenvalues) {
  const int d = static_cast<int>(eigenvalues.size());
  std::vector<int> sigma(static_cast<size_t>(d));
  std::iota(sigma.rbegin(), sigma.rend(), 0);
  std::stable_sort(sigma.begin(), sigma.end(), [&](int a, int b) { return eigenvalues[a] > eigenvalues[b]; });
  const auto beta = bit_reversal(d);
  Matrix p = Matrix::Zero(d, d);
  for (size_t i = 0; i < beta.size(); ++i) p(sigma[i], beta[i]) = 1;
  return p;
}

}  // namespace oscar
