// Against the values of ggml (tests/golden/make_dequant.py), bit for bit.
#include "libdump/dequant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/bytes.h"
#include "formats/dtype.h"
#include "tests/support/support.h"

namespace oscar {
namespace {

// The types of the format's own table, which has sizes of its own.
const GgmlType* by_name(std::string_view name) {
  for (uint32_t id = 0; id < 256; ++id)
    if (const GgmlType* type = find_ggml_type(id); type && type->name == name) return type;
  return nullptr;
}

struct Golden {
  std::string name;
  GgmlType type;
  std::string blocks;
  std::vector<float> values;
};

std::vector<Golden> read_golden() {
  const std::string content = test::read(test::golden("dequant.bin"));
  ByteReader reader(std::as_bytes(std::span(content)), "dequant.bin");
  std::vector<Golden> all;
  while (reader.remaining()) {
    Golden golden;
    golden.name = std::string(reader.text(8, "name").data());
    const auto elements = reader.read<uint32_t>("elements"), bytes = reader.read<uint32_t>("bytes");
    const GgmlType* type = by_name(golden.name);
    if (!type) throw std::runtime_error("no ggml type " + golden.name);
    golden.type = *type;
    EXPECT_EQ(bytes, elements / type->block * type->bytes) << golden.name;
    golden.blocks = reader.text(bytes, "blocks");
    golden.values.resize(elements);
    std::memcpy(golden.values.data(), reader.text(4ull * elements, "values").data(), 4ull * elements);
    all.push_back(std::move(golden));
  }
  return all;
}

// The sign and payload of a NaN are the CPU's and the compiler's: x86 makes a negative one of infinity times
// 0.
void expect_same_bits(const std::vector<float>& expected, const std::vector<float>& found,
                      const std::string& what) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(found[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(expected[i]), std::bit_cast<uint32_t>(found[i]))
        << what << " element " << i << ": " << expected[i] << ", found " << found[i];
  }
}

std::vector<float> decode(const GgmlType& type, const void* blocks, size_t elements) {
  std::vector<float> found(elements);
  dequantise(type, static_cast<const std::byte*>(blocks), static_cast<int64_t>(elements), found.data());
  return found;
}

TEST(Dequant, EveryTypeHasGoldenValuesAndEqualsThem) {
  std::string names;
  for (const Golden& g : read_golden()) {
    names += (names.empty() ? "" : ", ") + g.name;
    ASSERT_TRUE(can_dequantise(g.type)) << g.name;
    expect_same_bits(g.values, decode(g.type, g.blocks.data(), g.values.size()), g.name);
  }
  EXPECT_EQ(names, known_types());
}

// A golden file of tame scales would prove less than it seems to.
TEST(Dequant, GoldenValuesHaveInfinitiesAndNaN) {
  for (const Golden& g : read_golden()) {
    if (g.name == "F32" || g.name == "BF16" || g.name == "NVFP4") continue;  // the scales of NVFP4 are finite
    EXPECT_TRUE(std::ranges::any_of(g.values, [](float x) { return std::isinf(x); })) << g.name;
    const bool nan = std::ranges::any_of(g.values, [](float x) { return std::isnan(x); });
    EXPECT_EQ(nan, g.name != "MXFP4") << g.name;  // has no NaN in ggml
  }
}

TEST(Dequant, BlocksMayLieAtAnyAddress) {
  for (const Golden& g : read_golden()) {
    const std::string shifted = "x" + g.blocks;
    expect_same_bits(g.values, decode(g.type, shifted.data() + 1, g.values.size()), g.name);
  }
}

TEST(Dequant, EveryHalf) {
  std::vector<uint16_t> halves(65536);
  std::vector<float> expected(halves.size());
  for (size_t i = 0; i < halves.size(); ++i) {
    halves[i] = static_cast<uint16_t>(i);
    expected[i] = f16_to_float(halves[i]);
  }
  expect_same_bits(expected, decode(*by_name("F16"), halves.data(), halves.size()), "F16");
}

// 2^(e - 128) times the doubled values of e2m1; no code is NaN.
TEST(Dequant, EveryScaleOfMxfp4) {
  for (int e = 0; e < 256; ++e) {
    std::array<uint8_t, 17> block{static_cast<uint8_t>(e)};
    std::vector<float> expected(32);
    constexpr int values[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (int j = 0; j < 16; ++j) {
      block[1 + j] = static_cast<uint8_t>(j | (15 - j) << 4);
      expected[j] = static_cast<float>(std::ldexp(values[j], e - 128));
      expected[16 + j] = static_cast<float>(std::ldexp(values[15 - j], e - 128));
    }
    expect_same_bits(expected, decode(*by_name("MXFP4"), block.data(), 32), "scale " + std::to_string(e));
  }
}

TEST(Dequant, OtherTypesAreRefusedWithTheKnownOnesAndWhatToDo) {
  for (const char* name : {"IQ1_S", "IQ2_XXS", "IQ3_S", "Q8_1", "Q8_K", "I8"}) {
    ASSERT_TRUE(by_name(name));
    EXPECT_FALSE(can_dequantise(*by_name(name))) << name;
    try {
      decode(*by_name(name), nullptr, 256);
      FAIL() << name;
    } catch (const std::invalid_argument& e) {
      for (const std::string part : {name, "Q4_0, Q4_1", "llama-quantize --allow-requantize"})
        EXPECT_NE(std::string::npos, std::string(e.what()).find(part)) << e.what();
    }
  }
}

TEST(Dequant, PartOfABlockIsRefused) {
  const GgmlType q8{8, "Q8_0", 32, 34};
  std::vector<std::byte> block(34);
  std::vector<float> out(33);
  EXPECT_THROW(dequantise(q8, block.data(), 33, out.data()), std::invalid_argument);
}

TEST(Dequant, NothingToDoIsFine) {
  dequantise(GgmlType{8, "Q8_0", 32, 34}, nullptr, 0, nullptr);
}

}  // namespace
}  // namespace oscar
