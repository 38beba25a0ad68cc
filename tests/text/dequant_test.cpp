// Against the values of the PyPI package gguf (tests/golden/make_dequant.py), bit for bit.
#include "libdump/dequant.h"

#include <gtest/gtest.h>

#include <cstring>

#include "formats/bytes.h"
#include "tests/support/support.h"

namespace oscar {
namespace {

struct Golden {
  GgmlType type;
  std::string blocks, values;
  int64_t count;
};

std::vector<Golden> read_golden() {
  static const std::string content = test::read(test::golden("dequant.bin"));
  static std::vector<std::string> names;
  names.reserve(64);
  ByteReader reader(std::as_bytes(std::span(content)), "dequant.bin");
  std::vector<Golden> all;
  while (reader.remaining()) {
    names.emplace_back(reader.text(8, "name").data());
    const auto elements = reader.read<uint32_t>("elements"), bytes = reader.read<uint32_t>("bytes");
    const std::string& name = names.back();
    const int64_t block = name == "Q6_K" ? 256 : name[0] == 'Q' ? 32 : 1;
    const GgmlType type{0, name, block, static_cast<size_t>(bytes) * block / elements};
    const auto blocks = std::string(reader.text(bytes, "blocks"));
    all.push_back({type, blocks, std::string(reader.text(4ull * elements, "values")), elements});
  }
  return all;
}

TEST(Dequant, EveryTypeEqualsTheGgufPackage) {
  std::string names;
  for (const Golden& g : read_golden()) {
    names += (names.empty() ? "" : ", ") + std::string(g.type.name);
    ASSERT_TRUE(can_dequantise(g.type)) << g.type.name;
    std::vector<float> expected(g.count), found(g.count);
    std::memcpy(expected.data(), g.values.data(), g.values.size());
    dequantise(g.type, reinterpret_cast<const std::byte*>(g.blocks.data()), g.count, found.data());
    for (int64_t i = 0; i < g.count; ++i) ASSERT_EQ(expected[i], found[i]) << g.type.name << " element " << i;
  }
  EXPECT_EQ(names, known_types()) << "every type of the table has golden values";
}

TEST(Dequant, BlocksMayLieAtAnyAddress) {
  for (const Golden& g : read_golden()) {
    std::vector<std::byte> shifted(g.blocks.size() + 1);
    std::memcpy(shifted.data() + 1, g.blocks.data(), g.blocks.size());
    std::vector<float> found(g.count);
    dequantise(g.type, shifted.data() + 1, g.count, found.data());
    EXPECT_EQ(0, std::memcmp(found.data(), g.values.data(), g.values.size())) << g.type.name;
  }
}

TEST(Dequant, AnUnknownTypeIsRefusedWithTheKnownOnes) {
  const GgmlType iq4{20, "IQ4_NL", 32, 18};
  EXPECT_FALSE(can_dequantise(iq4));
  try {
    dequantise(iq4, nullptr, 32, nullptr);
    FAIL();
  } catch (const std::invalid_argument& e) {
    EXPECT_NE(std::string::npos, std::string(e.what()).find("IQ4_NL")) << e.what();
    EXPECT_NE(std::string::npos, std::string(e.what()).find("Q4_0, Q4_1")) << e.what();
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
