#include "libcalib/artifacts/rotary_order.h"

#include <algorithm>

namespace oscar {
namespace {

// By llama.cpp's rope type: NORM rotates neighbours, NEOX the two halves.
constexpr std::string_view kInterleaved[] = {
    "llama",   "llama4",  "mistral3",  "granite",  "granitemoe",   "granitehybrid", "smollm3",   "arcee",
    "deci",    "minicpm", "internlm2", "baichuan", "xverse",       "orion",         "command-r", "cohere2",
    "chatglm", "glm4",    "olmo",      "ernie4_5", "ernie4_5-moe", "deepseek",      "arctic"};
constexpr std::string_view kHalves[] = {
    "qwen2",   "qwen2moe", "qwen3",    "qwen3moe",   "qwen3next",     "qwen35",      "qwen35moe", "gemma",
    "gemma2",  "gemma3",   "gemma4",   "gpt-oss",    "phi2",          "phi3",        "phimoe",    "olmo2",
    "olmoe",   "glm4moe",  "stablelm", "gptneox",    "falcon",        "starcoder2",  "nemotron",  "exaone",
    "exaone4", "dots1",    "seed_oss", "minimax-m2", "hunyuan-dense", "hunyuan-moe", "lfm2"};

}  // namespace

std::optional<RotaryOrder> rotary_order(std::string_view architecture) {
  if (std::ranges::find(kInterleaved, architecture) != std::end(kInterleaved))
    return RotaryOrder::Interleaved;
  if (std::ranges::find(kHalves, architecture) != std::end(kHalves)) return RotaryOrder::Halves;
  return std::nullopt;
}

Eigen::Index halves_row(Eigen::Index i, Eigen::Index rotary, RotaryOrder order) {
  if (order == RotaryOrder::Halves || i >= rotary) return i;
  return i / 2 + (i % 2) * (rotary / 2);
}

}  // namespace oscar
