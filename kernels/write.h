// New rows of a cache become codes: what a server does with every token's keys and values, and what an
// offline tool does to fill a cache for cuda::decode().
//
// A row x (one token of one KV head, D channels) goes through
//
//   x = x R - m            R: rotation, of the layer or of the KV head; m: the mean of decode.h, in the
//                          cache's basis
//   x = bfloat16(x)        when rule.round_bf16
//   x = clamp(x, -tau, tau)
//   codes, scale, zero     by kernels/int2.h's rule, or that of Lloyd-Max
//   or the nearest word    vector codes
//   or the nearest level   bit planes
//
// and is stored in the layout of decode.h. write() is the truth, cuda::write() gives its bytes, with one
// exception: the products of a rotation are sums in float32 whose order is the hardware's, so a code of a
// rotated row may differ where a level is a close call. Rows whose products are exact have the same bytes
// again.
#pragma once
#include "kernels/decode.h"

namespace oscar {

struct WriteRule {
  double clip = 0;      // ratio, <= 0: none. tau is the clip_index()-th smallest magnitude of the row
  bool bisect = false;  // tau by log2(D) halvings of [0, max |x|], as an engine's decode step finds it
  bool round_bf16 = true;
  // Lloyd-Max (one group): levels mean -+ step sigma / 2 and -+ 3 step sigma / 2, thresholds 0 and -+
  // threshold sigma on x - mean; sigma^2 is the population variance + 1e-8. step <= 0: kernels/int2.h's rule.
  float step = 0, threshold = 0;
};

// Host memory for the CPU, device memory for the GPU; 16-byte aligned.
struct WriteRows {
  const void* rows = nullptr;        // (tokens, kv_heads, dim), contiguous, of `type`
  FloatType type = FloatType::bf16;  // or f32; a rotation takes bf16 only
  int64_t tokens = 0;
  // (tokens) sglang: the slot; native: page * 64 + position % 64; < 0: not stored
  const int64_t* slots = nullptr;
  const uint16_t* rotation = nullptr;  // bfloat16 (dim, dim), or (kv_heads, dim, dim); nullptr: none
  bool rotation_per_head = false;
  const float* mean = nullptr;  // (kv_heads, dim); nullptr: none
};

// One side of a cache.
struct WriteTarget {
  bool keys = true;
  uint8_t* pages = nullptr;    // native
  uint8_t* codes = nullptr;    // sglang: (slots, kv_heads, dim / 4)
  void* scale_zero = nullptr;  // sglang: (slots, kv_heads, 2 G) of format.scale_zero
  CodebookView book{};         // vector codes
  PlaneLevels levels{};        // bit planes
};

// Refuses what no implementation does; both functions below begin with it.
Status check_write(const CacheFormat& format, const WriteRule& rule, const WriteRows& rows,
                   const WriteTarget& target);

Status write(const CacheFormat& format, const WriteRule& rule, const WriteRows& rows,
             const WriteTarget& target);

namespace cuda {
// Asynchronous on `stream`, capturable, no allocation. Two rows must not have the same slot. Native values of
// int2 are stored fastest where four rows that follow each other fill four aligned positions of a page, keys
// of bit planes where two do that share its bytes. Bits of levels are not checked, as they are on the device:
// those of a channel that no plane holds are lost (check_levels()).
Status write(const CacheFormat& format, const WriteRule& rule, const WriteRows& rows,
             const WriteTarget& target, void* stream);
}  // namespace cuda
}  // namespace oscar
