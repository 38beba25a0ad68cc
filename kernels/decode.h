// One query token per sequence against a cache that is held as codes: what a server does in every layer of
// every step.
//
// A sequence's visible tokens are coded ones, in pages, and exact ones (sink and recent windows); one softmax
// over both. For query head j of KV head h, with coded keys k^ and values v^, exact k and v, all in the
// cache's basis (q R^-T, k R, v R):
//
//   l[s]  = cap(scale q_j.(k^_s + k_mean_h))   coded tokens
//           cap(scale q_j.k_s)                 exact tokens      cap(x) = softcap tanh(x / softcap), or x
//   Z     = sum over s of exp(l[s]) + exp(sink_logit_j)          the last only where there are sinks
//   o_j   = (sum over s of exp(l[s]) v_s) / Z                    coded values are v^_s + v_mean_h
//   lse_j = log Z
//
// decode() is the CPU's, cuda::decode() the GPU's, decode_reference() the truth of both: double throughout.
#pragma once
#include <cstdint>

#include "kernels/status.h"

namespace oscar {

enum class CacheLayout { native, sglang };
enum class CodeKind {
  int2,       // kernels/int2.h
  vector4x8,  // kernels/vector_pages.h: four channels are one byte, native pages only
  vector8x8,  // eight channels are one byte
  planes,     // kernels/plane_pages.h: 0 to 4 bits a channel, native pages only, and then on both sides
};
enum class FloatType { f32, bf16, f16 };

struct SideFormat {
  CodeKind kind = CodeKind::int2;
  int groups = 1;      // int2: G, quantisation groups of a row
  bool norm = false;   // vectors, planes: one float16 a row multiplies it
  int planes[4] = {};  // planes: channels of each, as kernels/plane_pages.h's plane_channels() chooses them
};

// dim: 64, 96, 128, 192, 256 (native int2 and planes), 64, 128, 256 (sglang), 64, 128 (vectors). G: groups of
// a multiple of 32 channels (native; on a GPU keys and values the same G: 1, 2 or D / 32), 1, 2, 4 (sglang,
// both the same). group, query heads that share a KV head: 1 to 16.
struct CacheFormat {
  CacheLayout layout = CacheLayout::native;
  int dim = 0, kv_heads = 0, group = 1;
  SideFormat k = {}, v = {};
  FloatType scale_zero = FloatType::f32;  // sglang: f32, or bf16
};
Status check_format(const CacheFormat& format);
// Bytes of the block of one side of one KV head of a native page, and of a whole page: [KV head][keys |
// values].
int64_t side_bytes(const CacheFormat& format, const SideFormat& side);
int64_t page_bytes(const CacheFormat& format);

// What changes from step to step. Always host memory, arrays of `sequences`.
struct DecodeBatch {
  int sequences = 0;
  const int32_t* first = nullptr;  // coded tokens [first, end) are visible; nullptr: from 0
  const int32_t* end = nullptr;
  const int64_t* table_start = nullptr;  // where a sequence's part of DecodeInputs::table begins
  const int32_t* exact = nullptr;        // exact tokens; nullptr: none
  const int64_t* exact_start = nullptr;  // where a sequence's part of exact_slots begins
};

// The codebook of vector codes: word c of channel i of KV head h is words[(h * 256 + c) * dim + i] * scales[h
// * dim / size + i / size], size = 4 or 8.
struct CodebookView {
  const int8_t* words = nullptr;
  const float* scales = nullptr;
};

// The levels of bit planes, (kv_heads, dim) each: channel c of b bits reads as (i - (2^b - 1) / 2) * step, i =
// 0..2^b - 1. bits: at most the number of planes that have the channel.
struct PlaneLevels {
  const float* steps = nullptr;
  const uint8_t* bits = nullptr;
};

// Host memory for the CPU, device memory for the GPU; 16-byte aligned.
struct DecodeInputs {
  const void* q = nullptr;  // (sequences, kv_heads * group, dim) of q_type
  FloatType q_type = FloatType::bf16;
  float scale = 1;
  float softcap = 0;  // 0: none

  const int32_t* table = nullptr;    // native: page ids, entry t / 64 of token t; sglang: slots, entry t
  const uint8_t* pages = nullptr;    // native: page p begins at p * page_bytes
  const uint8_t* k_codes = nullptr;  // sglang: (slots, kv_heads, dim / 4)
  const uint8_t* v_codes = nullptr;
  const void* k_scale_zero = nullptr;  // sglang: (slots, kv_heads, 2 G) of format.scale_zero
  const void* v_scale_zero = nullptr;

  const int32_t* exact_slots = nullptr;  // rows of the two arrays below, in any order
  const uint16_t* exact_k = nullptr;     // (slots, kv_heads, dim) bfloat16
  const uint16_t* exact_v = nullptr;

  const float* sink_logits = nullptr;  // (kv_heads * group), natural logarithm; nullptr: none
  const float* k_mean = nullptr;       // (kv_heads, dim), in the cache's basis; nullptr: none
  const float* v_mean = nullptr;
  CodebookView k_book, v_book;
  PlaneLevels k_levels, v_levels;
};

struct DecodeOutputs {
  void* o = nullptr;  // (sequences, kv_heads * group, dim) of o_type: f32 or bf16
  FloatType o_type = FloatType::bf16;
  float* lse = nullptr;  // (sequences, kv_heads * group), or nullptr
};

// A sequence without any token and sink has o = 0 and lse = -inf.
Status decode(const CacheFormat& format, const DecodeBatch& batch, const DecodeInputs& inputs,
              const DecodeOutputs& outputs);
Status decode_reference(const CacheFormat& format, const DecodeBatch& batch, const DecodeInputs& inputs,
                        double* o, double* lse);

namespace cuda {

// A plan deals out the tokens of a batch to thread blocks in whole waves. It depends on the lengths alone, so
// the layers of a model share it.
struct DecodePlan {
  int blocks = 0;         // thread blocks to launch
  int partials = 0;       // parts that are merged afterwards
  bool second = false;    // by a second kernel, at least some
  bool deep = false;      // long work for one block a multiprocessor
  int heads = 0;          // sequences * kv_heads
  int64_t bytes = 0;      // of the plan
  int64_t workspace = 0;  // bytes of scratch memory
};
// What any batch of so many sequences needs at most, of plan and workspace.
DecodePlan decode_plan_limits(const CacheFormat& format, int sequences, const struct DeviceInfo& device);
// Fills plan.bytes of `memory` (host, `capacity` bytes) and `plan`; the caller copies them to the device.
// fixed: always the same `blocks`, `partials` and a second kernel, so that a captured graph stays valid while
// lengths change.
Status plan_decode(const CacheFormat& format, const DecodeBatch& batch, const struct DeviceInfo& device,
                   bool fixed, void* memory, int64_t capacity, DecodePlan* plan);
// `plan_memory` and `workspace` on the device; launches that use the same ones come one after the other, since
// blocks count in the plan's memory who is the last. Asynchronous on `stream`, capturable, no allocation.
// `overlap`: begin before the preceding kernel of the stream has ended (it must not write pages, the table
// or the plan; q, exact rows and workspace are waited for).
Status decode(const CacheFormat& format, const DecodeInputs& inputs, const DecodePlan& plan,
              void* plan_memory, void* workspace, const DecodeOutputs& outputs, bool overlap, void* stream);

}  // namespace cuda
}  // namespace oscar
