// V rotations absorbed into a checkpoint: the rows of the V projection of each KV head become R_vᵀ W, so that
// the model itself produces rotated values and nothing rotates them at run time (docs/file-formats.md).
#pragma once
#include <filesystem>
#include <functional>

#include "libcalib/rotation.h"

namespace oscar {

struct AbsorbOptions {
  // Also W_o[:, head] R_v, which undoes the rotation: the model's output is the original, and no engine needs
  // to know. Without it the engine multiplies the attention output of every query head by R_vᵀ (R_v^-1)
  // itself.
  bool fold_output = false;
  std::function<void(int64_t done, int64_t total)> progress;  // shards; may be empty
};
struct AbsorbReport {
  int layers = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  std::string dtype;                // of the V projections, "BF16"
  std::vector<std::string> copied;  // files of the checkpoint that were copied as they are
  std::vector<std::string> left;    // other weights, that do not belong in the result
};

// Reads a Hugging Face directory (config.json, .safetensors with or without an index) and writes one like it
// to `out`, a new or empty directory that appears whole or not at all. Weights in BF16, FP16 or FP32, and FP8
// (e4m3) with one scale a tensor or a channel, are rotated in float64 and rounded back; scales are made anew.
// Every other tensor keeps its bytes. What was absorbed is in oscar_absorbed.json and in the metadata of
// every shard.
//
// std::invalid_argument: values rotated already; the layers of the rotation are not those with a V
// projection; head dims that differ; centred values; an output gate (attn_output_gate), which stands between
// attention and W_o; block-scaled FP8 and other packed weights; MLA; V projections fused with others in FP8;
// a norm with weights on V; fold_output with static activation scales of W_o. std::runtime_error: a damaged
// file, weights that are not finite.
AbsorbReport absorb_v(const std::filesystem::path& model, const RotationSet& rotations,
                      const std::filesystem::path& out, const AbsorbOptions& options = {});

}  // namespace oscar
