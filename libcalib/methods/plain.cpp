// Methods that look at no statistics: a fixed map, or none, and a codec.
#include <Eigen/QR>
#include <cmath>
#include <numbers>

#include "formats/error.h"
#include "libcalib/gaussian.h"
#include "libcalib/hadamard.h"
#include "libcalib/methods/support.h"

namespace oscar {

namespace plain {

LayerFit fit(const LayerStatistics&, Side, const MethodOptions& options) {
  LayerFit fit;
  fit.heads.push_back(scalar_code(options, {}));
  return fit;
}
std::string objective(Side, const MethodOptions&) {
  return "identity";
}

}  // namespace plain

namespace block_hadamard {

// SAW-INT4: H on blocks of the row, so that a rotation costs little at run time.
static constexpr int kBlock = 32;

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const int d = layer.sums.shape().dim(side);
  if (d % kBlock != 0) throw invalid("head dim {}: SAW-INT4 rotates blocks of {} channels", d, kBlock);
  Matrix map = Matrix::Zero(d, d);
  for (int first = 0; first < d; first += kBlock) map.block(first, first, kBlock, kBlock) = hadamard(kBlock);
  LayerFit fit;
  fit.heads.push_back(scalar_code(options, {.forward = map, .inverse = {}, .mean = {}}));
  return fit;
}
std::string objective(Side, const MethodOptions&) {
  return "block_hadamard";
}

}  // namespace block_hadamard

namespace random_rotation {

// TurboQuant: after a random rotation every channel of a row of norm 1 is near N(0, 1/D); one Lloyd-Max
// codebook serves all.
LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const LayerShape& shape = layer.sums.shape();
  const int d = shape.dim(side), bits = static_cast<int>(options.bits);
  if (bits != options.bits || bits < 1 || bits > 8)
    throw invalid("bits={}: expected 1 to 8, whole", options.bits);
  const bool qjl = options.qjl;
  // A rotation for each layer and side, from the seed alone.
  const uint64_t seed = options.seed * 1000003 + static_cast<uint64_t>(2 * shape.layer + (side == Side::V));
  GaussianSource gaussian(seed);
  Matrix random(d, d);
  for (auto& value : random.reshaped()) value = gaussian();
  const Matrix q = Eigen::HouseholderQR<Matrix>(random).householderQ();
  Codebook codebook{.groups = {}, .norm = true};
  const CodeGroup group{.size = 1, .bits = bits - qjl, .words = gaussian_levels(bits - qjl)};
  codebook.groups.assign(static_cast<size_t>(d), group);
  HeadCode code{.transform = {.forward = q, .inverse = {}, .mean = {}},
                .codec = &find_codec(qjl ? "qjl" : "vector"),
                .options = {.codebook = std::make_shared<const Codebook>(std::move(codebook)), .seed = seed},
                .eigenvalues = {}};
  LayerFit fit;
  check_transform(fit, code.transform, {}, 0, place(layer, side, -1, "turboquant"));
  fit.heads.push_back(std::move(code));
  return fit;
}
std::string objective(Side, const MethodOptions& options) {
  return fmt::format("turboquant-{}bit{}", options.bits, options.qjl ? "-qjl" : "");
}

}  // namespace random_rotation
}  // namespace oscar
