#include "tests/support/toy_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <stdexcept>

#include "formats/dtype.h"

namespace oscar::test {

namespace {

// Near-normal and, unlike std::normal_distribution, the same with every standard library: a sum of twelve uniforms.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  float normal(double sigma) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return static_cast<float>(sum * sigma);
  }
  size_t below(size_t n) { return static_cast<size_t>(uniform() * static_cast<double>(n)); }

 private:
  std::mt19937_64 engine_;
};

template <typename T>
void put(std::string& out, T value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  out.append(raw, sizeof(T));
}
void put_text(std::string& out, const std::string& text) {
  put(out, static_cast<uint64_t>(text.size()));
  out += text;
}

// Type ids of GGUF metadata.
enum : uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9 };

struct PutValue {
  std::string& out;
  void operator()(uint32_t v) const { put(out, uint32_t{kUint32}), put(out, v); }
  void operator()(float v) const { put(out, uint32_t{kFloat32}), put(out, v); }
  void operator()(bool v) const { put(out, uint32_t{kBool}), put(out, static_cast<uint8_t>(v)); }
  void operator()(const std::string& v) const { put(out, uint32_t{kString}), put_text(out, v); }
  void operator()(const std::vector<std::string>& v) const {
    array(kString, v.size());
    for (const auto& text : v) put_text(out, text);
  }
  void operator()(const std::vector<int32_t>& v) const {
    array(kInt32, v.size());
    for (const auto x : v) put(out, x);
  }
  void operator()(const std::vector<float>& v) const {
    array(kFloat32, v.size());
    for (const auto x : v) put(out, x);
  }
  void array(uint32_t of, size_t count) const { put(out, uint32_t{kArray}), put(out, of), put(out, static_cast<uint64_t>(count)); }
};

std::string utf8(uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))};
}

// The printable stand-in of each byte in a byte-level vocabulary, in the order such vocabularies list them: printable
// Latin-1 stands for itself, the rest for U+0100 and up.
std::vector<std::string> byte_tokens() {
  std::vector<std::string> printable, rest;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    if (itself) printable.push_back(utf8(b));
    else rest.push_back(utf8(static_cast<uint32_t>(0x100 + rest.size())));
  }
  printable.insert(printable.end(), rest.begin(), rest.end());
  return printable;
}

const std::vector<std::string>& merges() {
  static const std::vector<std::string> list{"Ġ t", "h e", "Ġ a", "i n", "r e", "o n", "Ġt he", "e r", "n d", "Ġ s",
                                             "Ġa nd", "in g", "o r", "Ġ o", "Ġo f", "e s", "a t", "Ġ w", "i s", "e n"};
  return list;
}

void add_vocabulary(GgufDraft& draft, bool add_bos) {
  std::vector<std::string> tokens{"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::vector<int32_t> types(3, 3);  // control
  for (auto& token : byte_tokens()) tokens.push_back(token);
  for (auto merge : merges()) {
    merge.erase(merge.find(' '), 1);
    tokens.push_back(merge);
  }
  types.resize(tokens.size(), 1);  // normal
  draft.set("llama.vocab_size", static_cast<uint32_t>(tokens.size()));
  draft.set("tokenizer.ggml.model", std::string("gpt2"));
  draft.set("tokenizer.ggml.pre", std::string("smollm"));
  draft.set("tokenizer.ggml.tokens", tokens);
  draft.set("tokenizer.ggml.token_type", types);
  draft.set("tokenizer.ggml.merges", merges());
  draft.set("tokenizer.ggml.bos_token_id", 1u);
  draft.set("tokenizer.ggml.eos_token_id", 2u);
  draft.set("tokenizer.ggml.unknown_token_id", 0u);
  draft.set("tokenizer.ggml.padding_token_id", 2u);
  draft.set("tokenizer.ggml.add_bos_token", add_bos);
  draft.set("tokenizer.ggml.add_space_prefix", false);
}

}  // namespace

void GgufDraft::set(const std::string& key, GgufDraftValue value) {
  for (auto& [name, old] : metadata) {
    if (name == key) return void(old = std::move(value));
  }
  metadata.emplace_back(key, std::move(value));
}
void GgufDraft::erase(const std::string& key) {
  std::erase_if(metadata, [&](const auto& entry) { return entry.first == key; });
}
GgufDraftTensor& GgufDraft::tensor(const std::string& name) {
  for (auto& t : tensors) {
    if (t.name == name) return t;
  }
  throw std::out_of_range("toy model has no tensor " + name);
}

std::string ggml_bytes(uint32_t type, const std::vector<float>& values) {
  constexpr size_t block = 32;
  std::string out;
  if (type == 0) {
    for (const float x : values) put(out, x);
  } else if (type == 1) {
    for (const float x : values) put(out, float_to_f16(x));
  } else if (type != 3 && type != 8) {
    throw std::invalid_argument("toy model: no such weight type " + std::to_string(type));
  } else if (values.size() % block != 0) {
    throw std::invalid_argument("toy model: " + std::to_string(values.size()) + " values, not a multiple of 32");
  } else {
    for (auto x = values.begin(); x != values.end(); x += block) {
      const auto [low, high] = std::minmax_element(x, x + block);
      if (type == 8) {  // Q8_0: fp16 scale, 32 int8
        const float scale = std::max(-*low, *high) / 127;
        put(out, float_to_f16(scale));
        for (size_t i = 0; i < block; ++i) put(out, static_cast<int8_t>(std::lround(scale > 0 ? x[i] / scale : 0)));
      } else {          // Q4_1: fp16 scale, fp16 minimum, 16 bytes of element i (low nibble) and i + 16 (high)
        const float scale = (*high - *low) / 15;
        const auto code = [&](size_t i) { return static_cast<uint8_t>(scale > 0 ? std::clamp<long>(std::lround((x[i] - *low) / scale), 0, 15) : 0); };
        put(out, float_to_f16(scale)), put(out, float_to_f16(*low));
        for (size_t i = 0; i < block / 2; ++i) put(out, static_cast<uint8_t>(code(i) | code(i + 16) << 4));
      }
    }
  }
  return out;
}

