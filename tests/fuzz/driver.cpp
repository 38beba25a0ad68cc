// Runs a target where the compiler has no libFuzzer, with its options: [-runs=N] [-seed=S] PATH…
// Every file of the paths is an input; N mutants of them follow (10,000). The input that ends the process is
// written to crash-SEED-NUMBER in the working directory.
#include <sanitizer/common_interface_defs.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/formats/mutant.h"
#include "tests/fuzz/target.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed)
    __attribute__((weak));

namespace {

namespace fs = std::filesystem;
constexpr size_t kMaxSize = 8192;

std::mt19937_64 source;
uint64_t seed = 1, number = 0;
std::string input;

void keep_input() {
  std::ofstream("crash-" + std::to_string(seed) + "-" + std::to_string(number), std::ios::binary) << input;
}
void run() {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  ++number;
}

}  // namespace

size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size) {
  const auto bad = oscar::test::mutant({reinterpret_cast<const char*>(data), size}, source);
  const auto length = std::min(bad.size(), max_size);
  std::copy_n(bad.begin(), length, data);
  return length;
}

int main(int count, char** arguments) {
  uint64_t runs = 10000;
  std::vector<std::string> corpus;
  const auto add = [&](const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  };
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    if (argument.starts_with("-runs=")) {
      runs = std::stoull(argument.substr(6));
    } else if (argument.starts_with("-seed=")) {
      seed = std::stoull(argument.substr(6));
    } else if (argument.starts_with("-")) {
      continue;  // of libFuzzer alone
    } else if (fs::is_directory(argument)) {
      std::vector<fs::path> files(fs::directory_iterator(argument), {});
      std::sort(files.begin(), files.end());
      for (const auto& file : files) add(file);
    } else {
      add(argument);
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: no input is named\n", arguments[0]);
    return 2;
  }
  source.seed(seed);
  __sanitizer_set_death_callback(keep_input);
  const auto start = std::chrono::steady_clock::now();
  for (const auto& entry : corpus) {
    input = entry;
    run();
  }
  for (uint64_t i = 0; i < runs; ++i) {
    const auto any = [&]() -> const std::string& { return corpus[source() % corpus.size()]; };
    input = source() % 8 ? any() : oscar::test::spliced(any(), any(), source);
    size_t size = input.size();
    input.resize(std::max(kMaxSize, size));
    auto* data = reinterpret_cast<uint8_t*>(input.data());
    size = LLVMFuzzerCustomMutator
               ? LLVMFuzzerCustomMutator(data, size, input.size(), static_cast<unsigned>(source()))
               : LLVMFuzzerMutate(data, size, input.size());
    input.resize(size);
    input.shrink_to_fit();
    run();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("Done %llu runs in %.0f second(s), seed %llu\n", static_cast<unsigned long long>(number),
              took.count(), static_cast<unsigned long long>(seed));
  return 0;
}
