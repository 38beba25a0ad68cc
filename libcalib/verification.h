// A whole verification: row after row, at the level of attention and, where asked for, end to end. Finished
// rows are kept in a file beside the report, so that an interrupted run goes on where it stopped.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>

#include "libcalib/codes.h"
#include "libcalib/verify.h"

namespace oscar {

struct VerificationRow {
  std::string name;
  std::string identity;  // everything that its figures depend on, for a kept row to be taken as this one
  std::function<CacheCodes()> make;  // fits or reads; called once, when the row's turn comes
  std::optional<Windows> windows{};  // instead of those of all rows
  bool optional = false;  // where it cannot be made or measured, a note says why and the others go on
};

struct VerificationOptions {
  VerifyOptions attention;
  std::vector<int> token_probes{};  // end to end: over these, as many as the file has ids of
  std::filesystem::path model{};    // empty: no end-to-end figures
  std::string model_device = "cpu";  // where it runs
  int64_t generate = 0;             // > 0: greedy tokens of each probe, too
  int64_t prompt = 0;               // after that many tokens of it
  int threads = 2;
  std::filesystem::path kept{};  // finished rows; empty: none are kept
};

struct VerificationStep {
  std::string what;     // "awvq: end to end"
  int64_t done, total;  // of the whole run, in units of about equal time
};

// The report, with a row for each of `rows` in their order. The digest of the model must be that of the
// statistics, which must hold the token ids of the probes: std::invalid_argument otherwise.
VerifyReport run_verification(const StatisticsReader& statistics, const std::vector<VerificationRow>& rows,
                              const VerificationOptions& options,
                              const std::function<void(const VerificationStep&)>& progress,
                              const std::function<void(const std::string&)>& note);

}  // namespace oscar
