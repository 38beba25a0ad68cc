#include "libcalib/artifacts/rotary_order.h"

#include <algorithm>

namespace oscar {
namespace {

// Converted from checkpoints that rotate halves for a graph that rotates neighbours (rope type NORM): q and k
// rows are interleaved.
constexpr std::string_view kInterleaved[] = {
    "llama",     "mistral3", "granite", "granitemoe", "granitehybrid", "smollm3", "arcee",  "deci",
    "internlm2", "minicpm",  "xverse",  "baichuan",   "orion",         "olmo",    "arctic", "deepseek"};
// Rotated as the checkpoint does: halves (NEOX), or neighbours in both.
constexpr std::string_view kSame[] = {
    "qwen2",      "qwen2moe",      "qwen3",       "qwen3moe", "qwen3next", "qwen35",    "qwen35moe",
    "gemma",      "gemma2",        "gemma3",      "gemma4",   "gpt-oss",   "phi2",      "phi3",
    "phimoe",     "olmo2",         "olmoe",       "glm4moe",  "stablelm",  "gptneox",   "falcon",
    "starcoder2", "nemotron",      "exaone",      "exaone4",  "dots1",     "seed_oss",  "lfm2",
    "minimax-m2", "hunyuan-dense", "hunyuan-moe", "glm4",     "chatglm",   "command-r", "cohere2"};

}  // namespace

std::optional<RotaryOrder> rotary_order(std::string_view architecture) {
  if (std::ranges::find(kInterleaved, architecture) != std::end(kInterleaved))
    return RotaryOrder::Interleaved;
  if (std::ranges::find(kSame, architecture) != std::end(kSame)) return RotaryOrder::Same;
  return std::nullopt;
}

Eigen::Index model_row(Eigen::Index i, Eigen::Index rotary, RotaryOrder order) {
  if (order == RotaryOrder::Same || i >= rotary) return i;
  return i / 2 + (i % 2) * (rotary / 2);
}

}  // namespace oscar
