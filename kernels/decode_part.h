// Internal: the unit of work of decode() on a CPU, and what it leaves behind.
#pragma once
#include <cstdint>

#include "kernels/decode.h"

namespace oscar {

// Tokens of a part. Fixed, so that the number of threads cannot change a bit; long where codebooks are,
// because what is built from them (256 words) has to pay.
inline constexpr int kPartTokens = 1024, kPartTokensOfVectors = 4096;
constexpr bool has_codebook(const CacheFormat& format) {
  const auto vectors = [](const SideFormat& side) {
    return side.kind == CodeKind::vector4x8 || side.kind == CodeKind::vector8x8;
  };
  return vectors(format.k) || vectors(format.v);
}
constexpr int coded_part_tokens(const CacheFormat& format) {
  return has_codebook(format) ? kPartTokensOfVectors : kPartTokens;
}

// Coded tokens [first, end) of one sequence and KV head, or exact tokens. first is a multiple of 64, or the
// sequence's first visible token; no part reaches over a multiple of its length beyond the page of that one.
struct DecodePart {
  const CacheFormat* format;
  const DecodeInputs* inputs;
  const int32_t* table;  // the sequence's, or its exact_slots
  int64_t sequence;
  int head;
  bool exact;
  int32_t first, end;
};

// The result of a part is float o[group][dim], high[group], sum[group]: o = sum of e^(l - high) v, not
// normalised.
constexpr int64_t decode_partial_floats(const CacheFormat& format) {
  return int64_t{format.group} * (format.dim + 2);
}

}  // namespace oscar
