#include "formats/tensor.h"

#include "tests/formats/malformed.h"

namespace oscar {
namespace {

TEST(Tensor, CountsAndOverflows) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({2, 3}), 6);
  EXPECT_EQ(element_count({int64_t{1} << 40, int64_t{1} << 40, 0}), 0);
  EXPECT_EQ(byte_count({int64_t{1} << 61}, 4), std::nullopt);
  EXPECT_EQ(byte_count({-1}, 4), std::nullopt);
  EXPECT_EQ(byte_count({-1, 0}, 4), std::nullopt);
  EXPECT_COMPLAINT(element_count({-1}), "[-1]");
  EXPECT_EQ(to_string(Shape{30, 3, 64}), "[30, 3, 64]");
}
TEST(Tensor, TakesValuesOfItsSize) {
  const auto tensor = make_tensor<float>({2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(tensor.floats(), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(tensor.doubles(), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_COMPLAINT(make_tensor<float>({2, 2}, {1, 2, 3}), "F32 [2, 2]");
  EXPECT_COMPLAINT(make_tensor(DType::BF16, {3}, std::vector<std::byte>(4)), "4 bytes");
  EXPECT_COMPLAINT(tensor.integers(), "integer dtype");
}
TEST(Tensor, OutlivesWhereItCameFrom) {
  Tensor copy;
  { copy = make_tensor<float>({1}, {7}); }
  EXPECT_EQ(copy.floats()[0], 7);
}
TEST(Tensor, IntegersOfEveryWidth) {
  for (const auto dtype : {DType::I8, DType::U8}) {
    std::vector<std::byte> bytes{std::byte{0xfe}};
    EXPECT_EQ(make_tensor(dtype, {}, bytes).integers()[0], dtype == DType::I8 ? -2 : 254);
  }
  EXPECT_REFUSED(make_tensor(DType::U64, {}, std::vector<std::byte>(8, std::byte{0xff})).integers(),
                 "18446744073709551615");
}
TEST(Tensor, ExpectationNamesBothSides) {
  const auto tensor = make_tensor<float>({2, 2}, {1, 2, 3, 4});
  expect(tensor, DType::F32, {2, 2}, "here");
  EXPECT_REFUSED(expect(tensor, DType::F32, {2}, "layer 3"), "layer 3: expected F32 [2], found F32 [2, 2]");
  EXPECT_REFUSED(expect(tensor, DType::F64, {2, 2}, "layer 3"), "expected F64 [2, 2], found F32 [2, 2]");
}

}  // namespace
}  // namespace oscar
