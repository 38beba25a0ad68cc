// The GPU's codes against the CPU's, byte for byte, on rows that are easy to get wrong.
#include "kernels/write.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/half.h"
#include "tests/cuda/device_memory.h"

namespace oscar::cuda {
namespace {

uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Row n: by n % 12 normal, ties, constant, zeros, a small spread far from 0, one of two magnitudes, tiny, an
// outlier, heavy tails, and, where `spoilt`, with NaN or infinities.
std::vector<float> hard_rows(int64_t rows, int dim, bool spoilt, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(rows * dim);
  for (int64_t n = 0; n < rows; ++n) {
    const float size = std::exp2(normal(random) * 2);
    for (int i = 0; i < dim; ++i) {
      const float z = normal(random);
      float& v = x[n * dim + i];
      switch (n % 12) {
        case 1:
          v = std::round(z * 2) * 0.25f;
          break;
        case 2:
          v = n % 24 < 12 ? size : -size;
          break;
        case 3:
          v = 0;
          break;
        case 4:
          v = 1000 * size + z;
          break;
        case 5:
          v = z < 0 ? -size : size;
          break;
        case 6:
          v = z * 1e-39f;
          break;
        case 7:
          v = i == 5 ? 1000 * size : z;
          break;
        case 8:
          v = z * z * z * size;
          break;
        case 9:
          v = spoilt && i % 17 == 3 ? NAN : z;
          break;
        case 10:
          v = spoilt && i == 7 ? INFINITY : spoilt && n % 24 < 12 && i == 9 ? -INFINITY : z;
          break;
        case 11:
          v = spoilt && n % 24 < 12 ? NAN : -std::abs(z);
          break;
        default:
          v = z * size;
      }
    }
  }
  return x;
}

struct Case {
  CacheFormat format;
  WriteRule rule{};
  FloatType type = FloatType::bf16;
  bool mean = false, rotation = false, per_head = false, aligned = true;
  int64_t tokens = 150;
};

// Fills both caches and counts the bytes that differ. NaN of any bits are the same.
int64_t different_bytes(const Case& c, bool keys, const std::vector<float>& rows) {
  const CacheFormat& f = c.format;
  const SideFormat& side = keys ? f.k : f.v;
  const int64_t T = c.tokens, pages = T / 64 + 3;
  std::mt19937 random(7);
  std::vector<uint16_t> halves(rows.size());
  std::ranges::transform(rows, halves.begin(), to_bf16);
  std::vector<int64_t> order(pages), slots(T);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random);
  for (int64_t i = 0; i < T; ++i) {
    const int64_t position = i + (c.aligned ? 0 : 3);
    slots[i] = i % 50 == 49 ? -1 : order[position / 64] * 64 + position % 64;
  }
  std::normal_distribution<float> normal;
  std::vector<float> mean(f.kv_heads * f.dim), scales(f.kv_heads * f.dim);
  for (float& x : mean) x = normal(random);
  for (float& x : scales) x = 0.02f * std::exp2(normal(random) * 0.5f);
  // Signs and powers of two: with rows of small integers every product and sum is exact.
  std::vector<uint16_t> matrix(int64_t{f.kv_heads} * f.dim * f.dim);
  for (auto& x : matrix) x = to_bf16(random() % 2 ? 0.125f : -0.125f);
  std::vector<int8_t> words(int64_t{f.kv_heads} * 256 * f.dim);
  for (auto& x : words) x = static_cast<int8_t>(std::clamp(std::lround(normal(random) * 50), -127l, 127l));

  const size_t code_bytes =
      f.layout == CacheLayout::native ? pages * page_bytes(f) : pages * 64 * f.kv_heads * f.dim / 4;
  const size_t scale_count = f.layout == CacheLayout::native ? 1 : pages * 64 * f.kv_heads * 2 * side.groups;
  std::vector<uint8_t> codes(code_bytes, 0xa5);
  std::vector<float> scale_zero(scale_count, -7.0f);
  const DeviceArray<uint8_t> d_codes(codes);
  const DeviceArray<float> d_scale_zero(scale_zero), d_mean(mean), d_scales(scales), d_rows(rows);
  const DeviceArray<uint16_t> d_halves(halves), d_matrix(matrix);
  const DeviceArray<int64_t> d_slots(slots);
  const DeviceArray<int8_t> d_words(words);

