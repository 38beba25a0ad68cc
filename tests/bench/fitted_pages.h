// Pages of vector codes of real rows and the codebooks they were made with, 8 KV heads: what
// bench_fitted_pages writes and bench_decode_vector times. int32 dim, size, pages; the two codebooks of
// decode.h (words, scales; keys, values); pages.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/decode.h"

namespace oscar::bench {

inline constexpr int kFittedHeads = 8;

struct FittedPages {
  int32_t dim = 0, size = 0, pages = 0;
  std::vector<int8_t> words[2];
  std::vector<float> scales[2];
  std::vector<uint8_t> bytes;

  CacheFormat format(int group) const {
    const SideFormat side{size == 4 ? CodeKind::vector4x8 : CodeKind::vector8x8};
    return {CacheLayout::native, dim, kFittedHeads, group, side, side};
  }
  void allocate() {
    for (auto& w : words) w.resize(size_t{kFittedHeads} * 256 * dim);
    for (auto& s : scales) s.resize(size_t{kFittedHeads} * dim / size);
    bytes.resize(static_cast<size_t>(pages * page_bytes(format(1))));
  }
};

// `move` is fread or fwrite.
template <class Pages, class Move>
bool move_fitted_pages(Pages& p, Move&& move) {
  bool whole = true;
  const auto all = [&](auto& v) { whole = whole && move(v.data(), sizeof v[0], v.size()) == v.size(); };
  for (auto& w : p.words) all(w);
  for (auto& s : p.scales) all(s);
  all(p.bytes);
  return whole;
}

inline FittedPages read_fitted_pages(const char* path) {
  FittedPages p;
  std::FILE* file = std::fopen(path, "rb");
  const auto get = [&](void* to, size_t size, size_t count) { return std::fread(to, size, count, file); };
  int32_t head[3] = {};
  bool whole = file && get(head, sizeof(int32_t), 3) == 3;
  p.dim = head[0];
  p.size = head[1];
  p.pages = head[2];
  whole = whole && (p.dim == 64 || p.dim == 128) && (p.size == 4 || p.size == 8) && p.pages > 0;
  if (whole) {
    p.allocate();
    whole = move_fitted_pages(p, get);
  }
  if (!whole) {
    std::fprintf(stderr, "%s: not a file of bench_fitted_pages\n", path);
    std::exit(2);
  }
  std::fclose(file);
  return p;
}

}  // namespace oscar::bench
