#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "kernels/decode_part.h"
#include "kernels/half.h"
#include "kernels/int2.h"
#include "kernels/levels.h"
#include "kernels/plane_pages.h"

namespace oscar {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

Status check_inputs(const CacheFormat& f, const DecodeBatch& batch, const DecodeInputs& in,
                    const DecodeOutputs& out) {
  if (batch.sequences < 0) return {"decode: a negative number of sequences"};
  if (batch.sequences == 0) return {};
  if (!batch.end) return {"decode: no ends of the coded tokens (DecodeBatch::end)"};
  if (!in.q || !out.o) return {"decode: no queries, or nowhere to write the output"};
  if (out.o_type == FloatType::f16) return {"decode: outputs are f32 or bf16"};
  bool coded = false, exact = false;
  for (int b = 0; b < batch.sequences; ++b) {
    const int32_t first = batch.first ? batch.first[b] : 0;
    if (first < 0 || first > batch.end[b])
      return {"decode: coded tokens [first, end) with first < 0 or first > end"};
    if (batch.exact && batch.exact[b] < 0) return {"decode: a negative number of exact tokens"};
    coded |= first < batch.end[b];
    exact |= batch.exact && batch.exact[b] > 0;
  }
  if (exact && !(batch.exact_start && in.exact_slots && in.exact_k && in.exact_v)) {
    return {"decode: exact tokens without their slots or rows"};
  }
  if (!coded) return {};
  if (!batch.table_start || !in.table) return {"decode: coded tokens without a table"};
  if (f.layout == CacheLayout::sglang) {
    return in.k_codes && in.v_codes && in.k_scale_zero && in.v_scale_zero
               ? Status{}
               : Status{"decode: sglang rows need codes and scales of keys and values"};
  }
  if (!in.pages) return {"decode: no pages"};
  if (f.k.kind == CodeKind::planes) {
    for (const PlaneLevels& levels : {in.k_levels, in.v_levels}) {
      if (!levels.steps || !levels.bits) return {"decode: bit planes without their steps and bits"};
    }
    if (Status s = check_levels(f, f.k, in.k_levels); !s.ok()) return s;
    return check_levels(f, f.v, in.v_levels);
  }
  const auto has_book = [](const SideFormat& side, const CodebookView& book) {
    return side.kind == CodeKind::int2 || (book.words && book.scales);
  };
  if (!has_book(f.k, in.k_book) || !has_book(f.v, in.v_book))
    return {"decode: vector codes without their codebook"};
  return {};
}

// The parts of each sequence, for one KV head.
struct Parts {
  int coded = 0, exact = 0;
  int32_t tokens = 0;  // of a coded part
  Parts(const CacheFormat& f, const DecodeBatch& batch, int b) : tokens(coded_part_tokens(f)) {
    const int32_t first = batch.first ? batch.first[b] : 0,
                  begin = first / int2::kPageTokens * int2::kPageTokens;
    if (first < batch.end[b]) coded = (batch.end[b] - begin + tokens - 1) / tokens;
    if (batch.exact) exact = (batch.exact[b] + kPartTokens - 1) / kPartTokens;
  }
  int count() const { return coded + exact; }
};

DecodePart make_part(const CacheFormat& f, const DecodeBatch& batch, const DecodeInputs& in, int b, int head,
                     const Parts& parts, int i) {
  DecodePart part{&f, &in, nullptr, b, head, i >= parts.coded, 0, 0};
  if (part.exact) {
    part.table = in.exact_slots + batch.exact_start[b];
    part.first = (i - parts.coded) * kPartTokens;
    part.end = std::min(part.first + kPartTokens, batch.exact[b]);
  } else {
    const int32_t first = batch.first ? batch.first[b] : 0;
    const int64_t begin = first / int2::kPageTokens * int2::kPageTokens + int64_t{i} * parts.tokens;
    part.table = in.table + batch.table_start[b];
    part.first = static_cast<int32_t>(std::max<int64_t>(first, begin));
    part.end = static_cast<int32_t>(std::min<int64_t>(begin + parts.tokens, batch.end[b]));
  }
  return part;
}

float element(const void* from, FloatType type, int64_t at) {
  if (type == FloatType::f32) return static_cast<const float*>(from)[at];
  const uint16_t bits = static_cast<const uint16_t*>(from)[at];
  return type == FloatType::bf16 ? bf16_to_float(bits) : half_to_float(bits);
}

uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// One query head: its parts, the sink, one division. row: dim doubles.
void merge(const CacheFormat& f, const DecodeInputs& in, int64_t query, const float* partials, int count,
           double* row, const DecodeOutputs& out) {
  const int64_t j = query % f.group, stride = decode_partial_floats(f);
  const double sink = in.sink_logits ? in.sink_logits[query % (int64_t{f.kv_heads} * f.group)] : kNone;
  const auto high = [&](int i) { return double{partials[i * stride + int64_t{f.group} * f.dim + j]}; };
  const auto sum = [&](int i) { return double{partials[i * stride + int64_t{f.group} * (f.dim + 1) + j]}; };
  double top = sink;
  for (int i = 0; i < count; ++i) top = std::max(top, high(i));
  double all = sink > kNone ? std::exp(sink - top) : 0;
  std::fill_n(row, f.dim, 0.0);
  for (int i = 0; i < count; ++i) {
    const double factor = std::exp(high(i) - top);
    const float* o = partials + i * stride + j * f.dim;
    all += factor * sum(i);
    for (int d = 0; d < f.dim; ++d) row[d] += factor * o[d];
  }
  const double scale = all > 0 ? 1 / all : all == 0 ? 0 : all;  // NaN stays NaN
  for (int d = 0; d < f.dim; ++d) {
    const auto x = static_cast<float>(row[d] * scale);
    if (out.o_type == FloatType::f32) {
      static_cast<float*>(out.o)[query * f.dim + d] = x;
    } else {
      static_cast<uint16_t*>(out.o)[query * f.dim + d] = to_bf16(x);
    }
  }
  if (out.lse) out.lse[query] = static_cast<float>(all == 0 ? kNone : top + std::log(all));
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};

}  // namespace

