// How far the targets of a calibration are from round: what there is to gain from a rotation, layer by layer.
#pragma once
#include "libcalib/artifacts/statistics_file.h"

namespace oscar {

struct Spectrum {
  int layer = 0;
  // Eigenvalues of qqt and of sst, descending, each head's divided by their sum, then the mean over heads
  // rank by rank; empty when the statistics lack what the target needs.
  std::vector<double> k, v;
};

// Every layer of the file, one in memory at a time.
std::vector<Spectrum> spectra(const StatisticsReader& statistics);

}  // namespace oscar
