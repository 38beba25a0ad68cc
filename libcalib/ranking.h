// In what order the rows of a report are shown, and by which figure.
#pragma once
#include "libcalib/verify.h"

namespace oscar {

double mean_bits(const RowReport& row);  // of K and V
// The loss that rows are ranked by: token KL where any row has it (the others come last), attention KL else.
bool has_end_to_end(const VerifyReport& report);
bool ranks_by_token_kl(const VerifyReport& report);
double row_loss(const RowReport& row, bool token_kl);  // NaN: it has none

// What the loss would be at 2 bits an element if a further bit divided it by four: loss * 4^(bits - 2).
// Squared errors of a good code fall at that rate (6 dB a bit), and KL is quadratic in small errors; so rows
// of different bits can be compared.
double loss_per_bit(const RowReport& row, bool token_kl);

// Pointers into `report`. Ascending; rows without a figure last, equal ones as they came.
std::vector<const RowReport*> by_loss(const VerifyReport& report);  // token KL or attention KL
// Caches of 16 bits and more, which save nothing, come after the others.
std::vector<const RowReport*> by_loss_per_bit(const VerifyReport& report);
inline constexpr double kExactBits = 16;

// "BF16 (exact)": the model without a quantised cache, by the type it ran in.
std::string exact_name(const VerifyReport& report);
// Diagnostics of a layer's bucket, mean over layers; NaN where there is none.
double bucket_mean(const RowReport& row, std::vector<double> LayerDiagnostics::*field, size_t bucket);

}  // namespace oscar
