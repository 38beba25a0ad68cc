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
bool has_note(const RawDump& dump, std::string_view part) {
  return std::ranges::any_of(dump.notes,
                             [&](const auto& note) { return note.find(part) != std::string::npos; });
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

TEST(RawDump, LengthsGoWithTheirChunkInNumericOrder) {
  const test::TempDir dir;
  write_dump(dir.path(), 4, DType::BF16, std::vector<int64_t>(11, 20));
  RawDumpWriter writer(dir.path(), DType::BF16);
  writer.lengths(2, {5, 15});
  writer.lengths(10, {1, 2, 17});
  const auto dump = open_raw_dump(dir.path());
  std::vector<std::vector<int64_t>> expected(11, {20});
  expected[1] = {5, 15};
  expected[9] = {1, 2, 17};
  EXPECT_EQ(dump.chunk_lengths, expected);
  EXPECT_EQ(dump.sequence_lengths.size(), 14u);
  EXPECT_EQ(dump.sequence_lengths[2], 15);
}

// The first chunk's length may not, the last one's may exceed the rows: there a token budget ended.
TEST(RawDump, LengthsSumToTheTokens) {
  const test::TempDir dir;
  write_dump(dir.path(), 4, DType::BF16, {20, 20});
  RawDumpWriter writer(dir.path(), DType::BF16);
  for (const auto& [chunk, lengths] : {std::pair{1, std::vector<int32_t>{10, 9}},
                                       {1, {10, 11}},
                                       {2, {10, 9}},
                                       {2, {}},
                                       {2, {20, 0}},
                                       {2, {21, -1}}}) {
    writer.lengths(chunk, lengths);
    EXPECT_THROW(open_raw_dump(dir.path()), std::runtime_error) << "chunk " << chunk;
    writer.lengths(chunk, {20});
  }
  writer.lengths(2, {15, 3, 9, 30});
  const auto dump = open_raw_dump(dir.path());
  EXPECT_EQ(dump.chunk_lengths, (std::vector<std::vector<int64_t>>{{20}, {15, 3, 2}}));
  EXPECT_TRUE(has_note(dump, "chunk 2 lists 57 tokens and holds 20"));
  writer.lengths(2, {20, 9});
  EXPECT_EQ(open_raw_dump(dir.path()).chunk_lengths[1], (std::vector<int64_t>{20}));
  test::write(dir / "layer_map.json", R"({"local_to_global": [0, 1, 2, 3, 9]})");  // no budget cuts these
  EXPECT_THROW(open_raw_dump(dir.path(), IdSpace::Local), std::runtime_error);
  EXPECT_NO_THROW(open_raw_dump(dir.path(), IdSpace::Global));
}

TEST(RawDump, LengthsOfEveryLayerAndChunkAgree) {
  const test::TempDir dir;
  for (const int layer : {4, 5}) write_dump(dir.path(), layer, DType::BF16, {20, 20});
  const auto refused = [&](std::string_view part) {
    try {
      open_raw_dump(dir.path());
      ADD_FAILURE() << "opened, without a word of " << part;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  RawDumpWriter(dir / "layer_4", DType::BF16).lengths(1, {20});
  RawDumpWriter(dir / "layer_4", DType::BF16).lengths(2, {20});
  refused("some layers have seq_lens and some have not");
  RawDumpWriter(dir / "layer_5", DType::BF16).lengths(1, {20});
  refused("nothing for chunk 2");
  RawDumpWriter(dir / "layer_5", DType::BF16).lengths(2, {10, 10});
  refused("chunk 2 has other lengths");
  RawDumpWriter(dir / "layer_5", DType::BF16).lengths(2, {20});
  EXPECT_NO_THROW(open_raw_dump(dir.path()));
  write_pt(dir / "seq_lens" / "2.pt", PtValue{make_tensor({1, 1}, std::vector<int32_t>{20})}, "2");
  refused("expected I32 [sequences], found I32 [1, 1]");
  write_pt(dir / "seq_lens" / "2.pt", PtValue{make_tensor({1}, std::vector<float>{20})}, "2");
  refused("expected I32 [sequences], found F32 [1]");
}

TEST(RawDump, LayersMayDifferInHeadsButNotInTokensOrDtype) {
  const test::TempDir dir;
  write_dump(dir.path(), 0, DType::BF16, {20, 20});
  const LayerShape wide = test::shape_of(1, 8, 1, 32, 24);
  const auto r = test::rows_of(wide, 20, 5);
  RawDumpWriter writer(dir.path(), DType::BF16);
  for (const int chunk : {1, 2}) writer.chunk(1, chunk, wide, r.q.data(), r.k.data(), r.v.data(), 20);
  const auto dump = open_raw_dump(dir.path());
  EXPECT_EQ(read_raw_layer(dump, 0).sums.shape().dim_k, 16);
  EXPECT_EQ(read_raw_layer(dump, 1).sums.shape().dim_k, 32);
  EXPECT_EQ(read_raw_layer(dump, 1).sums.shape().q_heads, 8);
  const auto refused = [&](int layer, std::string_view part) {
    try {
      read_raw_layer(open_raw_dump(dir.path()), layer);
      ADD_FAILURE() << "read, without a word of " << part;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  writer.chunk(1, 2, wide, r.q.data(), r.k.data(), r.v.data(), 19);
  refused(1, "chunk 2 has 19 tokens, in layer_0 it has 20");
  RawDumpWriter(dir.path(), DType::F16).chunk(1, 2, wide, r.q.data(), r.k.data(), r.v.data(), 20);
  refused(1, "chunk 2: q is F16, the dump is BF16");
  RawDumpWriter(dir / "other", DType::F32).chunk(0, 2, kShape, r.q.data(), r.k.data(), r.v.data(), 20);
  fs::copy_file(dir / "other/layer_0/v/2.pt", dir / "layer_0/v/2.pt", fs::copy_options::overwrite_existing);
  refused(0, "chunk 2: v is F32, the dump is BF16");
}

TEST(RawDump, OtherNamesAreReported) {
  const test::TempDir dir;
  write_dump(dir.path(), 0, DType::BF16, {20});
  EXPECT_FALSE(has_note(open_raw_dump(dir.path()), "not read"));
  const std::vector<std::string> names{"note.txt", "layer_00/x", "layer_0/7.pt", "layer_0/q/1 (copy).pt",
                                       "seq_lens/01.pt"};
  for (const auto& name : names) {
    fs::create_directories((dir / name).parent_path());
    test::write(dir / name, "x");
  }
  const auto dump = open_raw_dump(dir.path());
  EXPECT_EQ(dump.chunks, std::vector<int64_t>{1});
  for (const char* name : {"note.txt", "/layer_00", "layer_0/7.pt", "q/1 (copy).pt", "seq_lens/01.pt"})
    EXPECT_TRUE(has_note(dump, name)) << name;
  EXPECT_FALSE(has_note(dump, " more"));
  test::write(dir / "another", "x");
  EXPECT_TRUE(has_note(open_raw_dump(dir.path()), "and 1 more"));
}

TEST(RawDump, RefusesWhatIsNotWhole) {
  const test::TempDir dir;
  write_dump(dir.path(), 0, DType::BF16, {});
  EXPECT_THROW(open_raw_dump(dir.path()), std::runtime_error) << "a warm-up alone";
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
