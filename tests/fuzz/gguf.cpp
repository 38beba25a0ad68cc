#include "formats/gguf.h"

#include "tests/fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace oscar;
  const auto& path = fuzz::input_file(data, size);
  fuzz::watch(size, [&] {
    const auto file = GgufFile::open(path);
    for (const auto& tensor : file.tensors()) fuzz::touch(tensor.bytes);
    for (const auto& entry : file.entries()) fuzz::touch(entry.bytes);
    file.find("w");
    // A key of another type is a rejection too.
    file.integer("general.alignment");
    file.number("f32");
    file.boolean("bool");
    file.text("general.architecture");
    file.texts("texts");
    file.integers("ints");
    file.numbers("floats");
  });
  return 0;
}
