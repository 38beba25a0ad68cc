// Attention-level verification on held-out probes: what each row (a transform and a codec for K and for V)
// loses, layer by layer, read from really packed codes by kernels/diagnose.
#pragma once
#include <functional>
#include <optional>

#include "libcalib/artifacts/statistics_file.h"
#include "libcalib/codecs/codec.h"
#include "libcalib/rotation.h"
#include "libcalib/transforms/transform.h"

namespace oscar {

struct SideSetup {
  const CodecInfo* codec = nullptr;
  CodecOptions options;  // clip of layers not in `clip_by_layer`
  std::map<int, double> clip_by_layer;
  const RotationSet* rotation = nullptr;  // nullptr: identity
};
struct VerifyRow {
  std::string name;
  SideSetup k, v;
};

struct VerifyOptions {
  Windows windows;
  int64_t first_query = 0;  // --positions A:
  std::vector<int> probes;  // indices
  std::vector<int> layers;  // empty: all
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
  std::vector<double> head_kl{}, head_output_error{};  // (Hkv); empty in `mean`
};
// The numbers of LayerDiagnostics by name, in the order of reports: means and JSON keys are made from this
// table.
struct DiagnosticInfo {
  std::string_view name;
  double LayerDiagnostics::*field;
};
std::span<const DiagnosticInfo> diagnostic_table();

struct RowReport {
  std::string name, codec_k, codec_v;
  std::string objective_k, objective_v;  // of the rotations; "identity" without one
  int groups_k = 1, groups_v = 1;
  double clip_k = 0, clip_v = 0;  // ratios of layers without their own
  double bits_k = 0, bits_v = 0;  // measured: bytes held * 8 / elements, history rows only
  LayerDiagnostics mean{};        // layer = -1
  std::vector<LayerDiagnostics> layers{};
};
struct VerifyReport {
  Provenance provenance;
  Windows windows;
  int64_t first_query = 0;
  std::vector<int> probes;
  std::vector<int64_t> probe_tokens{};
  std::string path;  // which code really ran: "packed INT2, CPU avx2"
  std::vector<RowReport> rows{};
};

// progress(done, total) is called after each step (a layer, a probe, a row); may be empty. A probe's figures
// are sums over the query heads and counted queries of a layer, then ratios; then means over probes, then
// over layers. One layer's probe is in memory at a time. Checks (qR)(kR)^T = qk^T and vRR^-1 = v on real rows
// before anything is quantised (std::runtime_error names row, layer and error); what cannot be measured at
// all is std::invalid_argument.
VerifyReport verify(const StatisticsReader& statistics, const std::vector<VerifyRow>& rows,
                    const VerifyOptions& options, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace oscar