GgufDraft toy_model(const ToyOptions& o) {
  GgufDraft draft;
  draft.set("general.architecture", std::string("llama"));
  draft.set("general.type", std::string("model"));
  draft.set("general.name", std::string("Toy"));
  draft.set("llama.block_count", static_cast<uint32_t>(o.layers));
  draft.set("llama.context_length", 4096u);
  draft.set("llama.embedding_length", static_cast<uint32_t>(o.hidden));
  draft.set("llama.feed_forward_length", static_cast<uint32_t>(o.intermediate));
  draft.set("llama.attention.head_count", static_cast<uint32_t>(o.q_heads));
  draft.set("llama.attention.head_count_kv", static_cast<uint32_t>(o.kv_heads));
  if (o.q_heads * o.head_dim != o.hidden) {
    draft.set("llama.attention.key_length", static_cast<uint32_t>(o.head_dim));
    draft.set("llama.attention.value_length", static_cast<uint32_t>(o.head_dim));
  }
  draft.set("llama.rope.freq_base", 10000.0f);
  draft.set("llama.rope.dimension_count", static_cast<uint32_t>(o.head_dim));
  draft.set("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  draft.set("general.file_type", o.weights);
  draft.set("general.quantization_version", 2u);
  add_vocabulary(draft, o.add_bos);

  Random random(o.seed);
  // gain 1 keeps the variance of a unit input; queries and keys get more, so that attention is not uniform.
  const auto matrix = [&](const std::string& name, int in, int out, double gain) {
    std::vector<float> values(static_cast<size_t>(in) * static_cast<size_t>(out));
    for (auto& x : values) x = random.normal(gain / std::sqrt(in));
    draft.tensors.push_back({name, o.weights, {in, out}, ggml_bytes(o.weights, values)});
  };
  const auto norm = [&](const std::string& name) {
    std::vector<float> values(static_cast<size_t>(o.hidden));
    for (auto& x : values) x = 1 + random.normal(0.1);
    draft.tensors.push_back({name, 0, {o.hidden}, ggml_bytes(0, values)});
  };
  const int vocabulary = static_cast<int>(3 + 256 + merges().size());
  matrix("token_embd.weight", o.hidden, vocabulary, 1);
  for (int layer = 0; layer < o.layers; ++layer) {
    const auto name = [&](const char* part) { return "blk." + std::to_string(layer) + "." + part + ".weight"; };
    norm(name("attn_norm"));
    matrix(name("attn_q"), o.hidden, o.q_heads * o.head_dim, 1.6);
    matrix(name("attn_k"), o.hidden, o.kv_heads * o.head_dim, 1.6);
    matrix(name("attn_v"), o.hidden, o.kv_heads * o.head_dim, 1);
    matrix(name("attn_output"), o.q_heads * o.head_dim, o.hidden, 1);
    norm(name("ffn_norm"));
    matrix(name("ffn_gate"), o.hidden, o.intermediate, 1);
    matrix(name("ffn_up"), o.hidden, o.intermediate, 1);
    matrix(name("ffn_down"), o.intermediate, o.hidden, 1);
  }
  norm("output_norm.weight");
  if (!o.tied) matrix("output.weight", o.hidden, vocabulary, 1);
  return draft;
}

void write_gguf(const std::filesystem::path& path, const GgufDraft& draft) {
  constexpr size_t alignment = 32;
  const auto pad = [](std::string& out) { out.resize((out.size() + alignment - 1) / alignment * alignment, '\0'); };
  std::string header, data;
  header += "GGUF";
  put(header, uint32_t{3});
  put(header, static_cast<uint64_t>(draft.tensors.size()));
  put(header, static_cast<uint64_t>(draft.metadata.size()));
  for (const auto& [key, value] : draft.metadata) {
    put_text(header, key);
    std::visit(PutValue{header}, value);
  }
  for (const auto& tensor : draft.tensors) {
    put_text(header, tensor.name);
    put(header, static_cast<uint32_t>(tensor.ne.size()));
    for (const auto n : tensor.ne) put(header, static_cast<uint64_t>(n));
    put(header, tensor.type);
    put(header, static_cast<uint64_t>(data.size()));
    data += tensor.bytes;
    pad(data);
  }
  pad(header);
  std::ofstream out(path, std::ios::binary);
  out << header << data;
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::string toy_text(size_t bytes, uint64_t seed) {
  static const char* words[] = {"the",   "river", "and",  "a",     "stone", "carries", "water", "of",    "bread",  "under",
                                "light", "in",    "old",  "bridge", "is",   "not",     "where", "every", "engine", "turns",
                                "slow",  "from",  "salt", "wood",  "over",  "number",  "reads", "paper", "winter", "at"};
  Random random(seed);
  std::string text;
  for (size_t word = 0; text.size() < bytes; ++word) {
    std::string next = random.below(12) == 0 ? std::to_string(random.below(3000)) : words[random.below(std::size(words))];
    const size_t mark = random.below(14);
    text += next + (mark == 0 ? ". " : mark == 1 ? ", " : mark == 2 && word % 5 == 0 ? ".\n\n" : " ");
  }
  return text;
}

}  // namespace oscar::test
