// A random llama model of a few hundred kilobytes, so that the command-line tests need no download and take milliseconds.
//
// toy_model() gives the file as a draft that a test may spoil (drop a tensor, change a type) before write_gguf() writes it
// as it stands: nothing is checked on the way out. The same options give the same bytes everywhere.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace oscar::test {

using GgufDraftValue =
    std::variant<uint32_t, float, bool, std::string, std::vector<std::string>, std::vector<int32_t>, std::vector<float>>;

struct GgufDraftTensor {
  std::string name;
  uint32_t type;             // ggml id: 0 F32, 1 F16, 3 Q4_1, 8 Q8_0
  std::vector<int64_t> ne;   // as in the file, fastest first: a weight is {in, out}
  std::string bytes;
};

struct GgufDraft {
  std::vector<std::pair<std::string, GgufDraftValue>> metadata;
  std::vector<GgufDraftTensor> tensors;

  // Replaces the value of a key or adds it.
  void set(const std::string& key, GgufDraftValue value);
  void erase(const std::string& key);
  GgufDraftTensor& tensor(const std::string& name);  // throws std::out_of_range
};

struct ToyOptions {
  uint64_t seed = 1;
  int layers = 3, hidden = 64, intermediate = 64;
  int q_heads = 4, kv_heads = 2, head_dim = 32;  // head_dim * q_heads != hidden: key_length says so in the file
  uint32_t weights = 0;                          // ggml type of the matrices; norms stay F32
  bool tied = true;                              // false: its own output.weight
  bool add_bos = false;
};

GgufDraft toy_model(const ToyOptions& options = {});
void write_gguf(const std::filesystem::path& path, const GgufDraft& draft);

// `count` float32 values, a multiple of the block, as the bytes of a ggml type above.
std::string ggml_bytes(uint32_t type, const std::vector<float>& values);

// English-looking words with digits and punctuation, at least `bytes` long, in paragraphs. About 2.2 bytes a toy token.
std::string toy_text(size_t bytes, uint64_t seed = 1);

}  // namespace oscar::test
