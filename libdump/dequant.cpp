#include "libdump/dequant.h"

#include <cstring>

#include "formats/dtype.h"
#include "formats/error.h"

namespace oscar {
namespace {

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}
float half_at(const std::byte* at) {
  return f16_to_float(load<uint16_t>(at));
}

using Row = void (*)(const std::byte* blocks, int64_t count, float* out);

template <DType dtype>
void plain(const std::byte* from, int64_t count, float* out) {
  to_float(dtype, from, static_cast<size_t>(count), out);
}

void bf16(const std::byte* from, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_float(load<uint16_t>(from + 2 * i));
}

// One decoder of a block, applied to a row of them. The blocks of ggml are packed: nothing in them is
// aligned.
template <int64_t elements, size_t bytes, void (*decode)(const std::byte*, float*)>
void blocks_of(const std::byte* from, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += elements, from += bytes) decode(from, out + i);
}

// The four-bit types store element j (low half of byte j) and element j + 16 (high half) together.

// [half d][16 bytes]: d * (q - 8)
void q4_0(const std::byte* from, float* out) {
  const float d = half_at(from);
  const auto* q = reinterpret_cast<const uint8_t*>(from + 2);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>((q[j] & 15) - 8) * d;
    out[j + 16] = static_cast<float>((q[j] >> 4) - 8) * d;
  }
}

// [half d][half m][16 bytes]: d * q + m
void q4_1(const std::byte* from, float* out) {
  const float d = half_at(from), m = half_at(from + 2);
  const auto* q = reinterpret_cast<const uint8_t*>(from + 4);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>(q[j] & 15) * d + m;
    out[j + 16] = static_cast<float>(q[j] >> 4) * d + m;
  }
}

// The five-bit types keep the fifth bit of element j in bit j of a 32-bit word.
void five_bits(const std::byte* high, const std::byte* low, int32_t* q) {
  const auto bits = load<uint32_t>(high);
  const auto* nibbles = reinterpret_cast<const uint8_t*>(low);
  for (int j = 0; j < 16; ++j) {
    q[j] = static_cast<int32_t>((nibbles[j] & 15u) | ((bits >> j & 1u) << 4));
    q[j + 16] = static_cast<int32_t>((nibbles[j] >> 4) | ((bits >> (j + 16) & 1u) << 4));
  }
}

// [half d][u32 high bits][16 bytes]: d * (q - 16)
void q5_0(const std::byte* from, float* out) {
  const float d = half_at(from);
  int32_t q[32];
  five_bits(from + 2, from + 6, q);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(q[j] - 16) * d;
}

// [half d][half m][u32 high bits][16 bytes]: d * q + m
void q5_1(const std::byte* from, float* out) {
  const float d = half_at(from), m = half_at(from + 2);
  int32_t q[32];
  five_bits(from + 4, from + 8, q);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(q[j]) * d + m;
}

// [half d][32 int8]: d * q
void q8_0(const std::byte* from, float* out) {
  const float d = half_at(from);
  const auto* q = reinterpret_cast<const int8_t*>(from + 2);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(q[j]) * d;
}

// [128 bytes low][64 bytes high][16 int8 scales][half d]: 256 elements in two halves, each of four runs
// of 32. Run r takes four bits from low[32 * (r & 1) + l] (its upper half for r >= 2) and two from bits 2r of
// high[l]; every 16 elements have a scale: (d * scale) * (q - 32).
void q6_k(const std::byte* from, float* out) {
  const auto* low = reinterpret_cast<const uint8_t*>(from);
  const auto* high = low + 128;
  const auto* scales = reinterpret_cast<const int8_t*>(from + 192);
  const float d = half_at(from + 208);
  for (int half = 0; half < 2; ++half, low += 64, high += 32, scales += 8, out += 128) {
    for (int r = 0; r < 4; ++r) {
      const uint8_t* nibbles = low + 32 * (r & 1);
      const int nibble_shift = r < 2 ? 0 : 4, pair_shift = 2 * r;
      for (int part = 0; part < 2; ++part) {
        const float scale = d * static_cast<float>(scales[2 * r + part]);
        for (int l = 16 * part; l < 16 * part + 16; ++l) {
          const int q = (nibbles[l] >> nibble_shift & 15) | ((high[l] >> pair_shift & 3) << 4);
          out[32 * r + l] = scale * static_cast<float>(q - 32);
        }
      }
    }
  }
}

struct Type {
  std::string_view name;
  int64_t block;
  size_t bytes;
  Row row;
};
constexpr Type types[] = {
    {"F32", 1, 4, plain<DType::F32>},
    {"F16", 1, 2, plain<DType::F16>},
    {"BF16", 1, 2, bf16},
    {"Q4_0", 32, 18, blocks_of<32, 18, q4_0>},
    {"Q4_1", 32, 20, blocks_of<32, 20, q4_1>},
    {"Q5_0", 32, 22, blocks_of<32, 22, q5_0>},
    {"Q5_1", 32, 24, blocks_of<32, 24, q5_1>},
    {"Q8_0", 32, 34, blocks_of<32, 34, q8_0>},
    {"Q6_K", 256, 210, blocks_of<256, 210, q6_k>},
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

void dequantise(const GgmlType& type, const std::byte* blocks, int64_t count, float* out) {
  const Type* known = find(type);
  if (!known) {
    throw invalid(
        "ggml type {}: not supported; expected one of {}. Requantise the model, for example to Q8_0",
        type.name, known_types());
  }
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
