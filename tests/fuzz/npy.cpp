#include "formats/npy.h"

#include "tests/fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace oscar;
  const auto& path = fuzz::input_file(data, size);
  fuzz::watch(size, [&] { fuzz::touch(read_npy(path)); });
  return 0;
}
