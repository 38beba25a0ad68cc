#include "libcalib/geometry.h"

#include <algorithm>
#include <numeric>

#include "kernels/gram.h"
#include "libcalib/eigen_decomposition.h"

namespace oscar {

double flatness(std::span<const double> channel_power) {
  const double sum = std::accumulate(channel_power.begin(), channel_power.end(), 0.0);
  const double largest = *std::max_element(channel_power.begin(), channel_power.end());
  return sum > 0 ? largest * static_cast<double>(channel_power.size()) / sum : 1;
}

double alignment(const LayerShape& shape, const Probe& probe, int head, const std::string& what) {
  const int D = shape.dim_k, H = shape.group(), top = std::min(8, D);
  Matrix qq = Matrix::Zero(D, D), kk = Matrix::Zero(D, D);
  for (int j = 0; j < H; ++j) {
    add_gram(probe.q.data() + (head * H + j) * D, int64_t{shape.q_heads} * D, nullptr, probe.tokens, D,
             qq.data());
  }
  add_gram(probe.k.data() + head * D, int64_t{shape.kv_heads} * D, nullptr, probe.tokens, D, kk.data());
  const auto q = eigen_decomposition(qq, what + ", Sigma_Q of the probe");
  const auto k = eigen_decomposition(kk, what + ", Sigma_K of the probe");
  return (q.vectors.rightCols(top).transpose() * k.vectors.rightCols(top)).squaredNorm() / top;
}

}  // namespace oscar
