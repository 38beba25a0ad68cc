#include "libcalib/centred.h"

#include "formats/error.h"

namespace oscar {

Centred centred_rows(const LayerSums& sums, Side side, int head, Importance importance) {
  const bool k = side == Side::K, weighted = importance != Importance::None,
             out = k && importance == Importance::Output;
  const double weight = weighted ? sums.scalar(out ? Sum::x
                                               : k ? Sum::u
                                                   : Sum::w,
                                               head)
                                 : static_cast<double>(sums.tokens);
  if (!(weight > 0)) {
    throw invalid(
        "layer {}, head {}: importance-weighted moments of {} need the score statistics of oscar-dump, from "
        "sequences "
        "longer than the windows; this input has none: dump with them, or take a method that needs second "
        "moments only",
        sums.shape().layer, head, side_name(side));
  }
  const Sum first = weighted ? (out ? Sum::xk : k ? Sum::uk : Sum::wv) : (k ? Sum::k_sum : Sum::v_sum);
  const Sum second = weighted ? (out ? Sum::xkk : k ? Sum::ukk : Sum::wvv) : (k ? Sum::kk : Sum::vv);
  Centred rows{sums.row(first, head) / weight, sums.matrix(second, head) / weight};
  rows.covariance -= rows.mean * rows.mean.transpose();
  rows.covariance = (0.5 * (rows.covariance + rows.covariance.transpose())).eval();
  return rows;
}

}  // namespace oscar
