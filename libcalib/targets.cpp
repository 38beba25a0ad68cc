#include "libcalib/targets.h"

#include <algorithm>

#include "formats/error.h"
#include "libcalib/names.h"

namespace oscar {
namespace {

// A sum over rows divided by what it was weighted with; zero for rows that are all zero.
Matrix normalised(ConstMatrixMap sum, double weight) {
  if (weight > 0) return sum / weight;
  return Matrix::Zero(sum.rows(), sum.cols());
}
double query_rows(const LayerSums& s) {
  return static_cast<double>(s.tokens) * s.shape().group();
}

// Zero for every head: never summed. For one head alone: its rows are zero.
bool absent(const LayerSums& s, Sum sum) {
  return std::ranges::all_of(s.values(sum), [](double x) { return x == 0; });
}

Matrix qqt(const LayerSums& s, int head) {
  return normalised(s.matrix(Sum::qq, head), query_rows(s));
}
Matrix ktk(const LayerSums& s, int head) {
  return normalised(s.matrix(Sum::kk, head), static_cast<double>(s.tokens));
}
// Values of files that hold no more than what keys and queries weigh them with (moments of the serving
// engine).
bool only_weighted(const LayerSums& s) {
  return absent(s, Sum::vv) && !absent(s, Sum::proxy_weight);
}

Matrix vtv(const LayerSums& s, int head) {
  if (only_weighted(s))
    throw invalid(
        "layer {}: target vtv needs the plain second moment of the values, which this input does not have: "
        "use sst-proxy",
        s.shape().layer);
  return normalised(s.matrix(Sum::vv, head), static_cast<double>(s.tokens));
}

void need_scores(const LayerSums& s, int head, const char* target) {
  if (s.score_queries == 0) {
    throw invalid(
        "layer {}: target {} needs the score statistics of oscar-dump, which this input does not have; "
        "use qqt",
        s.shape().layer, target);
  }
  if (s.scalar(Sum::mass, head) > 0) return;
  if (!absent(s, Sum::mass))
    throw invalid(
        "layer {}, head {}: target {}: no query of this head has history mass, those of others have: use qqt",
        s.shape().layer, head, target);
  throw invalid(
      "layer {}, head {}: target {}: no query has history mass; the calibration sequences are not longer "
      "than the windows: use longer ones, or qqt",
      s.shape().layer, head, target);
}

Matrix qqt_mass(const LayerSums& s, int head) {
  need_scores(s, head, "qqt-mass");
  return normalised(s.matrix(Sum::qq_mass, head), s.scalar(Sum::mass, head));
}

Matrix qqt_out(const LayerSums& s, int head) {
  need_scores(s, head, "qqt-out");
  if (s.scalar(Sum::out, head) > 0) return normalised(s.matrix(Sum::qq_out, head), s.scalar(Sum::out, head));
  if (absent(s, Sum::out))
    throw invalid(
        "layer {}, head {}: target qqt-out: the file was written before oscar-dump weighted queries by the "
        "output: dump again, or use qqt-mass",
        s.shape().layer, head);
  throw invalid(
      "layer {}, head {}: target qqt-out: no error of this head's keys moves its output: its values are all "
      "the same, or W_O does not read them; use qqt-mass with importance=attention",
      s.shape().layer, head);
}

Matrix sst(const LayerSums& s, int head) {
  if (absent(s, Sum::oo) && (!absent(s, Sum::vv) || only_weighted(s))) {
    throw invalid(
        "layer {}: target sst needs the attention outputs that oscar-dump keeps, which this input does not "
        "have: "
        "use sst-proxy",
        s.shape().layer);
  }
  return normalised(s.matrix(Sum::oo, head), query_rows(s));
}

Matrix sst_proxy(const LayerSums& s, int head) {
  const double weight = s.scalar(Sum::proxy_weight, head);
  if (weight == 0 && s.matrix(Sum::qq, head).trace() > 0 && s.matrix(Sum::kk, head).trace() > 0) {
    if (absent(s, Sum::proxy_weight))
      throw invalid("layer {}: target sst-proxy: the second pass over k and v was not made; use sst",
                    s.shape().layer);
    throw invalid(
        "layer {}, head {}: target sst-proxy: its queries see none of its keys, those of other heads do: use "
        "sst",
        s.shape().layer, head);
  }
  return normalised(s.matrix(Sum::vv_proxy, head), weight);
}

constexpr TargetInfo kTargets[] = {
#define OSCAR_TARGET(name, side, function, meaning) {name, Side::side, meaning, function},
#include "libcalib/targets.def"
#undef OSCAR_TARGET
};

}  // namespace

std::span<const TargetInfo> target_table() {
  return kTargets;
}
const TargetInfo& find_target(std::string_view name) {
  return find_by_name(target_table(), name, "target");
}

}  // namespace oscar
