// A cache of random codes with everything around the visible part poisoned: the tokens before and after it,
// pages and slots that no table names, and tables before the first visible page.
#pragma once
#include "kernels/decode.h"
#include "tests/support/support.h"

namespace oscar::test {

struct DecodeShape {
  CacheFormat format;
  std::vector<int32_t> ends, firsts = {}, exact = {};  // per sequence; an empty one: 0 everywhere
  float logits = 1;                                    // their standard deviation, about
  float softcap = 0;
  bool sinks = false, means = false;
  int32_t spike = -1;   // this coded key points where the first query of its KV head does,
  float to_logit = 13;  // as far as that (vector codes and bit planes: the best there are)
};

class DecodeSample {
 public:
  explicit DecodeSample(const DecodeShape& shape, uint64_t seed = 1);
  DecodeSample(const DecodeSample&) = delete;

  CacheFormat format;
  DecodeBatch batch;
  DecodeInputs inputs;

  int64_t queries() const { return int64_t{batch.sequences} * format.kv_heads * format.group; }
  const uint8_t* page(int sequence, int32_t index) const;

 private:
  void lay_out(const DecodeShape& shape, uint64_t seed);
  void fill(bool keys, const DecodeShape& shape, uint64_t seed);
  std::vector<float> rows(bool keys, const DecodeShape& shape, int b, int head, uint64_t seed) const;
  std::vector<uint8_t> vector_codes(bool keys, const DecodeShape& shape, int b, int head,
                                    uint64_t seed) const;
  void make_levels(bool keys);
  std::vector<uint8_t> plane_codes(bool keys, const DecodeShape& shape, int b, int head, uint64_t seed) const;

  std::vector<int32_t> ends_, firsts_, exact_, table_, exact_slots_;
  std::vector<int64_t> table_start_, exact_start_;
  int64_t slots_ = 0;
  std::vector<uint8_t> pages_, codes_[2];
  std::vector<float> q_, sinks_, means_[2], scale_zero_[2], book_scales_[2];
  std::vector<uint16_t> q_bf16_, half_scale_zero_[2], exact_rows_[2];
  std::vector<int8_t> words_[2];
  std::vector<float> steps_[2];
  std::vector<uint8_t> bits_[2];
};

}  // namespace oscar::test
