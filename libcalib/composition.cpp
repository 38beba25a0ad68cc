#include "libcalib/composition.h"

#include "formats/error.h"
#include "libcalib/hadamard.h"
#include "libcalib/names.h"
#include "libcalib/permutation.h"

namespace oscar {
namespace {

const Matrix none;

constexpr CompositionInfo kCompositions[] = {
#define OSCAR_COMPOSITION(name, product, forward, inverse)                        \
  {#name, product, std::string_view(product).find('H') != std::string_view::npos, \
   [](const Matrix& u [[maybe_unused]], const Matrix& h [[maybe_unused]],         \
      const Matrix& p [[maybe_unused]]) -> Matrix { return forward; },            \
   [](const Matrix& r [[maybe_unused]], const Matrix& h [[maybe_unused]],         \
      const Matrix& p [[maybe_unused]]) -> Matrix { return inverse; }},
#include "libcalib/composition.def"
#undef OSCAR_COMPOSITION
};

Matrix hadamard_of(const CompositionInfo& composition, Eigen::Index d) {
  return composition.needs_h ? hadamard(static_cast<int>(d)) : Matrix();
}

}  // namespace

std::span<const CompositionInfo> composition_table() {
  return kCompositions;
}
const CompositionInfo& find_composition(std::string_view name) {
  return find_by_name(composition_table(), name, "composition");
}

Matrix compose(const CompositionInfo& composition, const EigenDecomposition& eigen) {
  return composition.compose(eigen.vectors, hadamard_of(composition, eigen.values.size()),
                             bit_reversal_permutation(eigen.values));
}

Matrix recover_covariance(const CompositionInfo& composition, const Matrix& rotation,
                          const Vector& eigenvalues) {
  if (rotation.rows() != rotation.cols() || rotation.rows() != eigenvalues.size()) {
    throw invalid("recover_covariance: {} x {} rotation with {} eigenvalues", rotation.rows(),
                  rotation.cols(), eigenvalues.size());
  }
  const Matrix u = composition.recover(rotation, hadamard_of(composition, rotation.rows()),
                                       bit_reversal_permutation(eigenvalues));
  if (u.size() == 0) {
    throw invalid(
        "composition '{}' is {}, which does not hold the eigenvectors: no covariance can be recovered",
        composition.name, composition.product);
  }
  return u * eigenvalues.asDiagonal() * u.transpose();
}

}  // namespace oscar
