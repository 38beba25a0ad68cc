#include <algorithm>
#include <fstream>

#include "formats/error.h"
#include "libdump/models/families.h"
#include "libdump/models/transformer.h"
#include "libdump/weights/safetensors_weights.h"

namespace oscar {

std::span<const FamilyInfo> family_table() {
  static constexpr FamilyInfo table[] = {
#define OSCAR_FAMILY(name, model_type, architecture, summary) \
  {#name, model_type, architecture, summary, name##_hf, name##_gguf},
#define OSCAR_NO_GGUF(name, model_type, summary) {#name, model_type, "", summary, name##_hf, nullptr},
#include "libdump/models/models.def"
#undef OSCAR_FAMILY
#undef OSCAR_NO_GGUF
  };
  return table;
}

void set_windows(TransformerSpec& spec, const HfConfig& config, int64_t window,
                 const std::function<bool(int layer)>& slides) {
  const nlohmann::json* types = config.find("layer_types");
  if (types && (!types->is_array() || types->size() != spec.layers.size()))
    throw failure("{}/config.json: 'layer_types': expected one kind a layer, found {}", config.path(),
                  types->dump());
  for (auto& layer : spec.layers) {
    const int id = layer.attention.layer;
    bool sliding = slides(id);
    if (types) {
      const auto& kind = (*types)[static_cast<size_t>(id)];
      sliding = kind == "sliding_attention";
      if (!sliding && kind != "full_attention")
        throw invalid("{}/config.json: layer {} is '{}': only full and sliding attention are supported",
                      config.path(), id, kind.dump());
    }
    layer.attention.sliding_window = sliding ? window : 0;
  }
}

void set_window(TransformerSpec& spec, const HfConfig& config, int64_t window) {
  const nlohmann::json* types = config.find("layer_types");
  const char* kind = window > 0 ? "sliding_attention" : "full_attention";
  if (types && !std::ranges::all_of(*types, [&](const auto& type) { return type == kind; }))
    throw config.unsupported("layer_types",
                             fmt::format("'sliding_window' makes every layer of this family {}", kind));
  for (auto& layer : spec.layers) layer.attention.sliding_window = window;
}

void need_sigmoid_scores(const HfConfig& config) {
  if (config.text("scoring_func", "sigmoid") != "sigmoid")
    throw config.unsupported("scoring_func", "experts of this family are scored by a sigmoid");
}

namespace {

constexpr std::string_view kLatentAttention =
    "multi-head latent attention caches one latent and one rotary key instead of the keys and values of "
    "every head: "
    "statistics, rotations and codes of a latent are not implemented";

template <typename Column>
const FamilyInfo& find_family(const std::string& name, Column column, const std::string& where,
                              std::string_view what, std::string_view hint = "") {
  std::string known;
  for (const FamilyInfo& family : family_table()) {
    if ((family.*column).empty()) continue;
    if (family.*column == name) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.*column);
  }
  throw invalid("{}: {} '{}' is not supported; known: {}{}", where, what, name, known, hint);
}

void note_layers_after(TransformerSpec& spec, int64_t count) {
  if (count <= 0) return;
  spec.config.notes.push_back(fmt::format("{} after the decoder, for predicting further tokens, left out",
                                          count == 1 ? "one layer" : fmt::format("{} layers", count)));
}

// Of a directory: what is there beside the decoder. Notes say what is left out.
void leave_out(const HfConfig& config, SafeTensorsWeights& weights, TransformerSpec& spec) {
  auto& notes = spec.config.notes;
  const auto further = config.integer("num_nextn_predict_layers", 0);
  weights.allow_layers_after(further);
  if (weights.has(layer_tensor(static_cast<int>(spec.layers.size()), "input_layernorm.weight")))
    note_layers_after(spec, further);
  if (const auto count = weights.leave_out({"mtp."}); count > 0)
    notes.push_back(fmt::format("{} tensors for predicting further tokens (mtp.*) left out", count));
  if (const auto count =
          weights.leave_out({"model.visual.", "visual.", "model.vision_tower.", "vision_tower.",
                             "vision_model.", "model.multi_modal_projector.", "multi_modal_projector."});
      count > 0)
    notes.push_back(fmt::format("{} tensors of a vision tower left out: calibration reads text only", count));
}

std::unique_ptr<Model> open_directory(const std::filesystem::path& path, Precision precision,
                                      at::Device device) {
  const HfConfig config(path);
  if (config.has("kv_lora_rank")) throw config.unsupported("kv_lora_rank", kLatentAttention);
  const FamilyInfo& family = find_family(
      config.model_type(), &FamilyInfo::model_type, path.string(), "model_type",
      config.sees()
          ? ". It sees or hears: only text decoders of these families are read, and images or sound never"
          : "");
  TransformerSpec spec = family.from_hf(config);
  auto weights = std::make_unique<SafeTensorsWeights>(path);
  leave_out(config, *weights, spec);
  for (auto& layer : spec.layers) {  // exporters differ, and the configuration does not say
    auto& moe = layer.moe;
    if (moe.layout == ExpertLayout::Each && moe.experts > 0 &&
        weights->has(layer_tensor(layer.attention.layer, moe.stem + ".experts.gate_up_proj")))
      moe.layout = ExpertLayout::Stacked;
  }
  // Where the configuration leaves it to the default of its class, the checkpoint tells.
  if (!config.has("tie_word_embeddings")) spec.config.tied_embeddings = !weights->has("lm_head.weight");
  if (spec.config.tied_embeddings && weights->has("lm_head.weight") &&
      !weights->same("lm_head.weight", "model.embed_tokens.weight"))
    throw config.unsupported("tie_word_embeddings", "the checkpoint has an lm_head.weight that is not its embedding");
  finish(spec);
  return make_transformer(
      std::move(spec), std::move(weights),
      [path] {
        const auto file = path / "tokenizer.json";
        if (!std::filesystem::exists(file))
          throw invalid("{}: has no tokenizer.json: put it there, or give token ids (.npy)", path.string());
        return tokenizer_from_json(file);
      },
      precision, device);
}

}  // namespace

std::unique_ptr<Model> open_model(const std::filesystem::path& path, Precision precision, at::Device device) {
  if (std::filesystem::is_directory(path)) return open_directory(path, precision, device);
  char magic[4] = {};
  if (std::ifstream in(path, std::ios::binary); in.read(magic, 4) && std::string_view(magic, 4) != "GGUF") {
    throw invalid(
        "{}: expected a GGUF model or a model directory, found a file that does not begin with 'GGUF'",
        path.string());
  }
  auto file = std::make_shared<const GgufFile>(GgufFile::open(path));
  const auto architecture = file->text("general.architecture");
  if (!architecture)
    throw failure("{}: general.architecture is missing: the file is not a model", path.string());
  if (const auto key = *architecture + ".attention.kv_lora_rank"; file->integer(key).value_or(0) > 0)
    throw invalid("{}: {} {}: {}", path.string(), key, *file->integer(key), kLatentAttention);
  const FamilyInfo& family =
      find_family(*architecture, &FamilyInfo::architecture, path.string(), "architecture");
  TransformerSpec spec = family.from_gguf(*file);
  finish(spec);
  auto weights = std::make_unique<GgufWeights>(file, gguf_names(spec));
  const auto layers = static_cast<int64_t>(spec.layers.size()), further = layers_after(*file);
  weights->allow_layers(layers, layers + further);
  if (file->find(fmt::format("blk.{}.attn_norm.weight", layers))) note_layers_after(spec, further);
  return make_transformer(
      std::move(spec), std::move(weights), [file] { return tokenizer_from_gguf(*file); }, precision, device);
}

}  // namespace oscar
