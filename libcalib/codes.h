// What a fit makes and what a cache is run with: for every layer and KV head, a transform and a codec.
#pragma once
#include <map>

#include "libcalib/codecs/codec.h"
#include "libcalib/statistics.h"
#include "libcalib/transforms/transform.h"

namespace oscar {

struct HeadCode {
  Transform transform;
  const CodecInfo* codec = nullptr;
  CodecOptions options;
  Vector eigenvalues;  // of the target that the transform was made from, ascending; empty where there is none
};

// Keys or values of a whole cache.
struct SideCodes {
  Side side = Side::K;
  std::string objective;  // "qqt_r_h_pbr", "hadamard", "awvq-4x8"; "identity" for no transform
  std::map<int, std::vector<HeadCode>> layers;  // by global layer id: 1 (shared by the heads) or Hkv
  const HeadCode& of(int layer, int head) const {
    const auto& heads = layers.at(layer);
    return heads[heads.size() == 1 ? 0 : static_cast<size_t>(head)];
  }
};

// The distinct codecs, or codebook shapes, of all heads in the order of first use: "sglang-prefill",
// "4x10+4x6".
std::string codec_names(const SideCodes& codes);

// One way to keep a cache: what a verification measures as a row.
struct CacheCodes {
  std::string name;
  SideCodes k, v;
};

}  // namespace oscar