  WriteRows in{.type = c.type, .tokens = T, .rotation_per_head = c.per_head};
  WriteTarget target{.keys = keys};
  const bool native = f.layout == CacheLayout::native;
  const auto point = [&](const void* r, const void* h, const int64_t* s, const uint16_t* m, const float* mu,
                         uint8_t* to, void* sz, const int8_t* w, const float* ws) {
    in.rows = c.type == FloatType::f32 ? r : h;
    in.slots = s;
    in.rotation = c.rotation ? m : nullptr;
    in.mean = c.mean ? mu : nullptr;
    target.pages = native ? to : nullptr;
    target.codes = native ? nullptr : to;
    target.scale_zero = native ? nullptr : sz;
    target.book = {w, ws};
  };
  point(rows.data(), halves.data(), slots.data(), matrix.data(), mean.data(), codes.data(), scale_zero.data(),
        words.data(), scales.data());
  require(oscar::write(f, c.rule, in, target));
  point(d_rows.get(), d_halves.get(), d_slots.get(), d_matrix.get(), d_mean.get(), d_codes.get(),
        d_scale_zero.get(), d_words.get(), d_scales.get());
  require(write(f, c.rule, in, target, nullptr));
  require(synchronize(nullptr));

  int64_t wrong = 0;
  const auto found = d_codes.host();
  for (size_t i = 0; i < codes.size(); ++i) wrong += codes[i] != found[i];
  const auto found_scales = d_scale_zero.host();
  if (f.scale_zero == FloatType::bf16) {
    const auto* a = reinterpret_cast<const uint16_t*>(scale_zero.data());
    const auto* b = reinterpret_cast<const uint16_t*>(found_scales.data());
    for (size_t i = 0; i < 2 * scale_count; ++i) {
      wrong += a[i] != b[i] && !(std::isnan(bf16_to_float(a[i])) && std::isnan(bf16_to_float(b[i])));
    }
  } else {
    for (size_t i = 0; i < scale_count; ++i) {
      wrong += std::bit_cast<uint32_t>(scale_zero[i]) != std::bit_cast<uint32_t>(found_scales[i]) &&
               !(std::isnan(scale_zero[i]) && std::isnan(found_scales[i]));
    }
  }
  return wrong;
}

std::string name_of(const Case& c, bool keys) {
  const SideFormat& side = keys ? c.format.k : c.format.v;
  return std::string(c.format.layout == CacheLayout::native ? "native" : "sglang") +
         (keys ? " keys" : " values") + " D " + std::to_string(c.format.dim) + " G " +
         std::to_string(side.groups) + " kind " + std::to_string(int(side.kind)) + " norm " +
         std::to_string(side.norm) + " clip " + std::to_string(c.rule.clip) + " bisect " +
         std::to_string(c.rule.bisect) + " round " + std::to_string(c.rule.round_bf16) + " step " +
         std::to_string(c.rule.step) + " f32 " + std::to_string(c.type == FloatType::f32) + " mean " +
         std::to_string(c.mean) + " rotation " + std::to_string(c.rotation) + std::to_string(c.per_head) +
         " aligned " + std::to_string(c.aligned);
}
void expect_same(const Case& c, const std::vector<float>& rows) {
  for (const bool keys : {true, false}) EXPECT_EQ(different_bytes(c, keys, rows), 0) << name_of(c, keys);
}
void expect_same(const Case& c, bool spoilt = true) {
  expect_same(c, hard_rows(c.tokens * c.format.kv_heads, c.format.dim, spoilt, 11));
}

std::vector<CacheFormat> int2_formats() {
  std::vector<CacheFormat> formats;
  for (const int dim : {64, 128, 256}) {
    for (const int groups : {1, 2, 4}) {
      formats.push_back({.layout = CacheLayout::sglang,
                         .dim = dim,
                         .kv_heads = 3,
                         .k = {.groups = groups},
                         .v = {.groups = groups}});
    }
  }
  formats.push_back(formats[3]);
  formats.back().scale_zero = FloatType::bf16;
  for (const int dim : {64, 96, 128, 192, 256}) {
    for (const int groups : {1, 2, dim / 32}) {
      if (dim % (32 * groups) == 0)
        formats.push_back({.dim = dim, .kv_heads = 3, .k = {.groups = groups}, .v = {.groups = groups}});
    }
  }
  return formats;
}

TEST(CudaWrite, EveryFormatAndClip) {
  OSCAR_NEEDS_DEVICE(info);
  for (const auto& format : int2_formats()) {
    for (const double clip : {0.0, 0.96, 0.92, 0.7, 1.0})
      expect_same({.format = format, .rule = {.clip = clip}});
    expect_same({.format = format, .rule = {.clip = 0.96, .bisect = true}});
  }
}
// A group that is clipped on both sides has a step at 0, up to a rounding: elements of any size beside it.
TEST(CudaWrite, ElementsNextToTheMiddleStep) {
  OSCAR_NEEDS_DEVICE(info);
  std::mt19937 random(9);
  for (const auto& format : int2_formats()) {
    std::vector<float> rows(150 * format.kv_heads * format.dim);
    for (size_t i = 0; i < rows.size(); ++i) {
      const float size = static_cast<float>(128 + i / format.dim % 128);  // every mantissa
      const auto pick = random();
      rows[i] = std::ldexp(pick % 2 ? size : -size, pick / 2 % 4 == 0 ? 0 : -static_cast<int>(pick / 8 % 40));
      if (pick / 512 % 32 == 0) rows[i] = 0;
    }
    for (const double clip : {0.0, 0.96, 0.92}) expect_same({.format = format, .rule = {.clip = clip}}, rows);
  }
}
TEST(CudaWrite, FloatRowsMeansAndNoRounding) {
  OSCAR_NEEDS_DEVICE(info);
  for (const auto& format : int2_formats()) {
    for (const bool round : {true, false}) {
      for (const bool bisect : {true, false}) {
        const WriteRule rule{.clip = 0.92, .bisect = bisect, .round_bf16 = round};
        expect_same({.format = format, .rule = rule, .type = FloatType::f32});
        expect_same({.format = format, .rule = rule, .type = FloatType::f32, .mean = true});
        expect_same({.format = format, .rule = rule, .mean = true});
      }
    }
  }
}
TEST(CudaWrite, RowsThatAreNotAlignedWithThePage) {
  OSCAR_NEEDS_DEVICE(info);
  for (const auto& format : int2_formats())
    expect_same({.format = format, .rule = {.clip = 0.96}, .aligned = false, .tokens = 5});
  for (const auto& format : int2_formats()) expect_same({.format = format, .aligned = false});
}
TEST(CudaWrite, LloydMax) {
  OSCAR_NEEDS_DEVICE(info);
  for (const auto& format : int2_formats()) {
    if (format.k.groups != 1) continue;
    const bool spoilt = format.layout == CacheLayout::sglang;  // float16 of a NaN: of any sign
    for (const auto& [step, threshold] : {std::pair{1.16739f, 0.98106527f}, {0.9957f, 0.9957f}}) {
      for (const double clip : {0.0, 0.96}) {
        expect_same({.format = format, .rule = {.clip = clip, .step = step, .threshold = threshold}}, spoilt);
        expect_same({.format = format,
                     .rule = {.clip = clip, .round_bf16 = false, .step = step, .threshold = threshold},
                     .type = FloatType::f32,
                     .mean = true},
                    spoilt);
      }
    }
  }
}
TEST(CudaWrite, RotationsWithExactProductsGiveTheSameBytes) {
  OSCAR_NEEDS_DEVICE(info);
  for (const auto& format : int2_formats()) {
    if (format.k.groups > 2) continue;
    for (const bool per_head : {false, true}) {
      for (const bool mean : {false, true}) {
        for (const bool round : {true, false}) {
          const Case c{.format = format,
                       .rule = {.clip = 0.96, .round_bf16 = round},
                       .mean = mean,
                       .rotation = true,
                       .per_head = per_head};
          std::mt19937 random(3);
          std::vector<float> rows(c.tokens * format.kv_heads * format.dim);
          for (float& x : rows) x = static_cast<float>(static_cast<int>(random() % 201) - 100);
          for (const bool keys : {true, false})
            EXPECT_EQ(different_bytes(c, keys, rows), 0) << name_of(c, keys);
        }
      }
    }
  }
}
TEST(CudaWrite, RotationsOfAnyRowsDifferInCloseCallsOnly) {
  OSCAR_NEEDS_DEVICE(info);
  const CacheFormat format{.dim = 128, .kv_heads = 3};
  const Case c{.format = format, .rule = {.clip = 0.96}, .rotation = true, .tokens = 2000};
  const auto rows = hard_rows(c.tokens * format.kv_heads, format.dim, false, 5);
  EXPECT_LT(different_bytes(c, true, rows), 0.01 * c.tokens * page_bytes(format) / 64);
}
TEST(CudaWrite, VectorCodesAreTheNearestWords) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int dim : {64, 128}) {
    for (const CodeKind kind : {CodeKind::vector4x8, CodeKind::vector8x8}) {
      for (const bool norm : {false, true}) {
        const CacheFormat format{
            .dim = dim, .kv_heads = 3, .k = {.kind = kind, .norm = norm}, .v = {.kind = kind, .norm = norm}};
        expect_same({.format = format}, false);
        expect_same({.format = format, .type = FloatType::f32, .mean = true, .aligned = false}, false);
        expect_same({.format = format, .rule = {.round_bf16 = false}, .type = FloatType::f32}, false);
        const Case rotated{.format = format, .mean = true, .rotation = true, .per_head = true};
        std::vector<float> rows(rotated.tokens * format.kv_heads * dim);
        std::mt19937 random(3);
        for (float& x : rows) x = static_cast<float>(static_cast<int>(random() % 17) - 8);
        for (const bool keys : {true, false})
          EXPECT_EQ(different_bytes(rotated, keys, rows), 0) << name_of(rotated, keys);
      }
    }
  }
}
TEST(CudaWrite, VectorRowsOfAnySize) {
  OSCAR_NEEDS_DEVICE(info);
  std::mt19937 random(10);
  for (const int dim : {64, 128}) {
    for (const CodeKind kind : {CodeKind::vector4x8, CodeKind::vector8x8}) {
      const CacheFormat format{.dim = dim, .kv_heads = 3, .k = {.kind = kind}, .v = {.kind = kind}};
      auto rows = hard_rows(150 * format.kv_heads, dim, false, 12);
      for (size_t i = 0; i < rows.size(); i += 4) {
        const int power = static_cast<int>(random() % 81) - 50;
        for (int k = 0; k < 4; ++k) rows[i + k] = std::ldexp(rows[i + k], power);
      }
      expect_same({.format = format}, rows);
      expect_same({.format = format, .rule = {.round_bf16 = false}, .type = FloatType::f32}, rows);
    }
  }
}
TEST(CudaWrite, RefusalsAreThoseOfTheCpu) {
  const CacheFormat format{.dim = 128, .kv_heads = 1};
  EXPECT_FALSE(oscar::write(format, {}, {.tokens = 1}, {}).ok());
  EXPECT_FALSE(write(format, {}, {.tokens = 1}, {}, nullptr).ok());
}

}  // namespace
}  // namespace oscar::cuda
