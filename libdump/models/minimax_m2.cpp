// MiniMax-M2: part of a head is rotated, queries and keys are normalised over all heads of a row; sigmoid
// scores with a correction.
#include "libdump/models/families.h"

namespace oscar {

TransformerSpec minimax_m2_hf(const HfConfig& config) {
  TransformerSpec spec = config.common("num_local_experts");
  need_sigmoid_scores(config);
  MoeSpec moe;
  moe.experts = static_cast<int>(config.integer("num_local_experts"));
  moe.top = static_cast<int>(config.integer("num_experts_per_tok"));
  moe.intermediate = spec.config.intermediate;
  moe.sigmoid = moe.correction = true;
  moe.stem = "block_sparse_moe";
  moe.gate = "w1";
  moe.up = "w3";
  moe.down = "w2";
  moe.correction_name = "block_sparse_moe.e_score_correction_bias";
  for (auto& layer : spec.layers) {
    layer.moe = moe;
    if (config.flag("use_qk_norm", true)) layer.qk_norm = QkNorm::Row;
  }
  return spec;
}

TransformerSpec minimax_m2_gguf(const GgufFile& file) {
  TransformerSpec spec = common_gguf(file, true);
  MoeSpec moe = experts_gguf(file, spec);
  moe.correction_name = "mlp.e_score_correction_bias";
  for (auto& layer : spec.layers) {
    layer.moe = moe;
    layer.qk_norm = QkNorm::Row;
  }
  return spec;
}

}  // namespace oscar
