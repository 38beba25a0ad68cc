#include "libcalib/artifacts/codes_file.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/error.h"
#include "formats/safetensors.h"
#include "libcalib/artifacts/provenance_fields.h"
#include "libcalib/codeword_storage.h"

namespace oscar {
namespace {

constexpr const char* kSchema = "oscar-codes/1";
using Json = nlohmann::ordered_json;

std::string head_path(int layer, Side side, size_t head) {
  return fmt::format("layers.{}.{}.{}", layer, side_name(side), head);
}

template <typename Values>
Tensor float_tensor(Shape shape, const Values& values) {
  std::vector<float> floats;
  for (const double value : values) floats.push_back(static_cast<float>(value));
  return make_tensor(std::move(shape), std::move(floats));
}
Tensor matrix_tensor(const Matrix& m) {
  return float_tensor({m.rows(), m.cols()}, std::span(m.data(), static_cast<size_t>(m.size())));
}
Tensor vector_tensor(const Vector& v) {
  return float_tensor({v.size()}, v);
}

template <typename T>
Tensor raw_tensor(DType dtype, Shape shape, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return make_tensor(dtype, std::move(shape), std::vector<std::byte>(bytes.begin(), bytes.end()));
}

// All words of a head one after the other: int8 with a scale for each group, else fp16 or float32.
void add_words(SafeTensors& file, const std::string& path, const Codebook& codebook) {
  std::vector<int32_t> shape;
  std::vector<float> all, scales;
  std::vector<int8_t> integers;
  for (const auto& group : codebook.groups) {
    shape.insert(shape.end(), {group.size, group.bits});
    all.insert(all.end(), group.words.begin(), group.words.end());
    const Int8Words words = int8_words(group.words);
    integers.insert(integers.end(), words.values.begin(), words.values.end());
    scales.push_back(words.scale);
  }
  const auto n = static_cast<int64_t>(all.size()), groups = static_cast<int64_t>(codebook.groups.size());
  file.tensors[path + ".groups"] = raw_tensor(DType::I32, {groups, 2}, shape);
  if (integers.size() == all.size()) {
    file.tensors[path + ".words"] = raw_tensor(DType::I8, {n}, integers);
    file.tensors[path + ".scales"] = make_tensor({groups}, std::move(scales));
    return;
  }
  std::vector<uint16_t> halves;
  bool exact = true;
  for (const float word : all) {
    halves.push_back(float_to_f16(word));
    exact = exact && f16_to_float(halves.back()) == word;
  }
  file.tensors[path + ".words"] =
      exact ? raw_tensor(DType::F16, {n}, halves) : make_tensor({n}, std::move(all));
}

Json head_json(const HeadCode& head) {
  Json json = {{"codec", head.codec->name}, {"groups", head.options.groups}, {"clip", head.options.clip}};
  if (head.options.codebook) json["norm"] = head.options.codebook->norm;
  if (head.options.seed != 0) json["seed"] = head.options.seed;
  return json;
}

Json side_json(SafeTensors& file, const SideCodes& codes) {
  Json json = {{"objective", codes.objective}, {"layers", Json::object()}};
  for (const auto& [id, heads] : codes.layers) {
    Json& layer = json["layers"][std::to_string(id)] = Json::array();
    for (size_t h = 0; h < heads.size(); ++h) {
      const HeadCode& head = heads[h];
      const std::string path = head_path(id, codes.side, h);
      Json& entry = layer.emplace_back(head_json(head));
      const auto& [forward, inverse, mean] = head.transform;
      const auto add = [&](const char* name, const auto& values, const auto& tensor) {
        if (!values.size()) return;
        file.tensors[path + '.' + name] = tensor(values);
        entry["tensors"].push_back(name);
      };
      entry["tensors"] = Json::array();
      add("forward", forward, matrix_tensor);
      add("inverse", inverse, matrix_tensor);
      add("mean", mean, vector_tensor);
      add("eigenvalues", head.eigenvalues, vector_tensor);
      if (!head.options.codebook) continue;
      add_words(file, path, *head.options.codebook);
      for (const char* name : {"groups", "words", "scales"}) {
        if (file.tensors.contains(path + '.' + name)) entry["tensors"].push_back(name);
      }
    }
  }
  return json;
}

// The tensors of one head, by name; reading checks what it takes.
struct HeadReader {
  const SafeTensors& file;
  std::string path, where;

