// The decoders that differ only in what is switched on: pre-norm or post-norm blocks of attention with rotary
// positions and a gated MLP. A family is a function from a checkpoint's configuration to a TransformerSpec.
#pragma once
#include <map>

#include "libdump/model_config.h"

namespace oscar {

// What is normalised after the projections and before the rotary embedding.
enum class QkNorm : uint8_t { None, Head, Row };  // each head's D, or all heads of a row together
enum class Activation : uint8_t { Silu, GeluTanh };

// A layer whose MLP is many experts. Names are relative to the layer.
struct MoeSpec {
  int experts = 0, top = 0, intermediate = 0;  // experts = 0: an ordinary MLP
  bool normalise = true;                       // the weights of the chosen sum to 1
  bool sigmoid = false;                        // scores; else softmax over all experts
  bool correction = false;                     // a bias that chooses and does not weigh
  double scale = 1;                            // of the weights
  int shared = 0;                              // width of an expert that every token takes; 0: none
  std::string stem = "mlp", gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string correction_name = "mlp.gate.e_score_correction_bias";
};

struct LayerSpec {
  LayerShape attention;
  int rope = 0;  // of ModelConfig::ropes; -1: no positions
  QkNorm qk_norm = QkNorm::None;
  bool qkv_bias = false, out_bias = false;
  MoeSpec moe;
};

struct TransformerSpec {
  ModelConfig config;
  std::vector<LayerSpec> layers;
  // Names of a layer's norms; "" for one that is not there.
  std::string before_attention = "input_layernorm", after_attention, before_mlp = "post_attention_layernorm",
              after_mlp;
  double norm_offset = 0;  // what is added to every norm weight as stored: 1 where checkpoints hold w - 1
  bool fused_qkv = false, fused_gate_up = false;  // qkv_proj and gate_up_proj instead of their parts
  bool mlp_bias = false;
  Activation activation = Activation::Silu;
  double embedding_scale = 1, residual_scale = 1,
         logit_scale = 1;  // hidden, what a block adds to it, logits: multiplied by
};

using TensorShapes = std::map<std::string, std::vector<int64_t>>;
// The tensors of a decoder, and of one layer, by their Hugging Face names,
// "model.layers.0.self_attn.q_proj.weight", with shapes (out, in).
TensorShapes expected_tensors(const TransformerSpec& spec);
TensorShapes expected_layer_tensors(const TransformerSpec& spec, int layer);
std::string layer_tensor(int layer, const std::string& part);  // "model.layers.3." + part

// Fills config.attention from the layers and checks what all families need: heads that divide, head dims that
// are multiples of 4, rotary dims that fit. std::runtime_error naming the file and the layer.
void finish(TransformerSpec& spec);

}  // namespace oscar
