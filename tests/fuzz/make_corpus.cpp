// Writes the seeds of tests/fuzz/corpus: make_fuzz_corpus DIRECTORY. Each is small and shows one feature of
// its format.
#include <cstdio>

#include "formats/atomic_write.h"
#include "formats/npy.h"
#include "formats/pickle.h"
#include "formats/pt.h"
#include "formats/safetensors_index.h"
#include "tests/formats/zip_draft.h"

using namespace oscar;
using namespace std::string_literals;
using test::packed;
namespace fs = std::filesystem;

namespace {

Tensor tensor_of(const DTypeInfo& row, Shape shape) {
  std::vector<std::byte> bytes(static_cast<size_t>(element_count(shape)) * row.bits / 8, std::byte{1});
  return make_tensor(row.dtype, std::move(shape), std::move(bytes));
}

// ---- pickles

std::string text(const std::string& value) {
  return packed('X', static_cast<uint32_t>(value.size()), std::string_view(value));
}
std::string integer(int32_t value) {
  return packed('J', value);
}
std::string tuple(const std::vector<int32_t>& values) {
  std::string out = "(";
  for (const auto value : values) out += integer(value);
  return out + "t";
}
std::string storage(const std::string& type, const std::string& key, int32_t count) {
  return "(" + text("storage") + "ctorch\n" + type + "\n" + text(key) + text("cpu") + integer(count) + "tQ";
}
std::string tensor(const std::string& from, int32_t offset, const std::vector<int32_t>& shape,
                   const std::vector<int32_t>& strides, const std::string& dtype = "") {
  return "ctorch._utils\n_rebuild_tensor_v"s + (dtype.empty() ? "2" : "3") + "\n(" + from + integer(offset) +
         tuple(shape) + tuple(strides) + "\x89" + "ccollections\nOrderedDict\n)R" +
         (dtype.empty() ? "" : "ctorch\n" + dtype + "\n") + "tR";
}

std::vector<std::pair<std::string, std::string>> pickles() {
  const auto floats = storage("FloatStorage", "0", 12);
  return {
      {"values", "\x80\2](NK\7M\1\2J\1\2\3\4\x8a\5\1\2\3\4\5\x8a"s + '\0' + "\x8b" + packed(uint32_t{1}) +
                     "\xffG?\xf0" + std::string(6, '\0') + "\x88\x89" + text("sp\xc3\xa4\xc3\x9f") +
                     ")K\1\x85K\1K\2\x86K\1K\2K\3\x87(K\1t(K\1lq\0h\0"s + "e."},
      {"strides", "\x80\2](" + tensor(floats, 0, {3, 4}, {4, 1}) + tensor(floats, 0, {4, 3}, {1, 4}) +
                      tensor(floats, 5, {3}, {0}) + tensor(floats, 12, {0, 4}, {4, 1}) +
                      tensor(floats, 11, {}, {}) + "e."},
      {"typed", "\x80\2](" +
                    tensor("(" + text("storage") + "ctorch.storage\nUntypedStorage\n" + text("0") +
                               text("cpu") + integer(48) + "tQ",
                           0, {2, 3}, {3, 1}, "bfloat16") +
                    tensor(storage("HalfStorage", "1", 4), 0, {4}, {1}) + "e."},
      {"dicts", "\x80\2" + "ccollections\nOrderedDict\n)R(K\1K\2\x86"s + text("tuple as key") + text("a") +
                    "}K\3Ns}" + text("m") + "Nsbu" + "(" + text("d") + "Nd0."},
      {"parameter", "\x80\2" + "ctorch._utils\n_rebuild_parameter\n("s + tensor(floats, 0, {2, 2}, {2, 1}) +
                        "\x88" + "ccollections\nOrderedDict\n)RtR."},
      {"size", "\x80\2"s + "ctorch\nSize\n(K\1K\2tq\1" + "\x85R."},
      {"memo", "\x80\2](]q\1K\5ar\2"s + std::string(3, '\0') + "h\1j\2" + std::string(3, '\0') + "2(NN10e."},
      {"shared", "\x80\2K\1"s + "q\1" + "0](h\1h\1eq\2" + "0](h\2h\2eq\3" + "0](h\3h\3e."},
      {"protocol3", "\x80\3}" + text("a") + "K\1s."},
      {"protocol4", "\x80\4\x95"s + packed(uint64_t{40}) + "}\x94(\x8c\1a\x94\x8d" + packed(uint64_t{2}) +
                        "hi\x94\x8c\1b\x8c\x0b" + "collections\x8c\x0bOrderedDict\x93)R\x94u."},
      {"protocol5", "\x80\5\x95"s + packed(uint64_t{9}) + "]\x94(K\1K\2e."},
  };
}

// ---- .pt files

PtValue checkpoint() {
  PtDict layer;
  layer.set("layer_id", PtValue{int64_t{3}});
  layer.set("rotation", PtValue{make_tensor<float>({2, 2}, {1, 2, 3, 4})});
  layer.set("clip", PtValue{PtList{{PtValue{0.5}, PtValue{true}, PtValue{PtNone{}}}}});
  PtDict root;
  root.set("format_version", PtValue{int64_t{1}});
  root.set("objective", PtValue{std::string("qqt")});
  root.set(int64_t{3}, PtValue{layer});
  return {root};
}
void make_pt(const fs::path& folder) {
  write_pt(folder / "checkpoint", checkpoint(), "k");
  PtDict dtypes;
  for (const auto& row : dtype_table()) {
    if (!row.torch_name.empty() && dtypes.items.size() < 8 && row.torch.empty())
      dtypes.set(std::string(row.torch_name), PtValue{tensor_of(row, {1})});
  }
  write_pt(folder / "dtypes_v3", {dtypes}, "d");
  PtList typed;
  for (const auto& row : dtype_table()) {
    if (!row.torch.empty()) typed.items.push_back({tensor_of(row, {1})});
  }
  write_pt(folder / "dtypes_v2", {typed}, "d");
  for (const auto& [name, bytes] : pickles()) {
    test::Zip zip{{{"t/data.pkl", bytes},
                   {"t/byteorder", "little"},
                   {"t/data/0", std::string(48, '\0')},
                   {"t/data/1", std::string(8, '\1')},
                   {"t/version", "3\n"}}};
    zip.deflate = name.size() % 2;
    zip.zip64 = name.size() % 3 == 0;
    write_file(folder / name, zip.bytes());
  }
  test::Zip zip{{{"t/data.pkl", "\x80\2K\7."}}};
  const auto bytes = zip.bytes();
  write_file(folder / "comment", bytes.substr(0, bytes.size() - 2) + packed(uint16_t{5}) + "hello");
  write_file(folder / "legacy", "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.");
}

// ---- the others

void make_safetensors(const fs::path& folder) {
  SafeTensors all, few;
  for (const auto& row : dtype_table()) all.tensors[std::string(row.name)] = tensor_of(row, {4});
  write_safetensors(folder / "dtypes", all);
  few.tensors["scalar"] = make_tensor<double>({}, {0.5});
  few.tensors["empty"] = make_tensor<float>({0, 3}, {});
  few.tensors["w"] = make_tensor<float>({2, 1, 2}, {1, 2, 3, 4});
  few.metadata = {{"format", "pt"}, {"quoted", "\"\\\n\xc3\xa4\xf0\x9f\x98\x80"}};
  write_safetensors(folder / "metadata", few);
  write_safetensors(folder / "nothing", {});
  const std::string header =
      R"( {"a\u00e4\ud83d\ude00" : {"shape":[1],"data_offsets":[0,4] , "dtype":"F32"},"__metadata__":{"\/":"\b\f\n\r\t"}}  )";
  write_file(folder / "escapes", packed(uint64_t{header.size() - 1}) + header.substr(1) + "data");
}
void make_index(const fs::path& folder) {
  const std::string map = R"("weight_map":{"x":"a.safetensors","y":"a.safetensors","z":"b.safetensors"})";
  write_file(folder / "plain", "{" + map + "}");
  write_file(folder / "metadata", "{\"metadata\": {\"total_size\": 24}, " + map + "}\n");
  write_file(folder / "values",
             R"({"m":[1,-2.5e+3,0.1E-2,true,false,null,"\u00e4\ud83d\ude00\\",{},[],[[[]]],{"a":{"b":1}}],)" +
                 map + "}");
  write_file(folder / "missing",
             R"({"weight_map":{"x":"a.safetensors","q":"b.safetensors","c":"c.safetensors"}})");
}
void make_tokenizer_json(const fs::path& folder) {
  write_file(folder / "bytes", R"x({"version":"1.0","bos_token":"<s>","added_tokens":[
    {"id":6,"content":"<s>","special":true,"normalized":false,"single_word":false,"lstrip":true,"rstrip":true}],
    "normalizer":{"type":"NFC"},
    "pre_tokenizer":{"type":"Sequence","pretokenizers":[
      {"type":"Split","pattern":{"Regex":"(?i:'s)|\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}]+|\\s+(?!\\S)"},"behavior":"Isolated","invert":false},
      {"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},
    "decoder":{"type":"ByteLevel"},
    "post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel"},
      {"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
       "special_tokens":{"<s>":{"id":"<s>","ids":[6],"tokens":["<s>"]}}}]},
    "model":{"type":"BPE","dropout":null,"ignore_merges":false,"merges":["a b","\u0120 a"],
             "vocab":{"a":0,"b":1,"1":2,"\u0120":3,"ab":4,"\u0120a":5}}})x");
  write_file(folder / "characters", R"x({"bos_token":{"content":"<s>"},"add_bos_token":true,"added_tokens":[{"id":9,"content":"<s>","special":true}],
    "normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},
      {"type":"Replace","pattern":{"String":" "},"content":"\u2581"},{"type":"NFKD"}]},
    "pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
      {"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":true}]},
    "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},
      {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0},
      {"type":"Metaspace","replacement":"_","prepend_scheme":"always"}]},
    "model":{"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,"merges":[["\u2581","a"],["a","b"]],
             "vocab":{"<unk>":0,"a":1,"b":2,"c":3,"\u2581":4,"<0xC3>":5,"<0xA9>":6,"\u2581a":7,"ab":8}}})x");
  write_file(folder / "plain", R"x({"model":{"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})x");
}
void make_config_json(const fs::path& folder) {
  const std::string sizes =
      R"("hidden_size":64,"intermediate_size":96,"vocab_size":96,"num_attention_heads":4,"num_key_value_heads":2,"num_hidden_layers":3)";
  write_file(folder / "llama3", R"({"model_type":"llama","hidden_act":"silu","tie_word_embeddings":false,"rms_norm_eps":1e-5,"rope_theta":5e5,
    "max_position_embeddings":2048,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
    "original_max_position_embeddings":256},)" + sizes + "}");
  write_file(folder / "yarn", R"({"text_config":{"model_type":"qwen3","head_dim":16,
    "rope_parameters":{"rope_type":"yarn","rope_theta":1e4,"factor":4.0,"original_max_position_embeddings":512,"beta_fast":32,"beta_slow":1,
    "mscale":1.0,"mscale_all_dim":0.5,"truncate":false,"attention_factor":1.1},)" + sizes + R"(},"vision_config":{},"tie_word_embeddings":true})");
  write_file(folder / "longrope", R"({"model_type":"phi3","max_position_embeddings":4096,"original_max_position_embeddings":256,
    "rope_scaling":{"type":"longrope","short_factor":[1,1,1,1,1,1,1,1],"long_factor":[1,2,3,4,5,6,7,8]},)" + sizes + "}");
  write_file(folder / "dynamic", R"({"model_type":"llama","rope_scaling":{"type":"dynamic","factor":2.0},"num_experts":8,)" + sizes + "}");
}
void make_npy(const fs::path& folder) {
  for (const auto dtype : {DType::F64, DType::F32, DType::F16, DType::I64, DType::I32, DType::I16, DType::I8,
                           DType::U64, DType::U32, DType::U16, DType::U8, DType::Bool}) {
    write_npy(folder / std::string(info(dtype).name), tensor_of(info(dtype), {2, 1}));
  }
  const std::string header = "{\"shape\":(3,),\"descr\":\"<i2\",\"fortran_order\":True}\n";
  for (const char version : {'\2', '\3'}) {
    write_file(
        folder / ("version"s + static_cast<char>('0' + version)),
        "\x93NUMPY"s + version + '\0' + packed(static_cast<uint32_t>(header.size())) + header + "abcdef");
  }
  write_npy(folder / "scalar", make_tensor<float>({}, {1}));
  write_npy(folder / "empty", make_tensor<float>({0, 5}, {}));
}

