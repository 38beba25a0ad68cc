#include "formats/npy.h"

#include "tests/formats/malformed.h"

namespace oscar {
namespace {

std::string npy(const std::string& header, const std::string& data, char major = 1) {
  std::string out = test::packed(std::string_view("\x93NUMPY"), major, char{0});
  if (major == 1) {
    test::put(out, static_cast<uint16_t>(header.size()));
  } else {
    test::put(out, static_cast<uint32_t>(header.size()));
  }
  return out + header + data;
}
Tensor load(const std::string& content) {
  test::TempDir folder;
  test::write(folder / "a.npy", content);
  return read_npy(folder / "a.npy");
}
const std::string kData = test::packed(1.0f, 2.0f);
const std::string kHeader = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }          \n";

TEST(Npy, RoundTripOfEveryDtype) {
  test::TempDir folder;
  for (const auto& row : dtype_table()) {
    for (const Shape& shape : {Shape{}, Shape{4}, Shape{2, 3}, Shape{0, 5}}) {
      std::vector<std::byte> bytes(static_cast<size_t>(element_count(shape)) * row.size(), std::byte{1});
      if (!row.size()) continue;
      const auto tensor = make_tensor(row.dtype, shape, bytes);
      if (row.dtype == DType::BF16 || row.dtype > DType::Bool || row.name.starts_with("F8")) {
        EXPECT_COMPLAINT(write_npy(folder / "a.npy", tensor), std::string(row.name));
        continue;
      }
      write_npy(folder / "a.npy", tensor);
      const auto back = read_npy(folder / "a.npy");
      expect(back, row.dtype, shape, "round trip");
      EXPECT_TRUE(std::ranges::equal(back.bytes, bytes));
      EXPECT_EQ((test::read(folder / "a.npy").size() - bytes.size()) % 64, 0u);
    }
  }
}
TEST(Npy, EveryVersionAndSpelling) {
  EXPECT_EQ(load(npy(kHeader, kData)).floats(), (std::vector<float>{1, 2}));
  EXPECT_EQ(load(npy(kHeader, kData, 2)).floats()[1], 2);
  EXPECT_EQ(load(npy(kHeader, kData, 3)).floats()[1], 2);
  EXPECT_EQ(load(npy("{\"shape\":(2,),\"descr\":\"<f4\",\"fortran_order\":True}", kData)).floats()[1], 2);
  EXPECT_EQ(load(npy("{'descr': '<i1', 'fortran_order': False, 'shape': ()}", "\5")).integers()[0], 5);
}
TEST(Npy, OneLieEach) {
  const auto header = [](const std::string& descr, const std::string& order, const std::string& shape) {
    return npy("{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }", kData);
  };
  EXPECT_REFUSED(load("not numpy at all"), "is not an .npy file");
  EXPECT_REFUSED(load(npy(kHeader, kData, 4)), "version 4");
  EXPECT_REFUSED(load(header("'>f4'", "False", "(2,)")), "big-endian");
  EXPECT_REFUSED(load(header("'|O'", "False", "(2,)")), "object");
  EXPECT_REFUSED(load(header("[('a', '<f4')]", "False", "(2,)")), "structured");
  EXPECT_REFUSED(load(header("'<c8'", "False", "(1,)")), "'<c8' is not supported");
  EXPECT_REFUSED(load(header("''", "False", "(1,)")), "is not supported");
  EXPECT_REFUSED(load(header("'<f4'", "True", "(2, 1)")), "Fortran");
  EXPECT_REFUSED(load(header("'<f4'", "0", "(2,)")), "neither True nor False");
  EXPECT_REFUSED(load(header("'<f4'", "False", "(3,)")), "needs 12 bytes, 8 follow");
  EXPECT_REFUSED(load(header("'<f4'", "False", "(1,)")), "needs 4 bytes, 8 follow");
  EXPECT_REFUSED(load(header("'<f4'", "False", "(-2,)")), "not a number");
  EXPECT_REFUSED(load(header("'<f4'", "False", "(99999999999999999999,)")), "2^63");
  EXPECT_REFUSED(load(header("'<f4'", "False", "(4294967296, 4294967296)")), "too many");
  EXPECT_REFUSED(load(npy("{'descr': '<f4', 'descr': '<f4'}", kData)), "repeated key");
  EXPECT_REFUSED(load(npy("{'descr': '<f4'}", kData)), "missing");
  EXPECT_REFUSED(load(npy(kHeader + "x", kData)), "text follows");
  EXPECT_COMPLAINT(read_npy("/no/such.npy"), "No such file");
}
TEST(Npy, Prefixes) {
  test::refuse_prefixes(npy(kHeader, kData), read_npy);
}
TEST(Npy, Mutants) {
  test::survive_mutants(npy(kHeader, kData), [](const auto& path) { read_npy(path).floats(); });
}
TEST(Npy, FilesOfNumpy) {
  OSCAR_NEED_DATA(path, "smollm2/calib_ids.npy");
  const auto ids = read_npy(path).integers();
  EXPECT_GT(ids.size(), 1000u);
  for (const auto id : ids) EXPECT_TRUE(id >= 0 && id < 49152);
}

}  // namespace
}  // namespace oscar
