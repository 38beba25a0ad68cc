// The rotary embedding of a config.json, with the scalings of transformers' modeling_rope_utils.
#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "libdump/models/hf_config.h"

namespace oscar {
namespace {

using Json = nlohmann::json;

// rope_parameters or rope_scaling.
class RopeFields {
 public:
  RopeFields(const Json& fields, const std::string& path) : fields_(fields), path_(path) {}

  bool has(const char* key) const { return fields_.contains(key) && !fields_[key].is_null(); }
  double number(const char* key, std::optional<double> otherwise = {}) const {
    if (!has(key) && otherwise) return *otherwise;
    if (!has(key)) throw failure("{}/config.json: rope scaling has no '{}'", path_, key);
    if (!fields_[key].is_number() || !std::isfinite(fields_[key].get<double>()))
      throw failure("{}/config.json: rope scaling: '{}' is not a number", path_, key);
    return fields_[key].get<double>();
  }
  double positive(const char* key, std::optional<double> otherwise = {}) const {
    const double value = number(key, otherwise);
    if (!(value > 0))
      throw failure("{}/config.json: rope scaling: '{}' is {}, expected a positive number", path_, key,
                    value);
    return value;
  }
  std::vector<double> divisors(const char* key, int count) const {
    const Json* list = has(key) ? &fields_[key] : nullptr;
    std::vector<double> values;
    if (list && list->is_array()) {
      for (const auto& value : *list) values.push_back(value.is_number() ? value.get<double>() : 0);
    }
    if (values.size() != static_cast<size_t>(count) ||
        std::ranges::any_of(values, [](double x) { return !(x > 0); }))
      throw failure("{}/config.json: rope scaling: '{}': expected {} positive numbers, found {}", path_, key,
                    count, list ? list->dump() : "nothing");
    return values;
  }
  std::string type() const {
    for (const char* key : {"rope_type", "type"}) {
      if (!has(key)) continue;
      if (!fields_[key].is_string())
        throw failure("{}/config.json: rope scaling: '{}' is not a text", path_, key);
      const std::string type = fields_[key];
      // What the first Phi-3 releases called it.
      return type == "su" || (type == "yarn" && has("short_factor")) ? "longrope" : type;
    }
    if (has("factor")) throw failure("{}/config.json: rope scaling has a 'factor' and no 'rope_type'", path_);
    return "default";
  }
  bool flag(const char* key, bool otherwise) const {
    if (has(key) && !fields_[key].is_boolean())
      throw failure("{}/config.json: rope scaling: '{}' is neither true nor false", path_, key);
    return has(key) ? fields_[key].get<bool>() : otherwise;
  }

 private:
  const Json& fields_;
  const std::string& path_;
};

// YaRN (arXiv:2309.00071), 3.4: what the softmax's temperature is folded into.
double yarn_attention(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

}  // namespace

RopeConfig HfConfig::rope(const Json* parameters, double base, int dim) const {
  RopeConfig rope;
  rope.base = base;
  rope.dim = dim;
  if (!parameters) return rope;
  if (!parameters->is_object())
    throw failure("{}/config.json: rope scaling: expected an object, found {}", path_, parameters->dump());
  const RopeFields fields(*parameters, path_);
  rope.base = fields.positive("rope_theta", base);
  if (std::ranges::any_of(*parameters, [](const Json& field) { return field.is_object(); }))
    throw invalid("{}/config.json: rope scaling: parameters for each kind of layer are not supported", path_);
  const std::string type = fields.type();
  if (type == "default") return rope;
  rope.scaling = type;
  const auto longest = integer("max_position_embeddings", 0);
  const double stated = fields.number("original_max_position_embeddings", static_cast<double>(longest));
  if (!(stated >= 0 && stated <= 0x1p30))
    throw failure(
        "{}/config.json: 'original_max_position_embeddings': expected a number from 0 to 2^30, found {}",
        path_, stated);
  rope.original_context = integer("original_max_position_embeddings", static_cast<int64_t>(stated));
  const auto original = static_cast<double>(rope.original_context);
  if (type == "linear") {
    rope.factor = fields.positive("factor");
    return rope;
  }
  if (!(original > 0))
    throw failure("{}/config.json: rope scaling has no 'original_max_position_embeddings'", path_);
  if (type == "llama3") {
    rope.factor = fields.positive("factor");
    rope.low_frequency = fields.positive("low_freq_factor");
    rope.high_frequency = fields.positive("high_freq_factor");
  } else if (type == "dynamic") {
    rope.factor = fields.positive("factor");
    rope.original_context = longest;  // whatever the other field says, as transformers has it
  } else if (type == "yarn") {
    rope.factor = fields.positive("factor", static_cast<double>(longest) / original);
    const double mscale = fields.number("mscale", 0.0), all = fields.number("mscale_all_dim", 0.0);
    const double own = mscale != 0 && all != 0
                           ? yarn_attention(rope.factor, mscale) / yarn_attention(rope.factor, all)
                           : yarn_attention(rope.factor, 1);
    rope.attention_factor = fields.positive("attention_factor", own);
    rope.low_frequency = fields.positive("beta_slow", 1.0);
    rope.high_frequency = fields.positive("beta_fast", 32.0);
    // transformers asks what it finds whether it is true, and a null is not.
    rope.truncate = fields.flag("truncate", !parameters->contains("truncate"));
  } else if (type == "longrope") {
    rope.divisors = fields.divisors("short_factor", dim / 2);
    rope.long_divisors = fields.divisors("long_factor", dim / 2);
    rope.factor = fields.positive("factor", static_cast<double>(longest) / original);
    const double own = rope.factor <= 1 ? 1 : std::sqrt(1 + std::log(rope.factor) / std::log(original));
    rope.attention_factor = fields.positive("attention_factor", own);
  } else {
    throw invalid(
        "{}/config.json: rope scaling '{}' is not supported; known: default, linear, dynamic, llama3, yarn, "
        "longrope",
        path_, type);
  }
  return rope;
}

}  // namespace oscar
