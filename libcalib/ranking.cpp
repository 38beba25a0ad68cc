#include "libcalib/ranking.h"

#include <algorithm>
#include <cmath>

namespace oscar {

double mean_bits(const RowReport& row) {
  return (row.k.bits + row.v.bits) / 2;
}

bool has_end_to_end(const VerifyReport& report) {
  return report.exact ||
         std::ranges::any_of(report.rows, [](const RowReport& row) { return row.end_to_end.has_value(); });
}

double row_loss(const RowReport& row, bool token_kl) {
  if (!token_kl) return row.mean.attention_kl;
  return row.end_to_end ? row.end_to_end->mean.token_kl : std::nan("");
}

bool ranks_by_token_kl(const VerifyReport& report) {
  return std::ranges::any_of(report.rows,
                             [](const RowReport& row) { return std::isfinite(row_loss(row, true)); });
}

double loss_per_bit(const RowReport& row, bool token_kl) {
  return row_loss(row, token_kl) * std::pow(4.0, mean_bits(row) - 2);
}

namespace {

template <typename Key>
std::vector<const RowReport*> sorted(const VerifyReport& report, const Key& key) {
  std::vector<const RowReport*> rows;
  for (const auto& row : report.rows) rows.push_back(&row);
  std::ranges::stable_sort(rows, {}, [&](const RowReport* row) {  // NaN has no order of its own
    const double value = key(*row);
    return std::isnan(value) ? INFINITY : value;
  });
  return rows;
}

}  // namespace

std::vector<const RowReport*> by_loss(const VerifyReport& report) {
  const bool token_kl = ranks_by_token_kl(report);
  return sorted(report, [&](const RowReport& row) { return row_loss(row, token_kl); });
}

std::vector<const RowReport*> by_loss_per_bit(const VerifyReport& report) {
  const bool token_kl = ranks_by_token_kl(report);
  auto rows = sorted(report, [&](const RowReport& row) { return loss_per_bit(row, token_kl); });
  std::ranges::stable_sort(rows, {}, [](const RowReport* row) { return mean_bits(*row) >= kExactBits; });
  return rows;
}

std::string exact_name(const VerifyReport& report) {
  const auto& dtype = report.provenance.dtype;
  return dtype == "bfloat16" ? "BF16 (exact)" : dtype == "float32" ? "FP32 (exact)" : "exact";
}

double bucket_mean(const RowReport& row, std::vector<double> LayerDiagnostics::*field, size_t bucket) {
  double sum = 0;
  size_t count = 0;
  for (const auto& layer : row.layers) {
    const auto& values = layer.*field;
    if (bucket >= values.size() || !std::isfinite(values[bucket])) continue;
    sum += values[bucket];
    ++count;
  }
  return count > 0 ? sum / static_cast<double>(count) : std::nan("");
}

}  // namespace oscar
