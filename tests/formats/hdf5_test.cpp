#include "formats/hdf5.h"

#include <chrono>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>

#include "formats/atomic_write.h"
#include "tests/formats/malformed.h"

namespace oscar {
namespace {

using test::TempDir;

void write_sample(const test::fs::path& path) {
  Hdf5Writer writer(path);
  writer.attribute("/", "model", "späß");
  writer.attribute("/", "tokens", int64_t{-5});
  writer.attribute("/layers/3", "pi", 3.25);
  writer.dataset("/layers/3/q", make_tensor<double>({40, 30}, std::vector<double>(1200, 0.5)));
  writer.dataset("/layers/3/small", make_tensor<float>({2, 2}, {1, 2, 3, 4}));
  writer.close();
}
std::string sample() {
  TempDir folder;
  write_sample(folder / "a.h5");
  return test::read(folder / "a.h5");
}
// Everything a file holds, as the tools read it.
void touch(const test::fs::path& path) {
  const Hdf5Reader reader(path);
  for (const auto& group : reader.children("/")) reader.children(group);
  reader.text("/", "model");
  reader.integer("/", "tokens");
  reader.number("/layers/3", "pi");
  reader.dataset("/layers/3/q").floats();
  reader.dataset("/layers/3/small").floats();
}

TEST(Hdf5, RoundTripOfEveryDtype) {
  TempDir folder;
  Hdf5Writer writer(folder / "a.h5");
  const std::vector<Shape> shapes{{}, {0, 3}, {7}, {3, 2000}, {2, 5, 700, 3}};
  const auto pattern = [](const DTypeInfo& row, const Shape& shape) {
    std::vector<std::byte> bytes(static_cast<size_t>(element_count(shape)) * row.size());
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(row.dtype == DType::Bool ? i % 2 : i * 37 % 251);
    return make_tensor(row.dtype, shape, bytes);
  };
  const auto name = [](const DTypeInfo& row, const Shape& shape) {
    return fmt::format("/{}/{}", row.name, fmt::join(shape, "x"));
  };
  for (const auto& row : dtype_table()) {
    if (row.dtype > DType::Bool) {
      EXPECT_COMPLAINT(
          writer.dataset("/no", make_tensor(row.dtype, {4}, std::vector<std::byte>(row.bits / 2))),
          "HDF5 has no type");
      continue;
    }
    for (size_t i = 0; i < shapes.size(); ++i)
      writer.dataset(name(row, shapes[i]) + "_", pattern(row, shapes[i]));
  }
  writer.close();
  const Hdf5Reader reader(folder / "a.h5");
  for (const auto& row : dtype_table()) {
    if (row.dtype > DType::Bool) break;
    for (const auto& shape : shapes) {
      const auto path = name(row, shape) + "_";
      const auto tensor = reader.dataset(path);
      expect(tensor, row.dtype, shape, path);
      EXPECT_TRUE(std::ranges::equal(tensor.bytes, pattern(row, shape).bytes)) << path;
      EXPECT_EQ(reader.shape(path), shape);
    }
  }
}
TEST(Hdf5, AttributesGroupsAndAbsence) {
  TempDir folder;
  write_sample(folder / "a.h5");
  const Hdf5Reader reader(folder / "a.h5");
  EXPECT_EQ(reader.text("/", "model"), "späß");
  EXPECT_EQ(reader.integer("/", "tokens"), -5);
  EXPECT_EQ(reader.number("/", "tokens"), -5);
  EXPECT_EQ(reader.number("/layers/3", "pi"), 3.25);
  EXPECT_EQ(reader.text("/", "absent"), std::nullopt);
  EXPECT_EQ(reader.text("/absent/too", "absent"), std::nullopt);
  EXPECT_EQ(reader.children("/layers/3"), (std::vector<std::string>{"q", "small"}));
  EXPECT_TRUE(reader.exists("/layers/3/q"));
  EXPECT_TRUE(reader.exists("/"));
  EXPECT_FALSE(reader.exists("/layers/4/q"));
  EXPECT_FALSE(reader.exists("/layers/3/q/r"));
  EXPECT_REFUSED(reader.integer("/", "model"), "attribute 'model' is not an integer");
  EXPECT_REFUSED(reader.text("/", "tokens"), "is not a string");
  EXPECT_REFUSED(reader.dataset("/layers/9"), "a.h5: /layers/9: cannot open the dataset");
  EXPECT_REFUSED(reader.children("/layers/9"), "cannot open the group");
}
TEST(Hdf5, RowsOfTheLeadingDimension) {
  TempDir folder;
  std::vector<float> values(300 * 1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  {
    Hdf5Writer writer(folder / "a.h5");
    writer.dataset("/x", make_tensor<float>({300, 1000}, values));
    writer.close();
  }
  const Hdf5Reader reader(folder / "a.h5");
  const auto rows = reader.rows("/x", 130, 2);
  EXPECT_EQ(rows.shape, (Shape{2, 1000}));
  EXPECT_EQ(rows.floats()[0], 130000);
  EXPECT_EQ(rows.floats()[1999], 131999);
  EXPECT_EQ(reader.rows("/x", 300, 0).shape, (Shape{0, 1000}));
  EXPECT_COMPLAINT(reader.rows("/x", 299, 2), "rows 299 to 301 of [300, 1000]");
  EXPECT_COMPLAINT(reader.rows("/x", -1, 1), "rows -1");
}
TEST(Hdf5, SameCallsSameBytes) {
  const auto first = sample();
  // A second later: a time that HDF5 stores would show.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_TRUE(first == sample());
}
TEST(Hdf5, WritersMistakes) {
  TempDir folder;
  Hdf5Writer writer(folder / "a.h5");
  writer.dataset("/x", make_tensor<float>({1}, {1}));
  EXPECT_REFUSED(writer.dataset("/x", make_tensor<float>({1}, {1})), "cannot create the dataset");
  EXPECT_COMPLAINT(writer.attribute("/", "a", std::string("a\0b", 3)), "zero byte");
  EXPECT_REFUSED(Hdf5Writer(folder / "no/such/a.h5"), "cannot create");
}
TEST(Hdf5, AFlippedBitFailsItsChecksum) {
  auto bytes = sample();
  const auto at = bytes.find(test::packed(0.5, 0.5, 0.5));
  ASSERT_NE(at, bytes.npos);
  bytes[at + 80] ^= 1;
  TempDir folder;
  test::write(folder / "a.h5", bytes);
  const Hdf5Reader reader(folder / "a.h5");
  EXPECT_REFUSED(reader.dataset("/layers/3/q"), "/layers/3/q: cannot read the dataset");
  EXPECT_EQ(reader.dataset("/layers/3/small").floats()[3], 4);
}
TEST(Hdf5, NotHdf5) {
  TempDir folder;
  test::write(folder / "a.h5", "hello");
  EXPECT_REFUSED(Hdf5Reader(folder / "a.h5"), "is not a whole HDF5 file");
  EXPECT_COMPLAINT(Hdf5Reader(folder / "missing.h5"), "No such file");
  EXPECT_COMPLAINT(Hdf5Reader(folder.path()), "directory");
}
TEST(Hdf5, ALockedFileIsExplained) {
  TempDir folder;
  write_sample(folder / "a.h5");
  const int file = open((folder / "a.h5").c_str(), O_RDONLY);
  ASSERT_EQ(flock(file, LOCK_EX | LOCK_NB), 0);
  EXPECT_REFUSED(Hdf5Reader(folder / "a.h5"), "another process is writing");
  EXPECT_REFUSED(Hdf5Reader(folder / "a.h5"), "HDF5_USE_FILE_LOCKING=FALSE");
  close(file);
  touch(folder / "a.h5");
}
TEST(Hdf5, Prefixes) {
  const auto good = sample();
  TempDir folder;
  for (size_t n = 0; n < good.size(); n += 1 + n / 50) {
    test::fs::remove(folder / "a.h5");
    test::write(folder / "a.h5", std::string_view(good).substr(0, n));
    EXPECT_FALSE(test::refusal([&] { touch(folder / "a.h5"); }).empty()) << n;
  }
}
// The data and the headers are covered by checksums; what they do not cover is HDF5's own to check.
TEST(Hdf5, Mutants) {
  test::survive_mutants(sample(), touch, 500);
}
TEST(Hdf5, AFullDiskIsReportedAndNotFatal) {
  TempDir folder;
  const auto run = [&](bool close) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{65536, 65536};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto message = test::refusal([&] {
      Hdf5Writer writer(folder / "a.h5");
      writer.attribute("/", "model", "x");
      for (int i = 0; i < 20; ++i)
        writer.dataset(fmt::format("/x{}", i), make_tensor<float>({1000}, std::vector<float>(1000, 1)));
      if (close) writer.close();
      throw std::runtime_error("was written: File too large");
    });
    if (!test::contains(message, "File too large")) std::fprintf(stderr, "%s\n", message.c_str());
    std::exit(test::contains(message, "File too large")
                  ? 0
                  : 1);  // exit handlers run: HDF5 must not stumble in them
  };
  EXPECT_EXIT(run(true), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(run(false), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace oscar
