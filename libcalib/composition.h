// The nine published products of U, H and P_br.
#pragma once
#include <span>
#include <string_view>

#include "libcalib/eigen_decomposition.h"

namespace oscar {

struct CompositionInfo {
  std::string_view name, product;
  bool needs_h;  // and therefore a head dim that hadamard() has
  Matrix (*compose)(const Matrix& u, const Matrix& h, const Matrix& p);
  Matrix (*recover)(const Matrix& r, const Matrix& h, const Matrix& p);  // U; empty where the product does not hold it
};
std::span<const CompositionInfo> composition_table();
const CompositionInfo& find_composition(std::string_view name);  // std::invalid_argument "unknown composition 'x'; known: …"

Matrix compose(const CompositionInfo& composition, const EigenDecomposition& eigen);
// The inverse: the covariance U diag(lambda) U^T that a stored rotation came from. Only for compositions that contain U in an
// invertible place; std::invalid_argument otherwise (pbr, h_pbr). Eigenvalues ascending, as stored.
Matrix recover_covariance(const CompositionInfo& composition, const Matrix& rotation, const Vector& eigenvalues);

}  // namespace oscar
