// Bounds on a report, for pipelines: one line of text for every bound that failed.
#pragma once
#include <filesystem>
#include <optional>

#include "libcalib/verify.h"

namespace oscar {

struct Bounds {
  std::optional<double> max_kl, max_output_error;  // of every layer
};
// For the rows named; std::invalid_argument for a name the report has not. A line tells row, worst layer and
// value.
std::vector<std::string> exceeded(const VerifyReport& report, const std::vector<std::string>& rows,
                                  const Bounds& bounds);

// Rows of the same name in an earlier report (oscar-verify/1): attention KL and output error, mean and every
// layer, may be larger by the relative `tolerance`. std::invalid_argument when the two were measured
// differently (windows, positions, probes, model), std::runtime_error when the file is no such report.
std::vector<std::string> regressions(const VerifyReport& report, const std::filesystem::path& baseline,
                                     double tolerance);

}  // namespace oscar
