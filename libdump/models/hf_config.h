// config.json of a Hugging Face checkpoint, field by field.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "libdump/models/transformer_spec.h"

namespace oscar {

class HfConfig {
 public:
  // config.json of the directory; the fields of its text_config where there is one. Keys that are absent are
  // those of the family's class in transformers (hf_defaults.cpp); null is null. std::invalid_argument without
  // the file, std::runtime_error for what is no JSON object.
  explicit HfConfig(const std::filesystem::path& directory);

  const std::string& path() const { return path_; }        // of the directory
  const std::string& model_type() const { return type_; }  // "llama"
  bool has(const char* key) const;                         // present and not null
  // A field of another type is std::runtime_error naming it; an absent one is `otherwise`, or
  // std::runtime_error where none is given.
  int64_t integer(const char* key, std::optional<int64_t> otherwise = {}) const;
  double number(const char* key, std::optional<double> otherwise = {}) const;
  // A soft cap: `otherwise` where the key is absent, 0 (none) where it is null; above 0.
  double cap(const char* key, double otherwise) const;
  bool flag(const char* key, bool otherwise) const;
  std::string text(const char* key, const std::string& otherwise) const;
  const nlohmann::json* find(const char* key) const;  // nullptr where absent or null
  std::invalid_argument unsupported(const char* key, std::string_view why) const;

  bool sees() const { return sees_; }  // images or sound, beside the text decoder that is read here

  // What most families share: sizes, heads, head_dim (stated, else hidden / heads), scale 1 / sqrt(d), layers
  // of one kind, one rotary embedding of rope_theta or rope_parameters with its scaling.
  // Experts are refused unless the family knows them: `experts` is the key of their number. What
  // is not causal is refused, and so is a share of a head that is rotated where transformers would ignore it.
  TransformerSpec common(std::string_view experts = {}) const;
  // rope_parameters, or rope_scaling of older exporters; nullptr without. std::invalid_argument where they
  // contradict each other.
  const nlohmann::json* rope_fields() const;
  // The rotary embedding that `parameters` (rope_scaling or rope_parameters, or nullptr) ask for.
  RopeConfig rope(const nlohmann::json* parameters, double base, int dim) const;

 private:
  // Of a head: partial_rotary_factor, of either place, or rotary_dim.
  int rotary_dims(const nlohmann::json* parameters, int head_dim) const;
  void fill_in();

  std::string path_, type_;
  bool sees_ = false;
  nlohmann::json json_, defaults_ = nlohmann::json::object();  // of the file, of the class
};

}  // namespace oscar
