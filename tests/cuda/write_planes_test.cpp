// The GPU's bit planes against the CPU's, byte for byte, in pages full of other bits.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "kernels/half.h"
#include "kernels/plane_pages.h"
#include "kernels/write.h"
#include "tests/cuda/bf16.h"
#include "tests/cuda/device_memory.h"

namespace oscar::cuda {
namespace {

enum class Slots { in_order, uneven, backwards, shuffled };  // uneven: from the third position of a page on
enum class Rows { normal, close, whole };

struct Case {
  CacheFormat format;
  FloatType type = FloatType::bf16;
  bool round = true, mean = false, rotation = false, per_head = false;
  Slots slots = Slots::in_order;
  Rows rows = Rows::normal;
  int64_t tokens = 150;
  bool odd_steps = false;  // some that float32 cannot divide by
};

// Planes of whole chunks, planes with places that hold nothing, one plane, four of them for all channels.
std::vector<CacheFormat> formats(int dim) {
  std::vector<CacheFormat> all;
  const auto add = [&](SideFormat k, SideFormat v) {
    k.kind = v.kind = CodeKind::planes;
    all.push_back({.dim = dim, .kv_heads = 3, .k = k, .v = v});
  };
  add({.planes = {dim, dim / 2 + 16, 32, 16}}, {.planes = {dim, dim, 16, 16}});
  add({.planes = {dim, dim / 2 + 8, 16, 0}}, {.planes = {dim - 8, 24, 8, 8}});
  add({.planes = {dim, 0, 0, 0}}, {.planes = {dim, dim, dim, dim}});
  add({.planes = {dim, dim, dim, dim}}, {.planes = {8, 0, 0, 0}});
  for (const size_t n : {0, 1}) {
    all.push_back(all[n]);
    all.back().k.norm = all.back().v.norm = true;
  }
  return all;
}

struct Levels {
  std::vector<float> steps;
  std::vector<uint8_t> bits;
  // Every second head has fewer channels in each plane than there is room for.
  Levels(const Case& c, const SideFormat& side, std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (int i = 0; i < c.format.kv_heads * c.format.dim; ++i) {
      const int channel = i % c.format.dim, fewer = i / c.format.dim % 2 * 5;
      const auto has = [&](int n) { return channel < n - fewer; };
      bits.push_back(static_cast<uint8_t>(std::count_if(side.planes, side.planes + kPlanes, has)));
      steps.push_back(std::exp(0.3f * normal(random)));
      if (side.norm) steps.back() *= 2 / static_cast<float>(1 << bits.back());  // for elements of size 1
      if (c.odd_steps && channel % 7 == 3) steps.back() = std::vector{0.f, 1e-40f, 2e-38f, 1e17f}[i % 4];
      if (c.odd_steps && channel % 7 == 4)
        steps.back() *= std::ldexp(1.f, static_cast<int>(random() % 150) - 100);
    }
  }
};

// close: next to where codes rise, and, in every fifth row, what else is hard: zeros, tiny and huge elements.
std::vector<float> make_rows(const Case& c, const SideFormat& side, const Levels& levels,
                             std::mt19937& random) {
  const int dim = c.format.dim, width = c.format.kv_heads * dim;
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(c.tokens * width));
  for (size_t i = 0; i < x.size(); ++i) {
    const float step = levels.steps[i % width];
    const int last = (1 << levels.bits[i % width]) - 1, level = static_cast<int>(random() % (last + 2)) - 1;
    float& v = x[i] = 1.5f * step * normal(random);
    if (c.rows == Rows::whole) v = static_cast<float>(static_cast<int>(random() % 17) - 8);
    if (c.rows != Rows::close) continue;
    const float tie = (static_cast<float>(level) + 0.5f - static_cast<float>(last) / 2) * step;
    switch (random() % (i / width % 5 == 0 ? 8 : 5)) {
      case 0:
        v = std::nextafter(tie, random() % 2 ? 1e9f : -1e9f);
        break;
      case 1:
        v = tie * (1 + 0x1p-20f * normal(random));
        break;
      case 5:
        v = random() % 2 ? 0.f : -0.f;
        break;
      case 6:
        v *= std::exp2(-30 - static_cast<float>(random() % 100));
        break;
      case 7:
        v = std::copysign(std::exp2(static_cast<float>(random() % 60)), v);
        break;
      default:
        v = tie;
    }
  }
  // They stay close when the norm divides them: the first element makes it 1, then all are times a float16.
  for (float* row = x.data(); c.rows == Rows::close && side.norm && row < x.data() + x.size(); row += dim) {
    const double squares = std::inner_product(row + 1, row + dim, row + 1, 0.0);
    if (!(squares < dim)) continue;
    row[0] = static_cast<float>(std::sqrt(dim - squares));
    const float norm = half_to_float(float_to_half(std::exp(normal(random))));
    for (int i = 0; i < dim; ++i) row[i] *= norm;
  }
  return x;
}

std::vector<int64_t> make_slots(const Case& c, std::mt19937& random) {
  const int64_t pages = c.tokens / 64 + 3;
  std::vector<int64_t> order(static_cast<size_t>(pages)), any(static_cast<size_t>(pages * 64)), slots;
  std::iota(order.begin(), order.end(), 0);
  std::iota(any.begin(), any.end(), 0);
  std::ranges::shuffle(order, random);
  std::ranges::shuffle(any, random);
  for (int64_t i = 0; i < c.tokens; ++i) {
    const int64_t position = c.slots == Slots::uneven      ? i + 3
                             : c.slots == Slots::backwards ? c.tokens - 1 - i
                                                           : i;
    slots.push_back(c.slots == Slots::shuffled ? any[i] : order[position / 64] * 64 + position % 64);
    if (i % 50 == 49) slots.back() = i % 100 == 99 ? -1 : -1000;
  }
  return slots;
}

// Writes `each` tokens a call, and counts the bytes that differ.
int64_t different_bytes(const Case& c, bool keys, int64_t each) {
  const CacheFormat& f = c.format;
  std::mt19937 random(7);
  const SideFormat& side = keys ? f.k : f.v;
  const Levels levels(c, side, random);
  const std::vector<float> rows = make_rows(c, side, levels, random);
  const std::vector<int64_t> slots = make_slots(c, random);
  const int64_t width = f.kv_heads * f.dim;
  std::vector<uint16_t> halves(rows.size()), matrix(static_cast<size_t>(width * f.dim));
  std::ranges::transform(rows, halves.begin(), to_bf16);
  // Signs and a power of two: with rows of small integers every product and sum is exact.
  for (auto& x : matrix) x = to_bf16(random() % 2 ? 0.125f : -0.125f);
  std::normal_distribution<float> normal;
  std::vector<float> mean(static_cast<size_t>(width));
  for (float& x : mean) x = 0.3f * normal(random);
  std::vector<uint8_t> pages(static_cast<size_t>((c.tokens / 64 + 3) * page_bytes(f)));
  for (auto& x : pages) x = static_cast<uint8_t>(random());

  const DeviceArray<uint8_t> d_pages(pages), d_bits(levels.bits);
  const DeviceArray<float> d_mean(mean), d_steps(levels.steps), d_rows(rows);
  const DeviceArray<uint16_t> d_halves(halves), d_matrix(matrix);
  const DeviceArray<int64_t> d_slots(slots);
  const WriteRule rule{.round_bf16 = c.round};
  const auto inputs = [&](const float* r, const uint16_t* h, const int64_t* s, const uint16_t* m,
                          const float* mu, int64_t first, int64_t n) {
    const bool f32 = c.type == FloatType::f32;
    return WriteRows{.rows = f32 ? static_cast<const void*>(r + first * width) : h + first * width,
                     .type = c.type,
                     .tokens = n,
                     .slots = s + first,
                     .rotation = c.rotation ? m : nullptr,
                     .rotation_per_head = c.per_head,
                     .mean = c.mean ? mu : nullptr};
  };
  require(oscar::write(
      f, rule, inputs(rows.data(), halves.data(), slots.data(), matrix.data(), mean.data(), 0, c.tokens),
      {.keys = keys, .pages = pages.data(), .levels = {levels.steps.data(), levels.bits.data()}}));
  for (int64_t first = 0; first < c.tokens; first += each) {
    require(write(f, rule,
                  inputs(d_rows.get(), d_halves.get(), d_slots.get(), d_matrix.get(), d_mean.get(), first,
                         std::min(each, c.tokens - first)),
                  {.keys = keys, .pages = d_pages.get(), .levels = {d_steps.get(), d_bits.get()}}, nullptr));
  }
  require(synchronize(nullptr));
  const auto found = d_pages.host();
  int64_t wrong = 0;
  for (size_t i = 0; i < pages.size(); ++i) wrong += pages[i] != found[i];
  return wrong;
}

std::string name_of(const Case& c, bool keys) {
  const SideFormat& side = keys ? c.format.k : c.format.v;
  std::string name = std::string(keys ? "keys" : "values") + " D " + std::to_string(c.format.dim) + " planes";
  for (const int n : side.planes) name.append(" ").append(std::to_string(n));
  return name + " norm " + std::to_string(side.norm) + " f32 " + std::to_string(c.type == FloatType::f32) +
         " round " + std::to_string(c.round) + " mean " + std::to_string(c.mean) + " rotation " +
         std::to_string(c.rotation) + std::to_string(c.per_head) + " slots " +
         std::to_string(static_cast<int>(c.slots)) + " rows " + std::to_string(static_cast<int>(c.rows));
}
void expect_same(const Case& c, int64_t each = 1 << 20) {
  for (const bool keys : {true, false}) EXPECT_EQ(different_bytes(c, keys, each), 0) << name_of(c, keys);
}

TEST(CudaWritePlanes, EveryFormat) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int dim : {64, 96, 128, 192, 256}) {
    for (const auto& format : formats(dim)) {
      expect_same({.format = format});
      expect_same({.format = format, .slots = Slots::uneven, .tokens = 5});
    }
  }
}
TEST(CudaWritePlanes, RowsGoAnywhere) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int dim : {96, 128}) {
    for (const auto& format : formats(dim)) {
      for (const Slots slots : {Slots::uneven, Slots::backwards, Slots::shuffled})
        expect_same({.format = format, .slots = slots});
    }
  }
}
// Two tokens that share bytes come from blocks that run at the same time.
TEST(CudaWritePlanes, NeighboursOfOtherBlocksAreKept) {
  OSCAR_NEEDS_DEVICE(info);
  for (const auto& format : formats(128))
    expect_same({.format = format, .slots = Slots::shuffled, .tokens = 20000});
}
TEST(CudaWritePlanes, TokensOneByOne) {
  OSCAR_NEEDS_DEVICE(info);
  for (const auto& format : formats(128)) {
    expect_same({.format = format, .tokens = 70}, 1);
    expect_same({.format = format, .slots = Slots::shuffled, .tokens = 70}, 3);
  }
}
TEST(CudaWritePlanes, FloatRowsMeansAndNoRounding) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int dim : {64, 96, 128, 192, 256}) {
    for (const auto& format : formats(dim)) {
      for (const bool round : {true, false}) {
        expect_same({.format = format, .type = FloatType::f32, .round = round});
        expect_same({.format = format, .type = FloatType::f32, .round = round, .mean = true});
        expect_same({.format = format, .round = round, .mean = true});
      }
    }
  }
}
TEST(CudaWritePlanes, CloseCalls) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int dim : {64, 96, 128, 192, 256}) {
    for (const auto& format : formats(dim)) {
      for (const bool odd : {false, true}) {
        expect_same({.format = format, .rows = Rows::close, .odd_steps = odd});
        expect_same({.format = format,
                     .type = FloatType::f32,
                     .round = false,
                     .rows = Rows::close,
                     .odd_steps = odd});
      }
    }
  }
}
TEST(CudaWritePlanes, RotationsWithExactProducts) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int dim : {64, 96, 128, 192, 256}) {
    for (const auto& format : formats(dim)) {
      for (const bool mean : {false, true}) {
        for (const bool round : {false, true}) {
          expect_same({.format = format,
                       .round = round,
                       .mean = mean,
                       .rotation = true,
                       .per_head = mean != round,
                       .slots = round ? Slots::uneven : Slots::in_order,
                       .rows = Rows::whole});
        }
      }
    }
  }
}
TEST(CudaWritePlanes, ManyTilesAWarp) {
  OSCAR_NEEDS_DEVICE(info);
  for (const bool rotation : {false, true}) {
    expect_same({.format = formats(128)[0], .rotation = rotation, .rows = Rows::whole, .tokens = 40000});
  }
}
TEST(CudaWritePlanes, RefusalsAreThoseOfTheCpu) {
  const CacheFormat format = formats(128)[0];
  const uint16_t row[3 * 128] = {};
  const int64_t slot = 0;
  uint8_t page;
  const WriteRows rows{.rows = row, .tokens = 1, .slots = &slot};
  EXPECT_FALSE(write(format, {}, rows, {.pages = &page}, nullptr).ok());  // no levels
  const float step = 1;
  const uint8_t bits = 1;
  EXPECT_FALSE(write(format, {.clip = 0.9}, rows, {.pages = &page, .levels = {&step, &bits}}, nullptr).ok());
}

}  // namespace
}  // namespace oscar::cuda
