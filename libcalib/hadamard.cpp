#include "libcalib/hadamard.h"

#include <cmath>

#include "formats/error.h"

namespace oscar {
namespace {

bool is_prime(int n) {
  if (n < 2) return false;
  for (int i = 2; i * i <= n; ++i) {
    if (n % i == 0) return false;
  }
  return true;
}

// +1 for a non-zero square modulo the odd prime q, -1 for a non-square, 0 for 0.
std::vector<int> quadratic_characters(int q) {
  std::vector<int> character(static_cast<size_t>(q), -1);
  character[0] = 0;
  for (int64_t i = 1; i < q; ++i) character[static_cast<size_t>(i * i % q)] = 1;
  return character;
}

// Q(i, j) = chi(i - j), bordered by a zero corner, ones above and `left` on the side: the conference matrix
// of Paley.
Matrix conference(int q, double left) {
  const auto character = quadratic_characters(q);
  Matrix c(q + 1, q + 1);
  c.row(0).setOnes();
  c.col(0).setConstant(left);
  c(0, 0) = 0;
  for (int i = 0; i < q; ++i) {
    for (int j = 0; j < q; ++j) c(i + 1, j + 1) = character[static_cast<size_t>((i - j + q) % q)];
  }
  return c;
}

Matrix kronecker(const Matrix& a, const Matrix& b) {
  Matrix product(a.rows() * b.rows(), a.cols() * b.cols());
  for (Eigen::Index i = 0; i < a.rows(); ++i) {
    for (Eigen::Index j = 0; j < a.cols(); ++j) {
      product.block(i * b.rows(), j * b.cols(), b.rows(), b.cols()) = a(i, j) * b;
    }
  }
  return product;
}

Matrix identity(int n) {
  return Matrix::Identity(n, n);
}

// R. E. A. C. Paley, On orthogonal matrices, 1933. Empty when neither construction has the order m (entries
// ±1).
Matrix paley(int m) {
  Matrix h;
  if (m % 4 != 0) return h;
  if (is_prime(m - 1)) {  // I: q = m - 1 is 3 modulo 4, the conference matrix is skew
    h = identity(m) + conference(m - 1, -1);
  } else if (const int q = m / 2 - 1; q % 4 == 1 && is_prime(q)) {  // II: symmetric
    const Matrix c = conference(q, 1);
    h = kronecker(c, (Matrix(2, 2) << 1, 1, 1, -1).finished()) +
        kronecker(identity(q + 1), (Matrix(2, 2) << 1, -1, -1, -1).finished());
  }
  // First row and column all ones, as Sylvester's have: a direction laid on row 0 is spread evenly with one
  // sign.
  for (Eigen::Index j = 0; j < h.cols(); ++j) h.col(j) *= h(0, j);
  for (Eigen::Index i = 0; i < h.rows(); ++i) h.row(i) *= h(i, 0);
  return h;
}

Matrix sylvester(int n) {
  Matrix h = Matrix::Ones(1, 1);
  const Matrix two = (Matrix(2, 2) << 1, 1, 1, -1).finished();
  while (h.rows() < n) h = kronecker(two, h);
  return h;
}

}  // namespace

Matrix hadamard(int d) {
  if (d < 1) throw invalid("Hadamard matrix: expected a positive order, got {}", d);
  const double norm = 1 / std::sqrt(static_cast<double>(d));
  if ((d & (d - 1)) == 0) return sylvester(d) * norm;
  int m = d;
  while (m % 2 == 0) m /= 2;
  for (; m <= d; m *= 2) {
    if (const Matrix h = paley(m); h.size() > 0) return kronecker(sylvester(d / m), h) * norm;
  }
  throw invalid(
      "Hadamard matrix of order {}: expected m 2^p with m from Paley's constructions (1, 12, 20, 28, 36, 44, "
      "…); "
      "use the composition 'plain' or 'br', or a method without one (awvq, turboquant, kivi)",
      d);
}

}  // namespace oscar
