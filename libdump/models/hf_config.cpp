#include "libdump/models/hf_config.h"

#include <algorithm>
#include <cmath>

#include "formats/atomic_write.h"
#include "formats/error.h"
#include "libdump/json_depth.h"

namespace oscar {

using Json = nlohmann::json;

HfConfig::HfConfig(const std::filesystem::path& directory) : path_(directory.string()) {
  const auto file = directory / "config.json";
  if (!std::filesystem::exists(file))
    throw invalid("{}: expected a model directory with config.json, or a .gguf file", path_);
  const auto root = [&] {
    try {
      return Json::parse(read_text(file, size_t{16} << 20), not_too_deep, false);
    } catch (const std::runtime_error& error) {
      throw failure("{}: {}", file.string(), error.what());
    }
  }();
  if (!root.is_object()) throw failure("{}: is not a JSON object", file.string());
  const bool nested = root.contains("text_config") && root["text_config"].is_object();
  json_ = nested ? root["text_config"] : root;
  sees_ = root.contains("vision_config") || root.contains("audio_config");
  for (const char* key : {"tie_word_embeddings", "quantization_config"}) {
    if (nested && !json_.contains(key) && root.contains(key)) json_[key] = root[key];
  }
  type_ = text("model_type", "");
  if (type_.empty() && root.contains("model_type") && root["model_type"].is_string())
    type_ = root["model_type"];
  if (type_.empty()) throw failure("{}: 'model_type' is missing", file.string());
  fill_in();
}

const Json* HfConfig::find(const char* key) const {
  const auto entry = json_.find(key);
  return entry == json_.end() || entry->is_null() ? nullptr : &*entry;
}
bool HfConfig::has(const char* key) const {
  return find(key) != nullptr;
}

static std::runtime_error wrong(const std::string& path, const char* key, std::string_view expected,
                                const Json* found) {
  return failure("{}/config.json: '{}': expected {}, found {}", path, key, expected,
                 found ? found->dump() : "nothing");
}

int64_t HfConfig::integer(const char* key, std::optional<int64_t> otherwise) const {
  const Json* found = find(key);
  if (!found && otherwise) return *otherwise;
  if (!found || !found->is_number_integer() || found->get<int64_t>() < 0 ||
      found->get<int64_t>() > (int64_t{1} << 30))
    throw wrong(path_, key, "an integer from 0 to 2^30", found);
  return found->get<int64_t>();
}
double HfConfig::number(const char* key, std::optional<double> otherwise) const {
  const Json* found = find(key);
  if (!found && otherwise) return *otherwise;
  if (!found || !found->is_number() || !std::isfinite(found->get<double>()))
    throw wrong(path_, key, "a number", found);
  return found->get<double>();
}
double HfConfig::cap(const char* key, double otherwise) const {
  if (!json_.contains(key)) return otherwise;
  if (json_[key].is_null()) return 0;
  const double value = number(key);
  if (!(value > 0)) throw wrong(path_, key, "a number above 0, or null", find(key));
  return value;
}
bool HfConfig::flag(const char* key, bool otherwise) const {
  const Json* found = find(key);
  if (!found) return otherwise;
  if (!found->is_boolean()) throw wrong(path_, key, "true or false", found);
  return found->get<bool>();
}
std::string HfConfig::text(const char* key, const std::string& otherwise) const {
  const Json* found = find(key);
  if (!found) return otherwise;
  if (!found->is_string()) throw wrong(path_, key, "a text", found);
  return found->get<std::string>();
}
std::invalid_argument HfConfig::unsupported(const char* key, std::string_view why) const {
  const Json* found = find(key);
  return invalid("{}/config.json: '{}' {}: {}", path_, key, found ? found->dump() : "absent", why);
}

int HfConfig::rotary_dims(const Json* parameters, int head_dim) const {
  constexpr const char *kShare = "partial_rotary_factor", *kDims = "rotary_dim";
  const bool there = parameters && parameters->is_object() && parameters->contains(kShare);
  const Json* share = there && !(*parameters)[kShare].is_null() ? &(*parameters)[kShare] : find(kShare);
  int dims = head_dim;
  if (share) {
    if (!share->is_number() || !(share->get<double>() > 0 && share->get<double>() <= 1))
      throw wrong(path_, kShare, "a number above 0, 1 at most", share);
    if (!defaults_.contains(kShare) && share->get<double>() != 1)
      throw invalid(
          "{}/config.json: '{}' {}: transformers rotates whole heads in this family, other engines do not",
          path_, kShare, share->dump());
    dims = static_cast<int>(head_dim * share->get<double>());  // cut, as transformers does it
  }
  if (!defaults_.contains(kDims) || !has(kDims)) return dims;
  if (share && integer(kDims) != dims)
    throw unsupported(kDims, fmt::format("'{}' makes them {}", kShare, dims));
  return static_cast<int>(integer(kDims));
}

const Json* HfConfig::rope_fields() const {
  const Json *parameters = find("rope_parameters"), *scaling = find("rope_scaling");
  if (parameters && scaling && *parameters != *scaling)
    throw unsupported("rope_scaling", "'rope_parameters' says something else: expected one of them");
  return parameters ? parameters : scaling;
}

TransformerSpec HfConfig::common(std::string_view experts) const {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (experts.empty() && integer(key, 0) > 0)
      throw unsupported(key, "a mixture of experts that this family does not have");
  }
  if (flag("use_bidirectional_attention", false))
    throw unsupported("use_bidirectional_attention", "attention must be causal");
  if (!flag("is_causal", true)) throw unsupported("is_causal", "attention must be causal");
  TransformerSpec spec;
  ModelConfig& config = spec.config;
  config.path = path_;
  config.architecture = type_;
  config.name = text("_name_or_path", "");
  if (config.name.empty()) config.name = std::filesystem::path(path_).filename().string();
  config.hidden = static_cast<int>(integer("hidden_size"));
  config.intermediate =
      static_cast<int>(experts.empty() ? integer("intermediate_size")
                                       : integer("intermediate_size", 0));  // none where all are experts
  config.vocabulary = static_cast<int>(integer("vocab_size"));
  config.context = integer("max_position_embeddings", 0);
  config.norm_eps = number("rms_norm_eps", 1e-6);
  config.tied_embeddings = flag("tie_word_embeddings", false);
  LayerSpec layer;
  auto& a = layer.attention;
  a.q_heads = static_cast<int>(integer("num_attention_heads"));
  if (a.q_heads == 0) throw unsupported("num_attention_heads", "expected a positive integer");
  a.kv_heads = static_cast<int>(integer("num_key_value_heads", a.q_heads));
  a.dim_k = a.dim_v = static_cast<int>(integer("head_dim", config.hidden / a.q_heads));
  a.scale = 1.0 / std::sqrt(static_cast<double>(a.dim_k));
  const Json* parameters = rope_fields();
  const bool by_kind = defaults_.contains("rope_local_base_freq");  // Gemma 3: its file takes them apart
  config.ropes = {rope(by_kind ? nullptr : parameters, number("rope_theta", 10000.0),
                       rotary_dims(parameters, a.dim_k))};
  const RopeConfig& scaled = config.ropes[0];
  if (scaled.scaling == "dynamic" || scaled.scaling == "linear" || scaled.scaling == "yarn") {
    // Most state the context that was trained, some the one that is meant.
    const auto trained = static_cast<double>(scaled.scaling == "yarn" ? scaled.original_context : config.context);
    config.context = std::max(config.context, static_cast<int64_t>(std::min(trained * scaled.factor, 0x1p40)));
  }
  constexpr int64_t kMostLayers = 1 << 13;  // a lie about them must not become memory
  const int64_t layers = integer("num_hidden_layers");
  if (layers > kMostLayers)
    throw wrong(path_, "num_hidden_layers", fmt::format("{} at most", kMostLayers),
                find("num_hidden_layers"));
  for (int i = 0; i < layers; ++i) {
    a.layer = i;
    spec.layers.push_back(layer);
  }
  const bool gemma = defaults_.contains("hidden_activation");  // whose hidden_act means nothing
  const auto activation = gemma ? text("hidden_activation", "gelu_pytorch_tanh") : text("hidden_act", "silu");
  if (activation == "gelu_pytorch_tanh" || activation == "gelu_new")
    spec.activation = Activation::GeluTanh;
  else if (activation != "silu" && activation != "swish")
    throw invalid("{}/config.json: activation '{}' is not supported; known: silu, gelu_pytorch_tanh", path_,
                  activation);
  return spec;
}

}  // namespace oscar
