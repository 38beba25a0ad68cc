#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "formats/error.h"
#include "formats/sha256.h"
#include "libdump/json_depth.h"
#include "libdump/tokenizer/added_tokens.h"
#include "libdump/tokenizer/bpe.h"
#include "libdump/tokenizer/cutters.h"
#include "libdump/tokenizer/decoders.h"
#include "libdump/tokenizer/json_part.h"
#include "libdump/tokenizer/normalizers.h"
#include "libdump/tokenizer/tokenizer.h"
#include "libdump/tokenizer/utf8.h"

namespace oscar {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// A lie about an id must not become memory: ids have gaps, and few.
int64_t id_limit(size_t tokens) {
  return 2 * static_cast<int64_t>(tokens) + (1 << 18);
}

Json read_json(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw failure("{}: cannot be opened", path.string());
  return Json::parse(in, not_too_deep);
}

// An optional part: absent and null are the same.
const Json* find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

struct Vocabulary {
  std::vector<std::string> model;  // the index is the id; "": none
  std::vector<Spelled> all;        // and the added tokens
  std::unordered_map<std::string, int32_t> ids;

  int64_t limit = 0;  // of an id

  void put(const std::string& token, const Json& value, bool added) {
    const int64_t id = whole_number(value, fmt::format("the id of token '{}'", token), limit);
    const auto index = static_cast<size_t>(id);
    if (index >= all.size()) all.resize(index + 1);
    const auto [place, is_new] = ids.emplace(token, static_cast<int32_t>(id));
    if (place->second != id || (is_new && !all[index].text.empty())) {
      throw failure("token '{}' has id {}, but also '{}' and id {}", token, id, all[index].text,
                    place->second);
    }
    all[index] = {token, added};
  }
  int32_t id(const std::string& token, std::string_view what) const {
    const auto found = ids.find(token);
    if (found == ids.end()) throw failure("{} '{}' is not in the vocabulary", what, token);
    return found->second;
  }
};

// Of {"content": "…"} or "…".
std::string content_of(const Json& token) {
  return token.is_string() ? token : token.at("content");
}

std::vector<BpeMerge> read_merges(const Json& merges) {
  std::vector<BpeMerge> pairs;
  pairs.reserve(merges.size());
  for (const auto& merge : merges) {
    if (!merge.is_array()) {
      pairs.push_back(split_merge(merge, pairs.size(), "model"));
    } else if (merge.size() == 2) {
      pairs.emplace_back(merge[0], merge[1]);
    } else {
      throw failure("model: merge {} has {} parts: expected 2", pairs.size(), merge.size());
    }
  }
  return pairs;
}

BpeRules read_rules(const Json& model, const Vocabulary& vocabulary, bool byte_level) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const auto* affix = find(model, key); affix && *affix != "")
      throw invalid("model {} '{}' is not supported", key, affix->get<std::string>());
  }
  if (const auto* dropout = find(model, "dropout"); dropout && *dropout != 0)
    throw invalid("model dropout {} is not supported: ids would be random", dropout->dump());
  BpeRules rules;
  rules.unit = byte_level ? BpeRules::Bytes : BpeRules::Characters;
  rules.whole_words = model.value("ignore_merges", false);
  rules.byte_fallback = model.value("byte_fallback", false);
  rules.fuse_unknown = model.value("fuse_unk", false);
  if (const auto* unknown = find(model, "unk_token")) rules.unknown = vocabulary.id(*unknown, "unk_token");
  return rules;
}

// The special tokens that a post-processor puts before a text; none of those known here changes it otherwise.
std::vector<std::string> leading_tokens(const Json& processor) {
  const auto type = processor.at("type").get<std::string>();
  std::vector<std::string> tokens;
  if (type == "Sequence") {
    for (const auto& each : processor.at("processors"))
      for (auto& token : leading_tokens(each)) tokens.push_back(std::move(token));
  } else if (type == "TemplateProcessing") {
    for (const auto& item : processor.at("single")) {
      if (!item.contains("SpecialToken")) break;
      const auto id = item["SpecialToken"].at("id").get<std::string>();
      for (const auto& token : processor.at("special_tokens").at(id).at("tokens")) tokens.push_back(token);
    }
  } else if (type != "ByteLevel") {
    throw invalid("post-processor '{}' is not supported; known: Sequence, TemplateProcessing, ByteLevel",
                  type);
  }
  return tokens;
}

class JsonTokenizer : public Tokenizer {
 public:
  JsonTokenizer(const Json& json, const Json& config) {
    const Json& model = json.at("model");
    // Files written before the type was have none, and are BPE.
    if (const auto type = model.value("type", model.contains("merges") ? "BPE" : "?"); type != "BPE")
      throw invalid("model '{}' is not supported; known: BPE", type);
    if (const auto* part = find(json, "normalizer")) normalizer_ = read_normalizer(*part);
    if (const auto* part = find(json, "pre_tokenizer")) cutter_ = read_cutter(*part);
    if (const auto* part = find(json, "decoder")) decoder_ = read_decoder(*part);

    const Json& vocab = model.at("vocab");
    if (!vocab.is_object()) throw failure("model vocab is {}: expected an object", vocab.type_name());
    const auto* added = find(json, "added_tokens");
    vocabulary_.limit = id_limit(vocab.size() + (added ? added->size() : 0));
    for (const auto& [token, id] : vocab.items()) vocabulary_.put(token, id, false);
    for (const Spelled& token : vocabulary_.all) vocabulary_.model.push_back(token.text);
    if (added)
      for (const auto& token : *added) add(token);
    const auto rules = read_rules(model, vocabulary_, cutter_ && cutter_->byte_level());
    bpe_ = std::make_unique<const Bpe>(vocabulary_.model, read_merges(model.at("merges")), rules, "model");
    read_bos(find(json, "post_processor"), config);
    digest_ = digest_of(json);
    vocabulary_.model = {};
    vocabulary_.ids = {};
  }

