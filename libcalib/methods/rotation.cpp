// OSCAR and its relatives: the eigenvectors of a target, composed with H and P. With `centre`, the mean of
// each head's keys is taken off first (OSCAR-2, v3 files): logits of a query then shift by one constant,
// which the softmax does not see.
#include "formats/error.h"
#include "libcalib/composition.h"
#include "libcalib/hadamard.h"
#include "libcalib/methods/support.h"

namespace oscar::rotation {

// A mean for every head: codes that heads shared are then one for each of them.
static void centre(LayerFit& fit, const LayerStatistics& layer, Side side, const MethodOptions& options) {
  if (options.centre == Centre::None) return;
  fit.heads.resize(static_cast<size_t>(layer.sums.shape().kv_heads), fit.heads[0]);
  for (int h = 0; h < layer.sums.shape().kv_heads; ++h) {
    fit.heads[static_cast<size_t>(h)].transform.mean =
        centred_rows(layer.sums, side, h, importance_of(options.centre)).mean;
  }
}

static LayerFit fit_hadamard(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const MethodOptions own;
  if (options.composition != own.composition)
    throw invalid("composition={} (--composition): 'hadamard' is H alone and takes none",
                  options.composition);
  if (options.granularity == Granularity::Head)
    throw invalid("granularity=head (--granularity): 'hadamard' is one H for every head");
  LayerFit fit;
  const int d = layer.sums.shape().dim(side);
  const Transform transform{.forward = hadamard(d), .inverse = {}, .mean = {}};
  check_transform(fit, transform, {}, 0, place(layer, side, -1, "hadamard"));
  fit.heads.push_back(scalar_code(options, transform, Vector::Ones(d)));  // ones as in the published files
  centre(fit, layer, side, options);
  return fit;
}

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  if (options.centre == Centre::Top)
    throw invalid("centre=top is for oscar-dc; a rotation takes off none, mean or weighted");
  if (options.target.empty()) return fit_hadamard(layer, side, options);
  const auto& composition = find_composition(options.composition);
  const auto targets = head_targets(layer, side, options.target);
  LayerFit fit;
  const auto add = [&](const Matrix& target, const std::string& what) {
    const EigenDecomposition eigen = eigen_decomposition(target, what);
    const Transform transform{.forward = compose(composition, eigen), .inverse = {}, .mean = {}};
    check_transform(fit, transform, eigen.values, eigen.residual, what);
    check_flatness(fit, transform.forward, target);
    fit.heads.push_back(scalar_code(options, transform, eigen.values));
  };
  if (options.granularity == Granularity::Head) {
    for (int h = 0; h < layer.sums.shape().kv_heads; ++h)
      add(targets[static_cast<size_t>(h)], place(layer, side, h, options.target));
  } else {
    fit.check.shared_loss = shared_rotation_loss(targets);
    add(mean_of(targets), place(layer, side, -1, options.target));
  }
  centre(fit, layer, side, options);
  return fit;
}

std::string objective(Side, const MethodOptions& options) {
  return objective_name(options.target, options.composition, options.granularity == Granularity::Head);
}

}  // namespace oscar::rotation
