#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "kernels/decode.h"
#include "kernels/half.h"
#include "kernels/int2.h"
#include "kernels/plane_pages.h"
#include "kernels/vector_pages.h"

namespace oscar {

namespace {

constexpr int kPage = int2::kPageTokens;

float scalar(const void* from, FloatType type, int64_t at) {
  if (type == FloatType::f32) return static_cast<const float*>(from)[at];
  const uint16_t bits = static_cast<const uint16_t*>(from)[at];
  return type == FloatType::bf16 ? bf16_to_float(bits) : half_to_float(bits);
}

// One coded row as float32, by the rule of its codec.
void coded_row(const CacheFormat& f, const DecodeInputs& in, bool keys, int64_t entry, int head,
               int64_t token, float* row) {
  const SideFormat& side = keys ? f.k : f.v;
  if (f.layout == CacheLayout::sglang) {
    const int64_t at = int64_t{in.table[entry + token]} * f.kv_heads + head;
    std::vector<float> scale_zero;
    for (int i = 0; i < 2 * side.groups; ++i) {
      scale_zero.push_back(
          scalar(keys ? in.k_scale_zero : in.v_scale_zero, f.scale_zero, at * 2 * side.groups + i));
    }
    int2::decode_reference(f.dim, side.groups, (keys ? in.k_codes : in.v_codes) + at * (f.dim / 4),
                           scale_zero.data(), 1, row);
    return;
  }
  const uint8_t* block = in.pages + int64_t{in.table[entry + token / kPage]} * page_bytes(f) +
                         head * (side_bytes(f, f.k) + side_bytes(f, f.v)) + (keys ? 0 : side_bytes(f, f.k));
  const int slot = static_cast<int>(token % kPage);
  if (side.kind == CodeKind::int2) {
    int2::unpack_native(keys, f.dim, side.groups, block, slot, 1, row);
  } else if (side.kind == CodeKind::planes) {
    unpack_planes(keys, side, f.dim, block, keys ? in.k_levels : in.v_levels, head, slot, 1, row);
  } else {
    unpack_vector(keys, f.dim, side.kind == CodeKind::vector4x8 ? 4 : 8, side.norm, block,
                  keys ? in.k_book : in.v_book, head, slot, 1, row);
  }
}

struct Rows {
  std::vector<double> k, v;  // (tokens, D)
  int64_t tokens = 0;
  void add(const float* k_row, const float* v_row, const float* k_mean, const float* v_mean, int dim) {
    for (int i = 0; i < dim; ++i) {
      k.push_back(double{k_row[i]} + (k_mean ? k_mean[i] : 0));
      v.push_back(double{v_row[i]} + (v_mean ? v_mean[i] : 0));
    }
    ++tokens;
  }
};

Rows visible_rows(const CacheFormat& f, const DecodeBatch& batch, const DecodeInputs& in, int b, int head) {
  Rows rows;
  std::vector<float> k(f.dim), v(f.dim);
  const float* k_mean = in.k_mean ? in.k_mean + head * f.dim : nullptr;
  const float* v_mean = in.v_mean ? in.v_mean + head * f.dim : nullptr;
  for (int64_t t = batch.first ? batch.first[b] : 0; t < batch.end[b]; ++t) {
    coded_row(f, in, true, batch.table_start[b], head, t, k.data());
    coded_row(f, in, false, batch.table_start[b], head, t, v.data());
    rows.add(k.data(), v.data(), k_mean, v_mean, f.dim);
  }
  for (int64_t t = 0; t < (batch.exact ? batch.exact[b] : 0); ++t) {
    const int64_t at = (int64_t{in.exact_slots[batch.exact_start[b] + t]} * f.kv_heads + head) * f.dim;
    for (int i = 0; i < f.dim; ++i) {
      k[i] = bf16_to_float(in.exact_k[at + i]);
      v[i] = bf16_to_float(in.exact_v[at + i]);
    }
    rows.add(k.data(), v.data(), nullptr, nullptr, f.dim);
  }
  return rows;
}

}  // namespace

Status decode_reference(const CacheFormat& f, const DecodeBatch& batch, const DecodeInputs& in, double* o,
                        double* lse) {
  if (Status s = check_format(f); !s.ok()) return s;
  for (int b = 0; b < batch.sequences; ++b) {
    for (int head = 0; head < f.kv_heads; ++head) {
      const Rows rows = visible_rows(f, batch, in, b, head);
      for (int j = 0; j < f.group; ++j) {
        const int64_t query = (int64_t{b} * f.kv_heads + head) * f.group + j;
        std::vector<double> weights;
        double top = -std::numeric_limits<double>::infinity();
        for (int64_t s = 0; s < rows.tokens; ++s) {
          double dot = 0;
          for (int i = 0; i < f.dim; ++i)
            dot += scalar(in.q, in.q_type, query * f.dim + i) * rows.k[s * f.dim + i];
          dot *= in.scale;
          if (in.softcap > 0) dot = in.softcap * std::tanh(dot / in.softcap);
          weights.push_back(dot);
          top = std::max(top, dot);
        }
        const double sink =
            in.sink_logits ? in.sink_logits[head * f.group + j] : -std::numeric_limits<double>::infinity();
        top = std::max(top, sink);
        double sum = std::isinf(sink) ? 0 : std::exp(sink - top);
        for (double& w : weights) sum += w = std::exp(w - top);
        for (int i = 0; i < f.dim; ++i) {
          double out = 0;
          for (int64_t s = 0; s < rows.tokens; ++s) out += weights[s] * rows.v[s * f.dim + i];
          o[query * f.dim + i] = sum > 0 ? out / sum : 0;
        }
        if (lse) lse[query] = sum > 0 ? top + std::log(sum) : -std::numeric_limits<double>::infinity();
      }
    }
  }
  return {};
}

}  // namespace oscar
