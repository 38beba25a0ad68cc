// Attention-level verification on held-out probes: what each row (a transform and a codec for K and for V)
// loses, layer by layer, read from really packed codes by kernels/diagnose.
#pragma once
#include <functional>
#include <optional>

#include "libcalib/artifacts/statistics_file.h"
#include "libcalib/codes.h"
#include "libcalib/compute_device.h"
#include "libcalib/end_to_end.h"

namespace oscar {

struct VerifyOptions {
  Windows windows;
  int64_t first_query = 0;  // --positions A:
  std::vector<int> probes;  // indices
  std::vector<int> layers;  // empty: all
  ComputeDevice device{};   // measures attention
};

// All diagnostics of docs/math.md for one layer, means over probes, heads and counted queries.
struct LayerDiagnostics {
  int layer = 0;
  double attention_kl = 0;      // mean KL(p || p^), nats
  double top1 = 0;              // share of queries with the same argmax
  double logit_error = 0;       // ||QK^T - QK^^T||_F^2 / ||QK^T||_F^2
  double output_error = 0;      // ||SV - S^V^||_F^2 / ||SV||_F^2
  double output_error_k = 0;    // keys only
  double output_error_v = 0;    // values only
  double mse_k = 0, mse_v = 0;  // mean squared error of an element, history rows
  double snr_k = 0, snr_v = 0;  // dB, 10 log10(||x||^2 / ||x - x^||^2)
  double flatness_k = 0,
         flatness_v = 0;  // max / mean of diag(R^T Sigma R), mean over heads; 1 is perfect (Lemma 1);
                          // Sigma_Q for K and Sigma_O for V, of the counted queries
  double range_k = 0, range_v = 0;  // mean (max - min) of a group of a history row before clipping
  double alignment = 0;             // overlap of the top-8 eigenspaces of Sigma_Q and Sigma_K, 0..1
  std::vector<double> head_kl{}, head_output_error{};      // (Hkv); empty in `mean`
  std::vector<double> bucket_kl{}, bucket_output_error{};  // by position, see VerifyReport::buckets
};
// The numbers of LayerDiagnostics by name, in the order of reports: means and JSON keys are made from this
// table.
struct DiagnosticInfo {
  std::string_view name;
  double LayerDiagnostics::*field;
};
std::span<const DiagnosticInfo> diagnostic_table();

// Of a row's codes: everything of SideReport but `bits` is what the set-up says, of its first head where
// heads differ.
struct SideReport {
  std::string codec;      // distinct names, or codebook shapes, joined by '+'
  std::string objective;  // "identity" without a transform
  int groups = 1;
  double clip = 0;
  double bits = 0;  // measured: bytes held * 8 / elements, history rows only
};
struct RowReport {
  std::string name;
  std::vector<std::string> storage{};  // what is really held, keys before values: "packed INT2", …
  SideReport k{}, v{};
  LayerDiagnostics mean{};  // layer = -1
  std::vector<LayerDiagnostics> layers{};
  std::optional<EndToEndResult> end_to_end{};
  std::optional<GenerationAgreement> generation{};
  std::optional<Windows> windows{};  // of this row, where they are not the report's
};
struct PositionBucket {
  int64_t first = 0, last = 0;  // query positions [first, last)
};
// Doubling positions from the smallest power of two below the first counted query on.
std::vector<PositionBucket> position_buckets(int64_t first_query, int64_t tokens);

struct VerifyReport {
  Provenance provenance;
  Windows windows;
  int64_t first_query = 0;
  std::vector<int> probes;
  std::vector<int64_t> probe_tokens{};
  std::vector<PositionBucket> buckets{};
  std::string path;  // which code really ran: "packed INT2, CPU avx2"
  std::vector<RowReport> rows{};
  std::optional<EndToEndResult>
      exact{};  // the model without a quantised cache, where end-to-end was asked for
};

// Everything of a report but rows, exact and path. Refuses options as verify() does.
VerifyReport report_frame(const StatisticsReader& statistics, const VerifyOptions& options);
std::string path_of(const std::vector<RowReport>& rows, const ComputeDevice& device);

// progress(done, total) is called after each step (a layer, a probe, a row); may be empty. A probe's figures
// are sums over the query heads and counted queries of a layer, then ratios; then means over probes, then
// over layers. One layer's probe is in memory at a time. Checks (q inverse^T)(k forward)^T = qk^T and v
// forward inverse = v on real rows before anything is quantised (std::runtime_error names row, layer and
// error); what cannot be measured at all is std::invalid_argument.
VerifyReport verify(const StatisticsReader& statistics, const std::vector<CacheCodes>& rows,
                    const VerifyOptions& options, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace oscar
