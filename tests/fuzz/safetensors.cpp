#include "formats/safetensors.h"

#include "tests/fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace oscar;
  const auto& path = fuzz::input_file(data, size);
  fuzz::watch(size, [&] {
    for (const auto& [name, tensor] : read_safetensors(path).tensors) fuzz::touch(tensor);
  });
  return 0;
}
