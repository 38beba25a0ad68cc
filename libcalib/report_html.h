// The report of oscar-verify for people: one HTML file that needs nothing else, no network and no scripts,
// and the same figures as CSV. docs/file-formats.md has the columns.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "libcalib/report.h"
#include "libcalib/spectra.h"

namespace oscar {

// Where a method comes from and what it costs a server; plain text.
struct MethodNote {
  std::string name, source, stores, needs;
};
// What a page shows; all but the report may be empty.
struct ReportPage {
  VerifyReport report;
  std::optional<ClipReport> clip{};  // read_clip_report()
  std::vector<Spectrum> spectra{};   // of the calibration
  std::vector<std::string> commands{};
  std::vector<MethodNote> methods{};
};

// UTF-8, no times: the same page gives the same bytes. Text from outside is escaped.
std::string to_html(const ReportPage& page);

// RFC 4180: a header, then for every row its layers and a line "mean", which also has what was measured end
// to end; the exact model first where there is one. Numbers read back to the same double; one that is not
// finite is an empty field.
std::string to_csv(const VerifyReport& report);

}  // namespace oscar
