#include "formats/dtype.h"

#include <cmath>
#include <limits>

#include "formats/tensor.h"
#include "tests/formats/malformed.h"

namespace oscar {
namespace {

float one(DType dtype, uint64_t bits) {
  float value;
  to_float(dtype, reinterpret_cast<const std::byte*>(&bits), 1, &value);
  return value;
}

TEST(DType, TableIsReadInBothDirections) {
  for (const auto& row : dtype_table()) {
    EXPECT_EQ(&info(row.dtype), &row);
    EXPECT_EQ(find_dtype(row.name), &row);
    EXPECT_EQ(find_torch_dtype(row.torch_name), row.torch_name.empty() ? nullptr : &row);
    EXPECT_EQ(find_torch_storage(row.torch), row.torch.empty() ? nullptr : &row);
  }
  EXPECT_EQ(find_dtype("F2"), nullptr);
  EXPECT_EQ(find_torch_storage(""), nullptr);
}

// Every 16-bit pattern survives the way to float and back, and what lies between two neighbours goes to the
// nearer one, from the middle to the even one.
void check_rounding(float (*widen)(uint16_t), uint16_t (*narrow)(float), uint16_t infinity) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = widen(half);
    if ((half & 0x7fff) > infinity) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_GT(narrow(value) & 0x7fff, infinity) << bits;
      ASSERT_EQ(narrow(value) & 0x8000, half & 0x8000) << bits;
      continue;
    }
    ASSERT_EQ(narrow(value), half) << bits;
    if ((half & 0x7fff) >= infinity - 1) continue;
    const float next = widen(static_cast<uint16_t>(half + 1));
    const float middle = static_cast<float>((double{value} + next) / 2);
    ASSERT_EQ(narrow(middle), half & 1 ? half + 1 : half) << bits;
    ASSERT_EQ(narrow(std::nextafter(middle, value)), half) << bits;
    ASSERT_EQ(narrow(std::nextafter(middle, next)), half + 1) << bits;
  }
}
TEST(DType, F16RoundsToNearestEven) {
  check_rounding(f16_to_float, float_to_f16, 0x7c00);
}
TEST(DType, Bf16RoundsToNearestEven) {
  check_rounding(bf16_to_float, float_to_bf16, 0x7f80);
}

// Every code survives; what lies between two goes to the nearer one, from the middle to the even one.
TEST(DType, E4m3RoundsToNearestEvenAndSaturates) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float value = one(DType::F8_E4M3, bits);
    if (std::isnan(value)) {
      EXPECT_EQ(float_to_e4m3(value) & 0x7f, 0x7f);
      continue;
    }
    ASSERT_EQ(float_to_e4m3(value), bits);
    if ((bits & 0x7f) >= 0x7e) continue;
    const float middle = (value + one(DType::F8_E4M3, bits + 1)) / 2;
    ASSERT_EQ(float_to_e4m3(middle), bits & 1 ? bits + 1 : bits) << bits;
    ASSERT_EQ(float_to_e4m3(std::nextafter(middle, value)), bits);
    ASSERT_EQ(float_to_e4m3(std::nextafter(middle, 2 * middle)), bits + 1);
  }
  EXPECT_EQ(float_to_e4m3(1e9f), 0x7e);
  EXPECT_EQ(float_to_e4m3(-1e9f), 0xfe);
}