  const Tensor* find(const char* name) const {
    const auto found = file.tensors.find(path + '.' + name);
    return found == file.tensors.end() ? nullptr : &found->second;
  }
  const Tensor& need(const char* name) const {
    if (const Tensor* tensor = find(name)) return *tensor;
    throw failure("{}: tensor {}.{} is missing", where, path, name);
  }
  Matrix matrix(const char* name) const {
    const Tensor* tensor = find(name);
    if (!tensor) return {};
    const auto& s = tensor->shape;
    if (s.size() != 2 || s[0] != s[1] || s[0] == 0)
      throw failure("{}: {}.{}: expected a square matrix, found {}", where, path, name, to_string(s));
    const auto values = tensor->doubles();
    return finite(name, Matrix(ConstMatrixMap(values.data(), s[0], s[0])));
  }
  Vector vector(const char* name) const {
    const Tensor* tensor = find(name);
    if (!tensor) return {};
    if (tensor->shape.size() != 1)
      throw failure("{}: {}.{}: expected a vector, found {}", where, path, name, to_string(tensor->shape));
    const auto values = tensor->doubles();
    return finite(name, Vector(ConstVectorMap(values.data(), tensor->shape[0])));
  }
  template <typename T>
  T finite(const char* name, T values) const {
    if (!values.allFinite()) throw failure("{}: {}.{}: not all numbers are finite", where, path, name);
    return values;
  }
  std::shared_ptr<const Codebook> codebook(bool norm) const {
    if (!find("groups")) return nullptr;
    const Tensor& shape = need("groups");
    if (shape.shape.size() != 2 || shape.shape[1] != 2)
      throw failure("{}: {}.groups: expected [groups, 2], found {}", where, path, to_string(shape.shape));
    const auto sizes = shape.integers();
    const auto words = need("words").floats();
    const auto scales = find("scales") ? need("scales").floats() : std::vector<float>{};
    Codebook codebook{.groups = {}, .norm = norm};
    size_t at = 0;
    for (size_t g = 0; g < static_cast<size_t>(shape.shape[0]); ++g) {
      const int64_t size = sizes[2 * g], bits = sizes[2 * g + 1];
      if (size < 1 || size > 64 || bits < 0 || bits > 16)
        throw failure("{}: {}.groups: group {}: {} channels of {} bits", where, path, g, size, bits);
      const size_t count = static_cast<size_t>(size) << bits;
      if (at + count > words.size() ||
          (!scales.empty() && scales.size() != static_cast<size_t>(shape.shape[0])))
        throw failure("{}: {}.words: {} numbers and {} scales are too few for its groups", where, path,
                      words.size(), scales.size());
      CodeGroup group{static_cast<int>(size),
                      static_cast<int>(bits),
                      {words.begin() + static_cast<std::ptrdiff_t>(at),
                       words.begin() + static_cast<std::ptrdiff_t>(at + count)}};
      if (!scales.empty()) {
        for (float& word : group.words) word *= scales[g];
      }
      for (const float word : group.words) {
        if (!std::isfinite(word))
          throw failure("{}: {}.words: group {}: not all numbers are finite", where, path, g);
      }
      codebook.groups.push_back(std::move(group));
      at += count;
    }
    if (at != words.size())
      throw failure("{}: {}.words: {} numbers, its groups need {}", where, path, words.size(), at);
    return std::make_shared<const Codebook>(std::move(codebook));
  }
};

int layer_id(const std::string& text, const std::string& where) {
  int id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0)
    throw failure("{}: '{}' is not a layer id", where, text);
  return id;
}

// The numbers of an entry. JSON would cut 2.5 to 2 and make a large seed of -1.
CodecOptions read_options(const HeadReader& reader, const Json& entry) {
  const auto check = [&](const char* name, bool good, const char* expected) {
    if (!good)
      throw failure("{}: {}: {} is {}, expected {}", reader.where, reader.path, name, entry.at(name).dump(),
                    expected);
  };
  CodecOptions options{.groups = entry.at("groups").get<int>(), .clip = entry.at("clip").get<double>()};
  check("groups", entry.at("groups").is_number_integer() && options.groups >= 1, "a whole number from 1");
  check("clip", options.clip >= 0 && options.clip <= 1, "a ratio from 0 (off) to 1");
  options.seed = entry.value("seed", uint64_t{0});
  check("seed", !entry.contains("seed") || entry.at("seed").is_number_unsigned(), "a whole number from 0");
  options.codebook = reader.codebook(entry.value("norm", false));
  return options;
}

// One size for all of a head, and every tensor that its entry names.
void check_head(const HeadReader& reader, const Json& entry, const HeadCode& head) {
  for (const auto& name : entry.value("tensors", Json::array())) reader.need(name.get<std::string>().c_str());
  if ((head.codec->name == "vector" || head.codec->name == "qjl") && !head.options.codebook)
    reader.need("groups");
  Eigen::Index dim = 0;
  const auto same = [&](const char* name, Eigen::Index size) {
    if (size && dim && size != dim)
      throw failure("{}: {}.{}: expected head dim {}, found {}", reader.where, reader.path, name, dim, size);
    if (size) dim = size;
  };
  same("forward", head.transform.forward.rows());
  same("inverse", head.transform.inverse.rows());
  same("mean", head.transform.mean.size());
  same("eigenvalues", head.eigenvalues.size());
  same("groups", head.options.codebook ? head.options.codebook->dim() : 0);
}

SideCodes read_side(const SafeTensors& file, const Json& json, Side side, const std::string& where) {
  SideCodes codes{side, json.at("objective").get<std::string>(), {}};
  for (const auto& [text, heads] : json.at("layers").items()) {
    const int id = layer_id(text, where);
    auto& layer = codes.layers[id];
    if (!layer.empty()) throw failure("{}: layer {} is there twice", where, id);
    for (const auto& body : heads) {
      const HeadReader reader{file, head_path(id, side, layer.size()), where};
      HeadCode head;
      head.transform = {reader.matrix("forward"), reader.matrix("inverse"), reader.vector("mean")};
      head.eigenvalues = reader.vector("eigenvalues");
      head.codec = &find_codec(body.at("codec").get<std::string>());
      head.options = read_options(reader, body);
      check_head(reader, body, head);
      layer.push_back(std::move(head));
    }
    if (layer.empty()) throw failure("{}: layer {}: no heads", where, id);
  }
  if (codes.layers.empty()) throw failure("{}: no layers of {}", where, side_name(side));
  return codes;
}

}  // namespace

