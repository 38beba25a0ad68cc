// What loading costs: a rotation file, the metadata of a GGUF model, one tensor of a large checkpoint.
// Medians of 21 runs from the page cache. bench_formats [FILE.gguf]
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "formats/gguf_writer.h"
#include "formats/safetensors.h"
#include "libcalib/artifacts/rotation_file.h"
#include "libcalib/hadamard.h"
#include "tests/support/support.h"
#include "tests/support/toy_model.h"

using namespace oscar;

namespace {

double median_ms(const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < 21; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::ranges::nth_element(times, times.begin() + 10);
  return times[10];
}

void rotations(const test::fs::path& folder) {
  RotationSet set;
  set.objective = "qqt_r_h_pbr";
  for (int id = 0; id < 36; ++id) {
    set.layers[id].rotation = {hadamard(128)};
    set.layers[id].eigenvalues = {Vector::LinSpaced(128, 0, 1)};
  }
  write_rotations_pt(folder / "k.pt", set);
  write_rotations_safetensors(folder / "k.safetensors", set, {});
  for (const char* name : {"k.pt", "k.safetensors"}) {
    const double ms = median_ms([&] { read_rotations(folder / name); });
    fmt::print("{:<44} {:8.2f} ms   read and checked for orthogonality\n",
               fmt::format("{}, 36 layers of 128 x 128", name), ms);
  }
}

// The vocabulary and merges of a large model over weights that are a hole in the file.
test::fs::path synthetic_gguf(const test::fs::path& folder) {
  test::write_gguf(folder / "toy.gguf", test::toy_model());
  GgufAddition added;
  std::vector<std::string> tokens, merges;
  for (int i = 0; i < 151936; ++i) tokens.push_back(fmt::format("token{}", i * 7919 % 1000003));
  for (int i = 0; i < 151387; ++i) merges.push_back(fmt::format("a{} b{}", i, i));
  added.metadata = {{"bench.tokens", {std::move(tokens)}},
                    {"bench.merges", {std::move(merges)}},
                    {"bench.types", {std::vector<int64_t>(151936, 1)}}};
  const std::vector<std::byte> block(size_t{1} << 20);
  for (int i = 0; i < 400; ++i) {
    added.tensors.emplace_back(fmt::format("bench.{}.weight", i),
                               Tensor{DType::F16, {1024, 512}, std::span(block), nullptr});
  }
  write_gguf(
      folder / "large.gguf", GgufFile::open(folder / "toy.gguf"), [](std::string_view) { return false; },
      added);
  return folder / "large.gguf";
}
void gguf(const test::fs::path& path) {
  const double ms = median_ms([&] { GgufFile::open(path); });
  fmt::print("{:<44} {:8.2f} ms   metadata and tensor table\n",
             fmt::format("{}, {} MB", path.filename().string(), test::fs::file_size(path) / 1000000), ms);
}

}  // namespace

int main(int argc, char** argv) {
  const test::TempDir folder;
  rotations(folder.path());
  gguf(argc > 1 ? test::fs::path(argv[1]) : synthetic_gguf(folder.path()));
}