Status decode_with(const KernelTable& level, const CacheFormat& f, const DecodeBatch& batch,
                   const DecodeInputs& in, const DecodeOutputs& out) {
  if (Status s = check_format(f); !s.ok()) return s;
  if (Status s = check_inputs(f, batch, in, out); !s.ok()) return s;

  // Parts in the order sequence, KV head, part: sequence b has `count` per KV head, from first_part[b] on.
  std::unique_ptr<int64_t[]> first_part(new (std::nothrow) int64_t[batch.sequences + 1]);
  if (!first_part) return {"decode: out of memory"};
  first_part[0] = 0;
  for (int b = 0; b < batch.sequences; ++b) {
    first_part[b + 1] = first_part[b] + int64_t{Parts(f, batch, b).count()} * f.kv_heads;
  }
  const int64_t parts = first_part[batch.sequences],
                queries = int64_t{batch.sequences} * f.kv_heads * f.group;
  const int threads = static_cast<int>(std::clamp<int64_t>(parts, 1, omp_get_max_threads()));
  const auto line = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  const int64_t q_bytes = line(int64_t{8} * f.group * f.dim),
                scratch = line(level.decode_scratch(f)) + q_bytes, partial = decode_partial_floats(f);
  const std::unique_ptr<char, Free> memory(
      static_cast<char*>(std::aligned_alloc(64, threads * scratch + line(parts * partial * 4) + 64)));
  if (!memory) return {"decode: out of memory"};
  auto* partials = reinterpret_cast<float*>(memory.get() + threads * scratch);

#pragma omp parallel num_threads(threads)
  {
    char* own = memory.get() + omp_get_thread_num() * scratch;
    auto* q = reinterpret_cast<float*>(own + scratch - q_bytes);
    std::memset(own, 0, 64);
    int b = 0;
    // Static: a thread's parts follow one another, and what was prepared for a KV head serves the next of its
    // parts.
#pragma omp for schedule(static)
    for (int64_t n = 0; n < parts; ++n) {
      while (n >= first_part[b + 1]) ++b;
      const Parts of_head(f, batch, b);
      const int64_t in_sequence = n - first_part[b];
      const int head = static_cast<int>(in_sequence / of_head.count());
      const DecodePart part =
          make_part(f, batch, in, b, head, of_head, static_cast<int>(in_sequence % of_head.count()));
      const int64_t at = (int64_t{b} * f.kv_heads + head) * f.group * f.dim;
      for (int64_t i = 0; i < int64_t{f.group} * f.dim; ++i)
        q[i] = element(in.q, in.q_type, at + i) * in.scale;
      level.decode_part(part, q, own, partials + n * partial);
    }
#pragma omp for schedule(static)
    for (int64_t query = 0; query < queries; ++query) {
      const int64_t sequence = query / (f.kv_heads * f.group), head = query / f.group % f.kv_heads;
      const int count = Parts(f, batch, static_cast<int>(sequence)).count();
      merge(f, in, query, partials + (first_part[sequence] + head * count) * partial, count,
            reinterpret_cast<double*>(q), out);
    }
  }
  return {};
}

}  // namespace oscar
