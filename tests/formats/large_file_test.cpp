// Files larger than memory: only what is asked for is touched.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/error.h"
#include "formats/safetensors.h"
#include "tests/support/support.h"

namespace oscar {
namespace {

constexpr uint64_t kLarge = (uint64_t{2} << 30) - (uint64_t{1} << 20),
                   kSmall = uint64_t{1} << 20;  // bytes of tensor data

// 2 GiB of zeros that take no disk, and one tensor of a MiB behind them.
void write_sparse(const test::fs::path& path) {
  std::string header = fmt::format(
      R"({{"large":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}},"small":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}}}})",
      kLarge, kLarge, kSmall / 4, kLarge, kLarge + kSmall);
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  test::write(path, std::string(reinterpret_cast<const char*>(&length), 8) + header);
  test::fs::resize_file(path, 8 + header.size() + kLarge + kSmall);
}

TEST(LargeFiles, ReadingOneTensorOfTwoGibibytesTouchesThatTensor) {
  test::TempDir folder;
  write_sparse(folder / "large.safetensors");
  ASSERT_GE(test::fs::file_size(folder / "large.safetensors"), uint64_t{2} << 30);
  const pid_t child = fork();
  if (child == 0) {
    const auto content = read_safetensors(folder / "large.safetensors");
    const auto values = content.tensors.at("small").floats();
    _exit(values.size() == kSmall / 4 && values.back() == 0 ? 0 : 1);
  }
  int status = 0;
  rusage usage{};
  ASSERT_EQ(wait4(child, &status, 0, &usage), child);
  EXPECT_EQ(status, 0);
  EXPECT_LT(usage.ru_maxrss, 200 * 1024) << "KiB";
}

}  // namespace
}  // namespace oscar