std::string field(const std::string& value) {
  return packed(uint64_t{value.size()}, std::string_view(value));
}
std::string entry(const std::string& key, uint32_t type, const std::string& value) {
  return field(key) + packed(type) + value;
}
std::string gguf(uint32_t version, const std::vector<std::string>& entries,
                 const std::vector<std::string>& tensors, const std::string& data, size_t alignment = 32) {
  auto out = "GGUF" + packed(version, uint64_t{tensors.size()}, uint64_t{entries.size()});
  for (const auto& part : entries) out += part;
  for (const auto& part : tensors) out += part;
  out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
  return out + data;
}
std::string info_of(const std::string& name, const std::vector<uint64_t>& extents, uint32_t type,
                    uint64_t offset) {
  auto out = field(name) + packed(static_cast<uint32_t>(extents.size()));
  for (const auto extent : extents) out += packed(extent);
  return out + packed(type, offset);
}
void make_gguf(const fs::path& folder) {
  const std::vector<std::string> scalars{entry("u8", 0, packed(uint8_t{200})),
                                         entry("i8", 1, packed(int8_t{-3})),
                                         entry("u16", 2, packed(uint16_t{1})),
                                         entry("i16", 3, packed(int16_t{-3})),
                                         entry("u32", 4, packed(uint32_t{1})),
                                         entry("i32", 5, packed(int32_t{-7})),
                                         entry("f32", 6, packed(1.5f)),
                                         entry("bool", 7, packed(uint8_t{1})),
                                         entry("u64", 10, packed(~uint64_t{0})),
                                         entry("i64", 11, packed(int64_t{-1} << 40)),
                                         entry("f64", 12, packed(0.1)),
                                         entry("general.architecture", 8, field("llama")),
                                         entry("general.alignment", 4, packed(uint32_t{64}))};
  std::vector<std::string> arrays{
      entry("texts", 9,
            packed(uint32_t{8}, uint64_t{2}) + field("a") + field("a text of more than sixteen bytes")),
      entry("ints", 9, packed(uint32_t{5}, uint64_t{2}, int32_t{1}, int32_t{-2})),
      entry("floats", 9, packed(uint32_t{6}, uint64_t{1}, 2.5f)),
      entry("nothing", 9, packed(uint32_t{8}, uint64_t{0})),
      entry(
          "nested", 9,
          packed(uint32_t{9}, uint64_t{2}, uint32_t{4}, uint64_t{1}, uint32_t{7}, uint32_t{8}, uint64_t{1}) +
              field("x")),
      entry("deep", 9,
            packed(uint32_t{9}, uint64_t{1}, uint32_t{9}, uint64_t{1}, uint32_t{9}, uint64_t{1}, uint32_t{7},
                   uint64_t{1}, uint8_t{1}))};
  const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  for (uint32_t type = 0; type < std::size(sizes); ++type) {
    if (!sizes[type]) continue;
    arrays.push_back(entry("array" + std::to_string(type), 9,
                           packed(type, uint64_t{3}) + std::string(3 * sizes[type], '\1')));
  }
  write_file(folder / "scalars", gguf(3, scalars, {info_of("w", {4, 2}, 0, 0), info_of("q", {32, 1}, 2, 64)},
                                      std::string(82, 'd'), 64));
  write_file(folder / "arrays", gguf(3, arrays, {}, ""));
  write_file(
      folder / "version2",
      gguf(2, {}, {info_of("s", {}, 30, 0), info_of("k", {256, 1, 1, 1}, 12, 32), info_of("none", {0}, 0, 0)},
           std::string(176, 'd')));
  write_file(folder / "nothing", gguf(3, {}, {}, ""));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: make_fuzz_corpus DIRECTORY\n");
    return 2;
  }
  const fs::path root = arguments[1];
  const auto folder = [&](const char* name) {
    make_directory(root / name);
    return root / name;
  };
  for (const auto& [name, bytes] : pickles()) write_file(folder("pickle") / name, bytes);
  make_pt(folder("pt"));
  make_safetensors(folder("safetensors"));
  make_index(folder("safetensors_index"));
  make_gguf(folder("gguf"));
  make_npy(folder("npy"));
  make_tokenizer_json(folder("tokenizer_json"));
  make_config_json(folder("config_json"));
}
