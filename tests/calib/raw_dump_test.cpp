#include "libcalib/artifacts/raw_dump.h"

#include "formats/pt.h"
#include "tests/calib/sample.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

const LayerShape kShape = test::shape_of(0, 4, 2, 16, 12);

// Chunks 1..n of rows; a warm-up chunk 0 that would spoil every sum.
test::Rows write_dump(const fs::path& dir, int layer, DType dtype, const std::vector<int64_t>& chunks) {
  RawDumpWriter writer(dir, dtype);
  const std::vector<float> huge(6 * 64, 1e6f);
  writer.chunk(layer, 0, kShape, huge.data(), huge.data(), huge.data(), 6);
  int64_t tokens = 0;
  for (const int64_t n : chunks) tokens += n;
  const auto r = test::rows_of(kShape, tokens, static_cast<uint64_t>(layer));
  int64_t first = 0, number = 0;
  for (const int64_t n : chunks) {
    writer.chunk(layer, ++number, kShape, r.q.data() + first * 64, r.k.data() + first * 32,
                 r.v.data() + first * 24, n);
    writer.lengths(number, {static_cast<int32_t>(n)});
    first += n;
  }
  return r;
}
LayerSums expected(const test::Rows& r, DType dtype) {
  const auto rounded = [&](std::vector<float> x) {
    std::vector<std::byte> bytes(x.size() * info(dtype).size());
    from_float(dtype, x.data(), x.size(), bytes.data());
    to_float(dtype, bytes.data(), x.size(), x.data());
    return x;
  };
  const auto q = rounded(r.q), k = rounded(r.k), v = rounded(r.v);
  LayerSums sums(kShape);
  sums.add_rows(q.data(), k.data(), v.data(), nullptr, r.tokens);
  std::vector<Matrix> sigma;
  for (int h = 0; h < 2; ++h) sigma.push_back(sums.matrix(Sum::qq, h) / static_cast<double>(2 * r.tokens));
  sums.add_proxy(sigma, k.data(), v.data(), r.tokens);
  return sums;
}
void expect_close(const LayerSums& a, const LayerSums& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  for (const auto& sum : sum_table()) {
    double norm = 0, difference = 0;
    for (size_t i = 0; i < a.values(sum.sum).size(); ++i) {
      norm += std::pow(b.values(sum.sum)[i], 2);
      difference += std::pow(a.values(sum.sum)[i] - b.values(sum.sum)[i], 2);
    }
    EXPECT_LE(std::sqrt(difference), 1e-6 * std::sqrt(norm)) << sum.name;
  }
}

TEST(RawDump, EveryDtypeWithoutTheWarmUp) {
  for (const DType dtype : {DType::BF16, DType::F16, DType::F32}) {
    const test::TempDir dir;
    const auto r = write_dump(dir.path(), 4, dtype, {300, 41});
    const auto dump = open_raw_dump(dir.path());
    EXPECT_EQ(dump.layers, std::vector<int>{4});
    EXPECT_EQ(dump.chunks, (std::vector<int64_t>{1, 2}));
    EXPECT_EQ(dump.sequence_lengths, (std::vector<int64_t>{300, 41}));
    const auto layer = read_raw_layer(dump, 4);
    EXPECT_EQ(layer.sums.shape().layer, 4);
    EXPECT_EQ(layer.sums.shape().q_heads, 4);
    EXPECT_EQ(layer.sums.shape().dim_v, 12);
    expect_close(layer.sums, expected(r, dtype));
  }
}

TEST(RawDump, NumericOrderAndThreads) {
  const test::TempDir dir;
  for (const int layer : {2, 10, 9}) write_dump(dir.path(), layer, DType::BF16, std::vector<int64_t>(11, 20));
  const auto dump = open_raw_dump(dir.path());
  EXPECT_EQ(dump.layers, (std::vector<int>{2, 9, 10}));
  EXPECT_EQ(dump.chunks.back(), 11);
  int64_t last = 0;
  const auto one = read_raw_layers(dump, 1),
             four = read_raw_layers(dump, 4, [&](int64_t done, int64_t) { last = done; });
  EXPECT_EQ(last, 3);
  for (const int id : {2, 9, 10}) {
    for (const auto& sum : sum_table()) {
      EXPECT_TRUE(std::ranges::equal(one.at(id).sums.values(sum.sum), four.at(id).sums.values(sum.sum)));
    }
  }
}

TEST(RawDump, LocalLayerNumbersAreMapped) {
  const test::TempDir dir;
  for (const int layer : {0, 1}) write_dump(dir.path(), layer, DType::F16, {20});
  test::write(dir / "layer_map.json", R"({"local_to_global": [3, 7], "model": "x"})");
  const auto dump = open_raw_dump(dir.path());
  EXPECT_EQ(dump.layers, (std::vector<int>{3, 7}));
  EXPECT_EQ(read_raw_layer(dump, 7).sums.shape().layer, 7);
  EXPECT_THROW(read_raw_layer(dump, 1), std::invalid_argument);
  test::write(dir / "layer_map.json", R"({"local_to_global": [3]})");
  EXPECT_THROW(open_raw_dump(dir.path()), std::runtime_error);
}

TEST(RawDump, RefusesWhatIsNotWhole) {
  const test::TempDir dir;
  EXPECT_THROW(open_raw_dump(dir.path()), std::invalid_argument);
  EXPECT_THROW(open_raw_dump(dir / "nothing"), std::invalid_argument);
  write_dump(dir.path(), 0, DType::BF16, {20, 20});
  write_dump(dir.path(), 1, DType::BF16, {20, 20});
  fs::remove(dir / "layer_1" / "v" / "2.pt");
  EXPECT_THROW(open_raw_dump(dir.path()), std::runtime_error);
  write_dump(dir.path(), 1, DType::BF16, {20, 20});
  fs::copy_file(dir / "layer_1" / "v" / "2.pt", dir / "layer_1" / "k" / "2.pt",
                fs::copy_options::overwrite_existing);
  EXPECT_THROW(read_raw_layer(open_raw_dump(dir.path()), 1), std::runtime_error);
  EXPECT_THROW(RawDumpWriter(dir.path(), DType::I8), std::invalid_argument);
}

}  // namespace
}  // namespace oscar