// Values of the OCP and the fnuz tables.
TEST(DType, SmallFloatsOfCheckpoints) {
  EXPECT_EQ(one(DType::F8_E4M3FNUZ, 0x7f), 240.0f);
  EXPECT_EQ(one(DType::F8_E4M3FNUZ, 0x01), 0x1p-10f);
  EXPECT_EQ(one(DType::F8_E4M3FNUZ, 0x88), -0x1p-7f);
  EXPECT_EQ(one(DType::F8_E5M2FNUZ, 0x7f), 57344.0f);
  EXPECT_EQ(one(DType::F8_E5M2FNUZ, 0x01), 0x1p-17f);
  EXPECT_TRUE(std::isnan(one(DType::F8_E4M3FNUZ, 0x80)) && std::isnan(one(DType::F8_E5M2FNUZ, 0x80)));
  EXPECT_EQ(one(DType::F8_E8M0, 0), 0x1p-127f);
  EXPECT_EQ(one(DType::F8_E8M0, 254), 0x1p127f);
  EXPECT_TRUE(std::isnan(one(DType::F8_E8M0, 255)));
  const auto fours = make_tensor(DType::F4, {4}, {std::byte{0x71}, std::byte{0x9f}});
  EXPECT_EQ(fours.floats(), (std::vector<float>{0.5f, 6, -6, -0.5f}));
  EXPECT_COMPLAINT(make_tensor(DType::F4, {3}, std::vector<std::byte>(2)), "F4 [3]");
  EXPECT_COMPLAINT(make_tensor(DType::C64, {1}, std::vector<std::byte>(8)).floats(), "C64");
}

TEST(DType, F16Edges) {
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0f);
  EXPECT_EQ(float_to_f16(65519.99f), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_f16(-1e30f), 0xfc00);
  EXPECT_EQ(float_to_f16(0x1p-25f), 0);  // half the smallest: to the even zero
  EXPECT_EQ(float_to_f16(std::nextafter(0x1p-25f, 1.0f)), 1);
  EXPECT_EQ(float_to_f16(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(float_to_f16(-0.0f), 0x8000);
}
TEST(DType, Bf16Edges) {
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bf16_to_float(0x0001), 0x1p-133f);  // a denormal
  EXPECT_EQ(float_to_bf16(0x1p-133f), 0x0001);
  // A NaN whose payload is in the lower half must not become an infinity.
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}
TEST(DType, Float8) {
  EXPECT_EQ(one(DType::F8_E4M3, 0x7e), 448.0f);
  EXPECT_EQ(one(DType::F8_E4M3, 0x01), 0x1p-9f);
  EXPECT_EQ(one(DType::F8_E4M3, 0xb8), -1.0f);
  EXPECT_TRUE(std::isnan(one(DType::F8_E4M3, 0x7f)));
  EXPECT_TRUE(std::isnan(one(DType::F8_E4M3, 0xff)));
  EXPECT_EQ(one(DType::F8_E5M2, 0x7b), 57344.0f);
  EXPECT_EQ(one(DType::F8_E5M2, 0x01), 0x1p-16f);
  EXPECT_TRUE(std::isinf(one(DType::F8_E5M2, 0x7c)));
  EXPECT_TRUE(std::isnan(one(DType::F8_E5M2, 0x7d)));
}
TEST(DType, IntegersConvertByValue) {
  EXPECT_EQ(one(DType::I8, 0xff), -1.0f);
  EXPECT_EQ(one(DType::U8, 0xff), 255.0f);
  EXPECT_EQ(one(DType::I64, ~uint64_t{0}), -1.0f);
  EXPECT_EQ(one(DType::Bool, 1), 1.0f);
  const int64_t large = (int64_t{1} << 53) - 1;
  double value;
  to_double(DType::I64, reinterpret_cast<const std::byte*>(&large), 1, &value);
  EXPECT_EQ(value, 9007199254740991.0);
}
TEST(DType, FloatsAreStoredAsFloatsOnly) {
  const float values[] = {1.5f, -2.0f};
  for (const auto dtype : {DType::F64, DType::F32, DType::F16, DType::BF16}) {
    std::byte bytes[16];
    from_float(dtype, values, 2, bytes);
    float back[2];
    to_float(dtype, bytes, 2, back);
    EXPECT_EQ(back[0], 1.5f);
    EXPECT_EQ(back[1], -2.0f);
  }
  EXPECT_COMPLAINT(from_float(DType::I8, values, 1, nullptr), "not as I8");
}

}  // namespace
}  // namespace oscar
