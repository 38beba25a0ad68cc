// The index of a directory with two shards, a.safetensors (x, y) and b.safetensors (z).
#include "formats/safetensors_index.h"

#include "tests/fuzz/target.h"

namespace {

using namespace oscar;

struct Directory : fuzz::Folder {
  Directory() {
    SafeTensors a, b;
    a.tensors["x"] = a.tensors["y"] = b.tensors["z"] = make_tensor<float>({2}, {1, 2});
    write_safetensors(path / "a.safetensors", a);
    write_safetensors(path / "b.safetensors", b);
  }
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Directory directory;
  fuzz::write_input(directory.path / kSafeTensorsIndex, data, size);
  fuzz::watch(size, [&] {
    const auto all = read_sharded_safetensors(directory.path);
    for (const auto& shard : all.shards) {
      for (const auto& [name, tensor] : shard.content.tensors) fuzz::touch(tensor);
    }
  });
  return 0;
}
