// All kernels of one level: OSCAR_LEVEL names it, OSCAR_WIDTH is the number of floats in a vector.
#include "kernels/levels.h"
#include "kernels/plane_pages.h"
#include "kernels/simd/vector.inl"
#include "kernels/vector_pages.h"
//
#include "kernels/simd/attention_rows.inl"
//
#include "kernels/simd/attention.inl"
#include "kernels/simd/codebook.inl"
#include "kernels/simd/diagnose.inl"
#include "kernels/simd/gram.inl"
#include "kernels/simd/int2.inl"
#include "kernels/simd/quadratic_gram.inl"
//
#include "kernels/simd/quads.inl"
//
#include "kernels/simd/decode_scratch.inl"
//
#include "kernels/simd/decode_rows.inl"
//
#include "kernels/simd/decode_int2.inl"
#include "kernels/simd/decode_int2_keys.inl"
#include "kernels/simd/decode_int2_values.inl"
#include "kernels/simd/decode_planes.inl"
#include "kernels/simd/decode_sglang.inl"
#include "kernels/simd/decode_words.inl"
//
#include "kernels/simd/decode_word_keys.inl"
#include "kernels/simd/decode_word_values.inl"
//
#include "kernels/simd/decode.inl"
//
#include "kernels/simd/score_outputs.inl"
//
#include "kernels/simd/score_stats.inl"

namespace oscar::OSCAR_LEVEL {
namespace {

constexpr KernelTable kernel_table(std::string_view name, bool (*supported)()) {
  return {name,       supported, causal_attention, cached_attention, score_stats,      diagnose,
          add_gram,   add_rows,  add_quadratic_gram, int2_encode,    int2_decode,      nearest_codeword,
          decode_scratch_bytes,  decode_part};
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
