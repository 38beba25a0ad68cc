// OSCAR and its relatives: the eigenvectors of a target, composed with H and P. With `centre`, the mean of
// each head's keys is taken off first (OSCAR-2, v3 files): logits of a query then shift by one constant,
// which the softmax does not see.
#include "formats/error.h"
#include "libcalib/composition.h"
#include "libcalib/hadamard.h"
#include "libcalib/methods/support.h"

namespace oscar::rotation {

static LayerFit fit_hadamard(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const MethodOptions own;
  if (options.composition != own.composition)
    throw invalid("composition: 'hadamard' is H alone and takes none");
  if (options.granularity == Granularity::Head)
    throw invalid("granularity: 'hadamard' is one H for every head");
  if (options.centre != Centre::None) throw invalid("centre: 'hadamard' needs no statistics and takes none");
  LayerFit fit;
  const int d = layer.sums.shape().dim(side);
  const Transform transform{.forward = hadamard(d), .inverse = {}, .mean = {}};
  check_transform(fit, transform, {}, 0, place(layer, side, -1, "hadamard"));
  fit.heads.push_back(scalar_code(options, transform, Vector::Ones(d)));  // ones as in the published files
  return fit;
}

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  if (options.target.empty()) return fit_hadamard(layer, side, options);
  const auto& composition = find_composition(options.composition);
  const auto targets = head_targets(layer, side, options.target);
  const int heads = layer.sums.shape().kv_heads;
  LayerFit fit;
  const auto add = [&](const Matrix& target, int head, const std::string& what) {
    const EigenDecomposition eigen = eigen_decomposition(target, what);
    const Transform transform{.forward = compose(composition, eigen), .inverse = {}, .mean = {}};
    check_transform(fit, transform, eigen.values, eigen.residual, what);
    check_flatness(fit, transform.forward, target);
    fit.heads.push_back(scalar_code(options, transform, eigen.values));
    if (options.centre == Centre::None) return;
    fit.heads.back().transform.mean =
        centred_rows(layer.sums, side, head, options.centre == Centre::Weighted).mean;
  };
  if (options.granularity == Granularity::Head) {
    for (int h = 0; h < heads; ++h)
      add(targets[static_cast<size_t>(h)], h, place(layer, side, h, options.target));
    return fit;
  }
  fit.check.shared_loss = shared_rotation_loss(targets);
  add(mean_of(targets), 0, place(layer, side, -1, options.target));
  if (options.centre == Centre::None) return fit;
  for (int h = 1; h < heads; ++h) {  // one rotation, a mean for each head
    fit.heads.push_back(fit.heads[0]);
    fit.heads.back().transform.mean =
        centred_rows(layer.sums, side, h, options.centre == Centre::Weighted).mean;
  }
  return fit;
}

std::string objective(Side, const MethodOptions& options) {
  return objective_name(options.target, options.composition, options.granularity == Granularity::Head);
}

}  // namespace oscar::rotation
