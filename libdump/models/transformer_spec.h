// The decoders that differ only in what is switched on: pre-norm or post-norm blocks of attention with rotary
// positions and a gated MLP. A family is a function from a checkpoint's configuration to a TransformerSpec.
#pragma once
#include <map>

#include "libdump/model_config.h"

namespace oscar {

// What is normalised after the projections and before the rotary embedding.
enum class QkNorm : uint8_t { None, Head, Row };  // each head's D, or all heads of a row together
enum class Activation : uint8_t { Silu, GeluTanh };

// How experts are stored, under STEM.experts.
enum class ExpertLayout : uint8_t {
  Each,     // E.GATE, E.UP and E.DOWN for every expert E
  Parts,    // gate_proj and up_proj (E, F, hidden), down_proj (E, hidden, F), with biases or without: GGUF
            // files
  Stacked,  // gate_up_proj (E, 2 F, hidden), gates first, and down_proj (E, hidden, F)
  Interleaved,  // gate_up_proj (E, hidden, 2 F), gate and up by turns, and down_proj (E, F, hidden), with
                // biases
};

// A layer whose MLP is many experts. Names are relative to the layer.
struct MoeSpec {
  int experts = 0, top = 0, intermediate = 0;  // experts = 0: an ordinary MLP
  bool normalise = true;                       // the weights of the chosen sum to 1
  bool sigmoid = false;                        // scores; else softmax over all experts
  bool correction = false;                     // a bias that chooses and does not weigh
  double scale = 1;                            // of the weights
  int shared = 0;                              // width of an expert that every token takes; 0: none
  bool shared_gate = false;                    // its output times sigmoid(x STEM.shared_expert_gate^T)
  bool router_bias = false, expert_bias = false;
  // Above 0: silu(gate) up becomes min(gate, limit) sigmoid(alpha gate) (clamp(up, -limit, limit) + 1).
  double swiglu_alpha = 0, swiglu_limit = 0;
  ExpertLayout layout = ExpertLayout::Each;
  std::string stem = "mlp", router = "gate", gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string shared_name = "shared_experts";
  std::string correction_name = "mlp.gate.e_score_correction_bias";
};

// A layer that keeps a state between tokens instead of a cache (gated_delta.cpp).
struct DeltaSpec {
  int64_t k_heads = 0, v_heads = 0, dim_k = 0, dim_v = 0;  // k_heads = 0: a layer of attention
  int64_t kernel = 0;                                      // taps of the convolution
  bool fused = false;        // in_proj_qkvz, by key heads, instead of in_proj_qkv and _z
  bool fused_gates = false;  // in_proj_ba, by key heads, instead of in_proj_b and _a
  bool tiled = false;        // value heads in turns over the key heads, in every tensor; else the value heads
                             // of a key head are neighbours
  int64_t key_head(int64_t value_head) const {
    return tiled ? value_head % k_heads : value_head / (v_heads / k_heads);
  }
  int64_t channels() const { return 2 * k_heads * dim_k + v_heads * dim_v; }  // of q, k and v
};

struct LayerSpec {
  LayerShape attention;
  int rope = 0;  // of ModelConfig::ropes; -1: no positions
  QkNorm qk_norm = QkNorm::None;
  bool qkv_bias = false, out_bias = false;
  bool output_gate = false;  // q_proj has a gate for every query: o times its sigmoid enters o_proj
  bool sinks = false;        // self_attn.sinks, read into attention.sink_logits
  MoeSpec moe;
  DeltaSpec delta;
  bool recurrent() const { return delta.k_heads > 0; }
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
  double logit_cap = 0;    // of the vocabulary: cap tanh(l / cap); 0: none
};

using TensorShapes = std::map<std::string, std::vector<int64_t>>;
// The tensors of a decoder, and of one layer, by their Hugging Face names,
// "model.layers.0.self_attn.q_proj.weight", with shapes (out, in).
TensorShapes expected_tensors(const TransformerSpec& spec);
TensorShapes expected_layer_tensors(const TransformerSpec& spec, int layer);
std::string layer_tensor(int layer, const std::string& part);  // "model.layers.3." + part

// Fills config.attention from the layers that have a cache and checks what all families need: heads that
// divide, head dims that are multiples of 4, rotary dims that fit, no more choices than experts. std::runtime_error naming the file and the
// layer.
void finish(TransformerSpec& spec);

}  // namespace oscar