  std::vector<int32_t> encode(std::string_view text, bool parse_special) const override {
    if (const size_t at = invalid_utf8(text); at != text.npos)
      throw invalid("text of {} bytes: offset {}: not UTF-8 (byte 0x{:02x})", text.size(), at,
                    static_cast<uint8_t>(text[at]));
    std::vector<int32_t> ids;
    Bpe::Scratch scratch;
    written_.split(text, parse_special, [&](std::string_view part, int32_t id) {
      if (id >= 0) return ids.push_back(id);
      std::string changed;
      bool at_start = part.data() == text.data();
      if (normalizer_) {
        changed = part;
        normalizer_->apply(changed);
        part = changed;
      }
      normalized_.split(part, parse_special, [&](std::string_view plain, int32_t found) {
        if (found >= 0) {
          ids.push_back(found);
        } else {
          Pieces pieces{.list = {plain}, .at_start = at_start, .owned = {}};
          if (cutter_) cutter_->cut(pieces);
          for (const auto piece : pieces.list) bpe_->encode(piece, scratch, ids);
        }
        at_start = false;
      });
    });
    return ids;
  }

  std::string decode(const std::vector<int32_t>& ids) const override {
    std::vector<Spelled> tokens;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= size())
        throw invalid("token {} is {}: expected 0 to {}, the ids of this vocabulary", i, ids[i], size() - 1);
      tokens.push_back(vocabulary_.all[static_cast<size_t>(ids[i])]);
    }
    if (decoder_) decoder_->apply(tokens);
    std::string text;
    for (const auto& token : tokens) text += token.text;
    return text;
  }

  int32_t size() const override { return static_cast<int32_t>(vocabulary_.all.size()); }
  int32_t bos() const override { return bos_; }
  bool adds_bos() const override { return adds_bos_; }
  std::string digest() const override { return digest_; }

 private:
  void add(const Json& token) {
    const std::string text = token.at("content");
    vocabulary_.put(text, token.at("id"), true);
    AddedToken added{text,
                     token.at("id"),
                     token.value("special", false),
                     token.value("single_word", false),
                     token.value("lstrip", false),
                     token.value("rstrip", false)};
    const bool normalized = token.value("normalized", !added.special);
    if (normalized && normalizer_) normalizer_->apply(added.text);
    (normalized ? normalized_ : written_).add(std::move(added));
  }

  void read_bos(const Json* processor, const Json& config) {
    const auto leading = processor ? leading_tokens(*processor) : std::vector<std::string>();
    if (leading.size() > 1)
      throw invalid("post-processor: {} special tokens before the text ({}): expected one at most",
                    leading.size(), fmt::join(leading, ", "));
    if (const auto* token = find(config, "bos_token")) bos_ = vocabulary_.id(content_of(*token), "bos_token");
    if (!leading.empty()) {
      const int32_t id = vocabulary_.id(leading[0], "post-processor: special token");
      if (bos_ >= 0 && bos_ != id)
        throw failure("the post-processor begins with '{}', but bos_token is token {}", leading[0], bos_);
      bos_ = id;
    }
    const auto* asked = find(config, "add_bos_token");
    adds_bos_ = asked ? asked->get<bool>() : !leading.empty();
    if (adds_bos_ && bos_ < 0) throw failure("a BOS token is to be added, but none is named");
  }

  // Everything that changes ids; objects are in the order of their keys, whatever order the file has.
  std::string digest_of(const Json& json) const {
    Sha256 sha;
    sha.update("tokenizer.json");
    for (const char* key : {"model", "added_tokens", "normalizer", "pre_tokenizer"})
      sha.update(json.contains(key) ? json[key].dump() : "null");
    sha.update(fmt::format("{} {}", bos_, adds_bos_));
    return sha.hex();
  }

  std::unique_ptr<const Normalizer> normalizer_;
  std::unique_ptr<const Cutter> cutter_;
  std::unique_ptr<const Decoder> decoder_;
  std::unique_ptr<const Bpe> bpe_;
  Vocabulary vocabulary_;
  AddedTokens written_, normalized_;  // looked for before and after the normalizer
  int32_t bos_ = -1;
  bool adds_bos_ = false;
  std::string digest_;
};

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_json(const fs::path& file) {
  const auto beside = file.parent_path() / "tokenizer_config.json";
  fs::path reading = file;
  try {
    const Json json = read_json(file);
    Json config = Json::object();
    if (fs::exists(beside)) {
      reading = beside;
      config = read_json(beside);
      reading = file;
    }
    return std::make_unique<JsonTokenizer>(json, config);
  } catch (const Json::exception& e) {
    throw failure("{}: {}", reading.string(), e.what());
  } catch (const std::invalid_argument& e) {
    throw invalid("{}: {}. Give token ids (.npy) instead of text", file.string(), e.what());
  } catch (const std::runtime_error& e) {
    throw failure("{}: {}", file.string(), e.what());
  }
}

}  // namespace oscar
