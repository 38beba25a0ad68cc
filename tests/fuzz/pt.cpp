// Whole .pt files. Half of the mutations change a member and make a zip with the right CRC of it again.
#include "formats/zip.h"

#include <random>

#include "tests/formats/zip_draft.h"
#include "tests/fuzz/target.h"

using namespace oscar;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto& path = fuzz::input_file(data, size);
  fuzz::watch(size, [&] { fuzz::touch(read_pt(path)); });
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::mt19937_64 random(seed);
  if (random() % 2) return LLVMFuzzerMutate(data, size, max_size);
  test::Zip zip;
  zip.deflate = random() % 4 == 0;
  zip.zip64 = random() % 8 == 0;
  try {
    const auto file = MappedFile::open(fuzz::input_file(data, size));
    auto budget = Budget::of_file(size);
    const ZipReader reader(file, budget);
    for (const auto& member : reader.members()) {
      const auto content = reader.read(member, budget);
      zip.members.emplace_back(member.name, std::string(reinterpret_cast<const char*>(content.bytes.data()),
                                                        content.bytes.size()));
    }
  } catch (const std::runtime_error&) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  if (zip.members.empty()) return LLVMFuzzerMutate(data, size, max_size);
  auto* chosen = &zip.members[random() % zip.members.size()];
  for (auto& member : zip.members) {
    if (random() % 4 && member.first.ends_with("/data.pkl")) chosen = &member;
  }
  auto& content = chosen->second;
  const auto length = content.size();
  content.resize(length + 64);
  content.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(content.data()), length, content.size()));
  const auto bytes = zip.bytes();
  if (bytes.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(bytes.begin(), bytes.end(), data);
  return bytes.size();
}
