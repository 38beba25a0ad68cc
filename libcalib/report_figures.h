// The figures of a report as HTML, each without its caption. What a report cannot show is "".
#pragma once
#include <map>
#include <vector>

#include "libcalib/clip.h"
#include "libcalib/spectra.h"
#include "libcalib/verify.h"

namespace oscar::figures {

// Numbers as the report's tables write them: four decimals, "2.3·10⁻⁵" below a thousandth, "–" for NaN, "∞".
std::string loss(double value);
std::string fixed(double value, int decimals);

// One style for a row in every figure: baselines dashed in ink, the six best others in colour, the rest grey.
struct Look {
  std::string style;
  bool featured = false;
};
using Looks = std::map<const RowReport*, Look>;
Looks looks(const VerifyReport& report);

std::string loss_versus_bits(const VerifyReport& report, const Looks& looks);
std::string layers(const VerifyReport& report, const Looks& looks, const std::string& id,
                   double LayerDiagnostics::*field, const std::string& label);
// A panel for every row; "" where `layers` shows every row by name already.
std::string layer_panels(const VerifyReport& report, const Looks& looks, const std::string& id,
                         double LayerDiagnostics::*field, const std::string& label);
std::vector<const RowReport*> heat_rows(const VerifyReport& report);
std::string heads(const VerifyReport& report);
std::string spectrum(const std::vector<Spectrum>& spectra, Side side);
std::string buckets(const VerifyReport& report, const Looks& looks);  // attention KL by position, of two
std::string token_buckets(const VerifyReport& report,
                          const Looks& looks);  // ranges or more; the same of tokens
std::string clip_curve(const ClipReport& clip, Side side);

}  // namespace oscar::figures
