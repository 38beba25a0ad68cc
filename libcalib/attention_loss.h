// One KV head of one probe sequence, in the cache's basis and attended over codes: what verify and the clip
// search share.
#pragma once
#include "libcalib/history_codes.h"
#include "libcalib/compute_device.h"
#include "libcalib/statistics.h"
#include "libcalib/transforms/transform.h"

namespace oscar {

struct HeadRows {
  std::vector<float> q;  // (T, H, Dk) q inverse^T
  std::vector<float> k;  // (T, Dk)    k forward
  std::vector<float> v;  // (T, Dv)    v forward
  int64_t tokens = 0;
  int head = 0;  // KV head
};
HeadRows head_rows(const LayerShape& shape, const Probe& probe, int head, const Transform& k,
                   const Transform& v);

// The transforms on up to 64 rows spread over the sequence, before anything is quantised: check_logits and
// check_values of transforms/trial.h.
void check_transforms(const LayerShape& shape, const Probe& probe, int head, const Transform& k,
                      const Transform& v, const std::string& place);

// Sums over the query heads of one KV head and the measured queries. Outputs are compared in the model's
// basis.
struct AttentionLoss {
  int64_t count = 0;  // H * N
  double kl = 0, top1 = 0;
  double logit_error = 0, logit_power = 0;
  double output_power = 0, output_error = 0, output_error_k = 0, output_error_v = 0;
  std::vector<double> q_power, o_power;  // (Dk), (Dv): sums of squares of a channel in the cache's basis
  void add(const AttentionLoss& other);
};
// Queries [first, last) of the sequence; `last` <= rows.tokens. `v_transform` takes outputs back. `device` measures.
AttentionLoss attention_loss(const LayerShape& shape, const HeadRows& rows, const Transform& v_transform,
                             const Windows& windows, int64_t first, int64_t last, const HistoryCodes& k,
                             const HistoryCodes& v, const ComputeDevice& device = {});

}  // namespace oscar