void write_codes(const std::filesystem::path& path, const CacheCodes& codes, const Provenance& provenance) {
  SafeTensors file;
  const Json json = {{"k", side_json(file, codes.k)}, {"v", side_json(file, codes.v)}};
  file.metadata["schema"] = kSchema;
  file.metadata["method"] = codes.name;
  file.metadata["codes"] = json.dump();
  for (const auto& field : kProvenanceTexts) {
    if (!field.place && !(provenance.*field.value).empty())
      file.metadata[field.name] = provenance.*field.value;
  }
  file.metadata["tokens"] = std::to_string(provenance.tokens);
  write_safetensors(path, file);
}

CacheCodes read_codes(const std::filesystem::path& path) {
  const std::string where = path.string();
  const SafeTensors file = read_safetensors(path);
  const auto text = [&](const char* key) {
    const auto found = file.metadata.find(key);
    return found == file.metadata.end() ? std::string() : found->second;
  };
  if (text("schema") != kSchema)
    throw failure("{}: expected schema {}, found {}", where, kSchema,
                  text("schema").empty() ? "none" : text("schema"));
  try {
    const Json json = Json::parse(text("codes"));
    return {text("method"), read_side(file, json.at("k"), Side::K, where),
            read_side(file, json.at("v"), Side::V, where)};
  } catch (const nlohmann::json::exception& error) {
    throw failure("{}: damaged metadata 'codes': {}", where, error.what());
  } catch (const std::invalid_argument& error) {  // an unknown codec, a layer that is no number
    throw failure("{}: {}", where, error.what());
  }
}

}  // namespace oscar
