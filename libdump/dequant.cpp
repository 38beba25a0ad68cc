#include "libdump/dequant.h"

#include "formats/error.h"
#include "libdump/dequant_blocks.h"
#include "libdump/dequant_k.h"

namespace oscar {
namespace {

using Row = void (*)(const std::byte* blocks, int64_t count, float* out);

struct Type {
  std::string_view name;
  int64_t block;
  size_t bytes;
  Row row;
};

// One decoder of a block, applied to a row of them.
template <int64_t elements, size_t bytes, void (*decode)(const std::byte*, float*)>
constexpr Type blocks(std::string_view name) {
  return {name, elements, bytes, [](const std::byte* from, int64_t count, float* out) {
            for (int64_t i = 0; i < count; i += elements, from += bytes) decode(from, out + i);
          }};
}

// Not here: Q8_1 and Q8_K, which ggml keeps activations in and no file has; the IQ types of one to three
// bits, which need grids of up to 2,048 entries.
constexpr Type types[] = {
    {"F32", 1, 4, ggml::f32},
    {"F16", 1, 2, ggml::f16},
    {"BF16", 1, 2, ggml::bf16},
    blocks<128, 18, ggml::q1_0>("Q1_0"),
    blocks<32, 18, ggml::q4_0>("Q4_0"),
    blocks<32, 20, ggml::q4_1>("Q4_1"),
    blocks<32, 22, ggml::q5_0>("Q5_0"),
    blocks<32, 24, ggml::q5_1>("Q5_1"),
    blocks<32, 34, ggml::q8_0>("Q8_0"),
    blocks<256, 84, ggml::q2_k>("Q2_K"),
    blocks<256, 110, ggml::q3_k>("Q3_K"),
    blocks<256, 144, ggml::q4_or_5_k<false>>("Q4_K"),
    blocks<256, 176, ggml::q4_or_5_k<true>>("Q5_K"),
    blocks<256, 210, ggml::q6_k>("Q6_K"),
    blocks<32, 18, ggml::iq4_nl>("IQ4_NL"),
    blocks<256, 136, ggml::iq4_xs>("IQ4_XS"),
    blocks<256, 54, ggml::tq1_0>("TQ1_0"),
    blocks<256, 66, ggml::tq2_0>("TQ2_0"),
    blocks<32, 17, ggml::mxfp4>("MXFP4"),
    blocks<64, 36, ggml::nvfp4>("NVFP4"),
};

const Type* find(const GgmlType& type) {
  for (const Type& t : types)
    if (t.name == type.name && t.block == type.block && t.bytes == type.bytes) return &t;
  return nullptr;
}

}  // namespace

bool can_dequantise(const GgmlType& type) {
  return find(type) != nullptr;
}

std::string refusal(const GgmlType& type) {
  return fmt::format(
      "block type {} is not supported; known: {}. `llama-quantize --allow-requantize IN.gguf OUT.gguf F32` "
      "keeps the weights as they are in a type that is",
      type.name, known_types());
}

void dequantise(const GgmlType& type, const std::byte* blocks, int64_t count, float* out) {
  const Type* known = find(type);
  if (!known) throw invalid("{}", refusal(type));
  if (count < 0 || count % known->block != 0)
    throw invalid("ggml type {}: {} elements are not a multiple of its block of {}", type.name, count,
                  known->block);
  known->row(blocks, count, out);
}

std::string known_types() {
  std::string names;
  for (const Type& t : types) names.append(names.empty() ? "" : ", ").append(t.name);
  return names;
}

}  // namespace oscar
