// Numbers about a set-up that need no codes.
#pragma once
#include <span>

#include "libcalib/statistics.h"

namespace oscar {

// max / mean of the diagonal of a second moment, from the summed squares of each channel: 1 where every
// channel carries the same energy, as after U H (Lemma 1 of the OSCAR paper).
double flatness(std::span<const double> channel_power);

// Overlap of the top-8 eigenspaces of Sigma_Q and Sigma_K of one KV head, ||U_Q^T U_K||_F^2 / 8: 1 when they
// agree, 8 / D by chance. From all rows of the probe; a rotation does not change it. `what` names the place
// in errors.
double alignment(const LayerShape& shape, const Probe& probe, int head, const std::string& what);

}  // namespace oscar
