// What config.json says of attention, and where the projections of a checkpoint are.
#pragma once
#include <filesystem>
#include <map>

#include "formats/safetensors_index.h"

namespace oscar {

struct CheckpointGeometry {
  int q_heads = 0, kv_heads = 0, head_dim = 0;  // head_dim as stated, else hidden_size / q_heads
  int layers = 0;                               // num_hidden_layers: blocks after them predict further tokens
  bool output_gate = false, mla = false;
  bool block_scales = false;  // quantization_config.weight_block_size
};
// Of config.json, or of its text_config for models that see. std::invalid_argument for a missing file or
// field.
CheckpointGeometry read_geometry(const std::filesystem::path& model);

// "model.layers.3.self_attn.v_proj.weight" -> {3, "v_proj.weight"}; layer -1 for other tensors, and for those
// of encoders and of multi-token prediction. Prefixes vary.
struct AttentionName {
  int layer = -1;
  std::string_view part;
};
AttentionName attention_name(std::string_view tensor);

}  // namespace oscar
