// Which rows a verification has, from the command line: baselines, rotation files, methods that are fitted on
// the spot, sweeps.
#pragma once
#include "apps/measure.h"
#include "libcalib/clip.h"
#include "libcalib/report.h"
#include "libcalib/report_html.h"
#include "libcalib/verification.h"

namespace oscar::cli {

inline constexpr const char* kSweepWindows = "4/0,64/256,128/1024";

struct RowChoice {
  Measure measure;
  std::vector<std::string> rotations, methods;
  std::string clip, sweep, sweep_windows;  // of --sweep windows; empty: kSweepWindows
  std::string device = "cpu";              // trains codebooks, if LibTorch can; the same bytes wherever
  bool clip_by_layer = false, no_baselines = false, quiet = false;
  int threads = 1;
};
struct Rows {
  std::vector<VerificationRow> rows;
  std::vector<std::string> bounded;  // names that --max-kl is about: rotations and methods, or all
  std::vector<MethodNote> notes;     // of the methods
};

// Rows that need no fit are checked here, before the first is measured. `asked`: the layers, and the probes,
// to say where a clip search has seen them.
Rows choose_rows(const RowChoice& choice, const StatisticsReader& statistics, const VerifyOptions& asked);

}  // namespace oscar::cli
