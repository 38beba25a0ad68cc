// Rows of a report, kept in a file between runs.
#pragma once
#include <filesystem>

#include "libcalib/verify.h"

namespace oscar {

// Rows that were finished, each with what its figures depend on.
struct KeptRows {
  std::vector<std::string> identities;
  VerifyReport report;  // rows, and `exact` where it was measured; the rest as of the run
};
// An empty set where there is no such file, or one that is not of this version.
KeptRows read_kept_rows(const std::filesystem::path& path);
void write_kept_rows(const std::filesystem::path& path, const KeptRows& rows);  // atomic

}  // namespace oscar
