// What was fitted, tried on rows like those that it was fitted to.
#pragma once
#include <string_view>

#include "libcalib/methods/method.h"

namespace oscar {

// Of a fit of one side of a layer. What verify would refuse of rows with the second moments of the statistics, by the
// checks of transforms/trial.h, is std::runtime_error naming layer, side, head and `method`. Statistics without rows,
// which some methods need none of, are no trial.
void try_on_statistics(const LayerStatistics& layer, Side side, const LayerFit& fit, std::string_view method);

}  // namespace oscar
