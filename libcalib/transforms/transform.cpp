#include "libcalib/transforms/transform.h"

#include <algorithm>

namespace oscar {
namespace {

using FloatMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = Eigen::Map<FloatMatrix, 0, Eigen::OuterStride<>>;
using ConstRows = Eigen::Map<const FloatMatrix, 0, Eigen::OuterStride<>>;

// Blocks of a fixed height, whatever the number of threads: the same products in the same order, the same
// floats.
constexpr int64_t kBlock = 256;

// out = in map; an empty map is the identity.
void apply(const float* in, int64_t stride, int64_t n, int dim, const Matrix& map, float* out) {
  const FloatMatrix product = map.cast<float>();
#pragma omp parallel for schedule(static)
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t count = std::min(kBlock, n - first);
    FloatMatrix x = ConstRows(in + first * stride, count, dim, Eigen::OuterStride<>(stride));
    if (product.size()) x = (x * product).eval();
    Rows(out + first * dim, count, dim, Eigen::OuterStride<>(dim)) = x;
  }
}

}  // namespace

void Transform::rows(const float* in, int64_t stride, int64_t n, int dim, float* out) const {
  apply(in, stride, n, dim, forward, out);
}

void Transform::queries(const float* in, int64_t stride, int64_t n, int dim, float* out) const {
  apply(in, stride, n, dim, inverse.size() ? Matrix(inverse.transpose()) : forward, out);
}

void Transform::outputs(float* rows, int64_t n, int dim) const {
  apply(rows, dim, n, dim, inverse.size() ? inverse : Matrix(forward.transpose()), rows);
}

Vector Transform::offset(int dim) const {
  if (!mean.size()) return Vector::Zero(dim);
  // Of the float32 numbers that files hold: what is read back from one gives the same codes.
  const Vector held = mean.cast<float>().cast<double>();
  return forward.size() ? Vector(forward.cast<float>().cast<double>().transpose() * held) : held;
}

}  // namespace oscar
