// The tables of the HTML report, from <table …> to </table>, without their captions.
#pragma once
#include "libcalib/report_html.h"

namespace oscar::tables {

std::string rows(const VerifyReport& report);  // sorted by loss per bit
std::string rows_caption(const VerifyReport& report);
std::string provenance(const Provenance& provenance);
std::string measurement(const VerifyReport& report);
std::string methods(const std::vector<MethodNote>& notes);

}  // namespace oscar::tables
