// Decode over vector codes on a GPU, with the plan that the library makes; see docs/performance.md.
//
//   bench_decode_vector [part of a row's name]
//   bench_decode_vector --pages FILE...     codes of real rows, of bench_fitted_pages, beside random ones
#include <cstring>

#include "kernels/vector_pages.h"
#include "tests/bench/fitted_pages.h"
#include "tests/bench/page_pool.h"

namespace oscar::bench {
namespace {

CodebookView book(const CacheFormat& f, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<int8_t> words(static_cast<size_t>(f.kv_heads * kVectorWords * f.dim));
  for (auto& w : words) w = static_cast<int8_t>(std::fmax(-127.f, std::fmin(127.f, 40 * normal(random))));
  std::vector<float> scales(static_cast<size_t>(f.kv_heads * f.dim / 4));
  for (auto& s : scales) s = 0.02f * std::exp(0.4f * normal(random));
  return {on_device(words), on_device(scales)};
}
DecodeInputs random_books(const CacheFormat& f) {
  std::mt19937 random(2);
  DecodeInputs in;
  in.k_book = book(f, random);
  in.v_book = book(f, random);
  return in;
}

// The pages again and again through the pool; then random ones of the same format.
void run_fitted(PagePool& pool, const char* path) {
  const FittedPages fitted = read_fitted_pages(path);
  const CacheFormat f = fitted.format(4);
  const std::string name = std::to_string(fitted.size) + "x8, D " + std::to_string(fitted.dim);
  DecodeInputs in;
  in.k_book = {on_device(fitted.words[0]), on_device(fitted.scales[0])};
  in.v_book = {on_device(fitted.words[1]), on_device(fitted.scales[1])};
  for (size_t at = 0; at + fitted.bytes.size() <= PagePool::kBytes; at += fitted.bytes.size()) {
    check(cudaMemcpy(pool.pages + at, fitted.bytes.data(), fitted.bytes.size(), cudaMemcpyHostToDevice),
          "pages");
  }
  for (const bool random : {false, true}) {
    if (random) {
      pool.fill(f);
      in = random_books(f);
    }
    const std::string of = name + (random ? ", random" : ", fitted");
    pool.row("32x32k " + of, f, in, 32, 32768, false);
    pool.row("1x128k " + of, f, in, 1, 131072, false);
  }
}

void run(PagePool& pool) {
  using enum CodeKind;
  const auto shapes = [&](const std::string& name, int dim, int group, const SideFormat& k,
                          const SideFormat& v, bool all) {
    const CacheFormat f{CacheLayout::native, dim, 8, group, k, v};
    pool.fill(f);
    pool.rows(name, f, random_books(f), all);
  };
  shapes("4x8", 128, 4, {vector4x8}, {vector4x8}, true);
  shapes("4x8 norm", 128, 4, {vector4x8, 1, true}, {vector4x8}, true);
  shapes("8x8", 128, 4, {vector8x8}, {vector8x8}, true);
  shapes("8x8 norm", 128, 4, {vector8x8, 1, true}, {vector8x8}, true);
  shapes("4x8 / 8x8", 128, 4, {vector4x8}, {vector8x8}, false);
  shapes("8x8 / 4x8", 128, 4, {vector8x8}, {vector4x8}, false);
  shapes("4x8 norm / int2", 128, 4, {vector4x8, 1, true}, {int2}, false);
  shapes("int2 / 4x8", 128, 4, {int2}, {vector4x8}, false);
  shapes("4x8, 8 heads", 128, 8, {vector4x8}, {vector4x8}, false);
  shapes("4x8, D 64, 8 heads", 64, 8, {vector4x8}, {vector4x8}, false);
}

}  // namespace
}  // namespace oscar::bench

int main(int argc, char** argv) {
  const bool fitted = argc > 2 && std::strcmp(argv[1], "--pages") == 0;
  oscar::bench::PagePool pool(argc > 1 && !fitted ? argv[1] : nullptr, 24);
  if (!fitted) oscar::bench::run(pool);
  for (int i = 2; fitted && i < argc; ++i) oscar::bench::run_fitted(pool, argv[i]);
}
