// How codewords are kept: one scale a group of channels and small integers or floats.
#pragma once
#include "libcalib/codecs/codec.h"
#include "libcalib/methods/method.h"

namespace oscar {

// Rounds the words of a group to what is kept. Int8: multiples -127..127 of one scale, whose significand has
// 12 bits, so that every word is exact in float32 and the scale can be told from the words. Fp16: to nearest.
// E4M3, E5M2: through that format at one scale a group, then fp16, as NOVA-KV's bundles are.
void round_words(std::vector<float>& words, Stored stored);

// The int8 form of words that round_words(Int8) made; empty integers when they are something else.
struct Int8Words {
  std::vector<int8_t> values;
  float scale = 0;
};
Int8Words int8_words(const std::vector<float>& words);

}  // namespace oscar
