#include "libcalib/artifacts/gguf_rotations.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "formats/error.h"
#include "formats/gguf_writer.h"

namespace oscar {
namespace {

constexpr std::string_view kPrefix = "oscar.rotation.";

std::string tensor_name(int layer, Side side) {
  return fmt::format("blk.{}.attn_{}_rot.weight", layer, side_name(side));
}
// The layer of "blk.<layer>.attn<ending>".
std::optional<int> parse_name(std::string_view name, std::string_view ending) {
  constexpr std::string_view begin = "blk.", middle = ".attn";
  if (!name.starts_with(begin) || !name.ends_with(ending)) return std::nullopt;
  int layer = -1;
  const auto [end, error] = std::from_chars(name.data() + begin.size(), name.data() + name.size(), layer);
  if (error != std::errc() || layer < 0) return std::nullopt;
  name = name.substr(static_cast<size_t>(end - name.data()));
  return name.size() == middle.size() + ending.size() && name.starts_with(middle) ? std::optional(layer)
                                                                                  : std::nullopt;
}
std::string rotation_ending(Side side) {
  return fmt::format("_{}_rot.weight", side_name(side));
}
bool is_rotation(std::string_view name) {
  return parse_name(name, rotation_ending(Side::K)) || parse_name(name, rotation_ending(Side::V));
}
bool ours(std::string_view name) {
  return is_rotation(name) || name.starts_with(kPrefix);
}

std::string architecture_of(const GgufFile& file) {
  const auto name = file.text("general.architecture");
  if (!name) throw failure("{}: metadata 'general.architecture' is missing", file.file()->path().string());
  return *name;
}
Eigen::Index rotary_dims(const GgufFile& file, const std::string& architecture, Eigen::Index d) {
  const auto dims = file.integer(architecture + ".rope.dimension_count").value_or(d);
  if (dims < 0 || dims > d || dims % 2)
    throw failure("{}: rope.dimension_count {} does not fit the head dim {}", file.file()->path().string(),
                  dims, d);
  return dims;
}

void check_form(const RotationSet& set, Side side) {
  if (set.side != side) throw invalid("expected rotations of {}, found '{}'", side_name(side), set.objective);
  if (set.per_head)
    throw invalid(
        "'{}' has a rotation per KV head: engines read one a layer from a GGUF; fit with --granularity layer",
        set.objective);
  for (const auto& [id, layer] : set.layers) {
    if (!layer.means.empty() || !layer.inverse.empty())
      throw invalid("'{}' has means or maps that are not orthogonal: no engine reads them from a GGUF",
                    set.objective);
  }
}

// The layers of the base that cache keys and values, with the channels of the projection; 0 where it is
// fused.
std::map<int, int64_t> attention_layers(const GgufFile& base, Side side) {
  std::map<int, int64_t> layers;
  for (const auto& tensor : base.tensors()) {
    if (const auto fused = parse_name(tensor.name, "_qkv.weight"); fused) layers[*fused] = 0;
    const auto place = parse_name(tensor.name, side == Side::K ? "_k.weight" : "_v.weight");
    if (place && !tensor.shape.empty()) layers[*place] = tensor.shape[0];
  }
  return layers;
}

int64_t kv_heads(const GgufFile& base, const std::string& architecture, int layer) {
  const std::string key = architecture + ".attention.head_count_kv";
  const auto entry = base.metadata().find(key);
  if (entry == base.metadata().end()) return base.integer(architecture + ".attention.head_count").value_or(0);
  if (!std::holds_alternative<std::vector<int64_t>>(entry->second.value))
    return base.integer(key).value_or(0);
  const auto& heads = *base.integers(key);
  return static_cast<size_t>(layer) < heads.size() ? heads[static_cast<size_t>(layer)] : 0;
}

void check_layers(const GgufFile& base, const std::string& architecture, const RotationSet& set) {
  const std::string where = base.file()->path().string();
  const auto layers = attention_layers(base, set.side);
  std::vector<int> missing, surplus;
  for (const auto& entry : layers) {
    if (!set.layers.contains(entry.first)) missing.push_back(entry.first);
  }
  for (const auto& [id, layer] : set.layers) {
    const auto found = layers.find(id);
    if (found == layers.end()) {
      surplus.push_back(id);
      continue;
    }
    const int64_t d = layer.rotation[0].rows(), heads = kv_heads(base, architecture, id);
    if (found->second && heads && found->second != heads * d)
      throw invalid("{}: layer {}: the rotation of {} has {} dims, the model has {} channels in {} KV heads",
                    where, id, side_name(set.side), d, found->second, heads);
  }
  if (missing.empty() && surplus.empty()) return;
  const auto list = [](const std::vector<int>& ids) {
    return ids.empty() ? std::string("none") : fmt::format("{}", fmt::join(ids, ", "));
  };
  throw invalid(
      "{}: rotations of {} and the model do not have the same layers with attention: only in the model: {}; "
      "only in the "
      "rotations: {}. Ids are global decoder layers",
      where, side_name(set.side), list(missing), list(surplus));
}

// A vector without structure, the same everywhere.
Vector probe(Eigen::Index d) {
  Vector x(d);
  uint64_t state = 0x9e3779b97f4a7c15;
  for (Eigen::Index i = 0; i < d; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x[i] = static_cast<double>(state >> 40) / (1 << 24) - 0.5;
  }
  return x;
}

// ggml_mul_mat(rot, x)[i] = sum_j rot[i][j] x[j], with x as the engine caches it.
double round_trip_error(const std::vector<float>& stored, const Matrix& r, Eigen::Index rotary,
                        RotaryOrder order) {
  const auto d = r.rows();
  const Vector x = probe(d);
  const Vector expected = r.transpose() * x;
  double worst = 0;
  for (Eigen::Index i = 0; i < d; ++i) {
    double sum = 0;
    for (Eigen::Index j = 0; j < d; ++j)
      sum += double{stored[static_cast<size_t>(i * d + j)]} * x[model_row(j, rotary, order)];
    worst = std::max(worst, std::abs(sum - expected[i]));
  }
  return worst / expected.norm();
}

}  // namespace

RotationPair read_gguf_rotations(const std::filesystem::path& path) {
  const auto file = GgufFile::open(path);
  const std::string where = path.string();
  if (std::ranges::none_of(file.tensors(), [](const GgufTensor& t) { return is_rotation(t.name); }))
    throw invalid("{}: has no rotations (blk.<layer>.attn_k_rot.weight)", where);
  const auto architecture = architecture_of(file);
  const auto order = rotary_order(architecture);
  if (!order) throw invalid("{}: the rotary order of architecture '{}' is not known", where, architecture);
  RotationPair pair;
  pair.v.side = Side::V;
  for (RotationSet* set : {&pair.k, &pair.v}) {
    const auto text = file.text(fmt::format("{}{}_objective", kPrefix, side_name(set->side)));
    set->objective = text.value_or("unknown");
  }
  for (const auto& tensor : file.tensors()) {
    if (!is_rotation(tensor.name)) continue;
    const std::string at = fmt::format("{}: {}", where, tensor.name);
    if (tensor.type->name != "F32" || tensor.shape.size() != 2 || tensor.shape[0] != tensor.shape[1])
      throw failure("{}: expected F32 [d, d], found {} {}", at, tensor.type->name, to_string(tensor.shape));
    const auto d = tensor.shape[0];
    const auto stored = Tensor{DType::F32, tensor.shape, tensor.bytes, file.file()}.doubles();
    const auto of_k = parse_name(tensor.name, rotation_ending(Side::K));
    const auto rotary = of_k ? rotary_dims(file, architecture, d) : 0;
    Matrix r(d, d);
    for (Eigen::Index i = 0; i < d; ++i) {
      for (Eigen::Index j = 0; j < d; ++j)
        r(model_row(j, rotary, *order), i) = stored[static_cast<size_t>(i * d + j)];
    }
    const int layer = of_k ? *of_k : *parse_name(tensor.name, rotation_ending(Side::V));
    (of_k ? pair.k : pair.v).layers[layer].rotation = {std::move(r)};
  }
  for (const auto& [id, layer] : pair.k.layers) {
    if (!pair.v.layers.contains(id))
      throw failure("{}: layer {} has a rotation of K and none of V", where, id);
  }
  for (const auto& [id, layer] : pair.v.layers) {
    if (!pair.k.layers.contains(id))
      throw failure("{}: layer {} has a rotation of V and none of K", where, id);
  }
  check(pair.k, where);
  check(pair.v, where);
  return pair;
}

GgufExport write_gguf_rotations(const std::filesystem::path& path, const GgufFile& base,
                                const RotationPair& rotations, const Provenance& provenance,
                                std::optional<RotaryOrder> order) {
  constexpr double kRoundTrip = 1e-5;
  GgufExport result;
  result.architecture = architecture_of(base);
  if (!order) order = rotary_order(result.architecture);
  if (!order)
    throw invalid(
        "{}: the order in which engines cache the keys of architecture '{}' is not known: say "
        "--rotary-order same or interleaved",
        base.file()->path().string(), result.architecture);
  result.order = *order;
  GgufAddition added;
  for (const RotationSet* set : {&rotations.k, &rotations.v}) {
    check_form(*set, set == &rotations.k ? Side::K : Side::V);
    check_layers(base, result.architecture, *set);
  }
  for (const auto& [id, k_layer] : rotations.k.layers) {
    for (const RotationSet* set : {&rotations.k, &rotations.v}) {
      const auto found = set->layers.find(id);
      if (found == set->layers.end()) throw invalid("layer {} has a rotation of K and none of V", id);
      const Matrix& r = found->second.rotation[0];
      const auto d = r.rows();
      const auto rotary = set->side == Side::K ? rotary_dims(base, result.architecture, d) : 0;
      std::vector<float> stored;
      for (Eigen::Index i = 0; i < d; ++i) {
        for (Eigen::Index j = 0; j < d; ++j)
          stored.push_back(static_cast<float>(r(model_row(j, rotary, *order), i)));
      }
      const double error = round_trip_error(stored, r, rotary, *order);
      if (!(error < kRoundTrip))
        throw failure("{}: layer {}: what the engine would compute is off by {:.1e}: nothing was written",
                      path.string(), id, error);
      result.round_trip = std::max(result.round_trip, error);
      added.tensors.emplace_back(tensor_name(id, set->side), make_tensor<float>({d, d}, std::move(stored)));
    }
  }
  const auto add = [&](std::string_view key, auto value) {
    GgufValue entry;
    entry.value = std::move(value);
    added.metadata.emplace_back(std::string(kPrefix).append(key), std::move(entry));
  };
  add("version", int64_t{1});
  add("k_objective", rotations.k.objective);
  add("v_objective", rotations.v.objective);
  add("orientation", std::string("transposed"));
  add("rotary_order", std::string(*order == RotaryOrder::Same ? "same" : "interleaved"));
  add("tool_version", std::string(OSCAR_VERSION));
  for (const auto& [key, text] :
       {std::pair{"model_digest", provenance.model_digest}, {"text_digest", provenance.text_digest}}) {
    if (!text.empty()) add(key, text);
  }
  if (provenance.tokens > 0) add("tokens", provenance.tokens);
  write_gguf(path, base, ours, added);
  result.notes.push_back(
      "an engine that rotates quantised caches by itself would rotate twice: LLAMA_ATTN_ROT_DISABLE=1 in "
      "llama.cpp, "
      "LLAMA_KV_NO_HADAMARD=1 in its OSCAR fork");
  if (result.architecture != "qwen3")
    result.notes.push_back(fmt::format(
        "the public OSCAR fork reads these tensors for 'qwen3' only: an engine for '{}' must know them",
        result.architecture));
  return result;
}

}  // namespace oscar
