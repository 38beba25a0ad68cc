#include "libcalib/spectra.h"

#include "formats/error.h"
#include "libcalib/eigen_decomposition.h"
#include "libcalib/targets.h"

namespace oscar {
namespace {

std::vector<double> mean_spectrum(const LayerSums& sums, const TargetInfo& target) {
  const int heads = sums.shape().kv_heads;
  Vector mean = Vector::Zero(sums.shape().dim(target.side));
  for (int head = 0; head < heads; ++head) {
    Matrix matrix;
    try {
      matrix = target.of_head(sums, head);
    } catch (const std::invalid_argument&) {
      return {};
    }
    const auto what = fmt::format("layer {}, head {}: {}", sums.shape().layer, head, target.name);
    const Vector values = eigen_decomposition(matrix, what).values.reverse();
    if (values.sum() > 0) mean += values / (values.sum() * heads);
  }
  return {mean.begin(), mean.end()};
}

}  // namespace

std::vector<Spectrum> spectra(const StatisticsReader& statistics) {
  std::vector<Spectrum> all;
  for (const auto& shape : statistics.header().layers) {
    const LayerStatistics layer = statistics.layer(shape.layer);
    all.push_back({shape.layer, mean_spectrum(layer.sums, find_target("qqt")),
                   mean_spectrum(layer.sums, find_target("sst"))});
  }
  return all;
}

}  // namespace oscar
