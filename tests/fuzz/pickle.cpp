// The pickle of a .pt file alone, which the CRC of its zip hides from mutations. Any storage of at most 4 KiB
// is there.
#include "formats/pickle.h"

#include "tests/fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace oscar;
  const LoadStorage load = [](const std::string&, uint64_t bytes, const std::string& where) {
    if (bytes > 4096) throw failure("{}: a storage of {} bytes is not there", where, bytes);
    auto storage = std::make_shared<const std::vector<std::byte>>(bytes, std::byte{1});
    return ZipContent{*storage, storage};
  };
  fuzz::watch(size, [&] {
    auto budget = Budget::of_file(size);
    fuzz::touch(read_pickle(ByteReader(std::as_bytes(std::span(data, size)), "input"), load, budget));
  });
  return 0;
}
