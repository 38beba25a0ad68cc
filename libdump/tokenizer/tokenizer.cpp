#include "libdump/tokenizer/tokenizer.h"

#include "formats/error.h"
#include "formats/sha256.h"
#include "libdump/tokenizer/bpe.h"
#include "libdump/tokenizer/pretokenizer.h"
#include "libdump/tokenizer/special_tokens.h"
#include "libdump/tokenizer/utf8.h"

namespace oscar {
namespace {

std::vector<BpeMerge> merges_of(const BpeVocabulary& vocabulary, const std::string& where) {
  std::vector<BpeMerge> merges;
  merges.reserve(vocabulary.merges.size());
  for (const auto& merge : vocabulary.merges) merges.push_back(split_merge(merge, merges.size(), where));
  return merges;
}

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(const BpeVocabulary& vocabulary, const std::string& where)
      : pretokenizer_(vocabulary.pretokenizer),
        bpe_(vocabulary.tokens, merges_of(vocabulary, where),
             {.whole_words = pretokenizer_.whole_words(), .gaps = true}, where),
        bos_(vocabulary.bos) {
    const auto& types = vocabulary.types;
    if (!types.empty() && types.size() != vocabulary.tokens.size())
      throw failure("{}: {} tokens, but {} token types", where, vocabulary.tokens.size(), types.size());
    if (bos_ < -1 || bos_ >= static_cast<int32_t>(vocabulary.tokens.size()))
      throw failure("{}: the BOS token is {}, the vocabulary has {}", where, bos_, vocabulary.tokens.size());
    adds_bos_ = vocabulary.adds_bos.value_or(bos_ >= 0 && pretokenizer_.adds_bos());
    if (adds_bos_ && bos_ < 0) throw failure("{}: a BOS token is to be added, but none is named", where);

    pieces_.reserve(vocabulary.tokens.size());
    for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
      const std::string& token = vocabulary.tokens[i];
      const auto id = static_cast<int32_t>(i);
      const int64_t type = types.empty() ? BpeVocabulary::Normal : types[i];
      if (type == BpeVocabulary::UserDefined) user_defined_.add(token, id);
      if (type == BpeVocabulary::UserDefined || type == BpeVocabulary::Control ||
          type == BpeVocabulary::Unknown)
        special_.add(token, id);
      const bool spelled = type == BpeVocabulary::Normal || type == BpeVocabulary::Byte;
      pieces_.push_back(spelled ? bytes_of_token(token).value_or(token) : token);
    }
    digest_ = digest_of(vocabulary);
  }

  std::vector<int32_t> encode(std::string_view text, bool parse_special) const override {
    if (const size_t at = invalid_utf8(text); at != text.npos)
      throw invalid("text of {} bytes: offset {}: not UTF-8 (byte 0x{:02x})", text.size(), at,
                    static_cast<uint8_t>(text[at]));
    std::vector<int32_t> ids;
    Bpe::Scratch scratch;
    (parse_special ? special_ : user_defined_).split(text, [&](std::string_view piece, int32_t id) {
      if (id >= 0) return ids.push_back(id);
      pretokenizer_.split(piece, [&](std::string_view word) { bpe_.encode(word, scratch, ids); });
    });
    return ids;
  }

  std::string decode(const std::vector<int32_t>& ids) const override {
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= size())
        throw invalid("token {} is {}: expected 0 to {}, the ids of this vocabulary", i, ids[i], size() - 1);
      text += pieces_[static_cast<size_t>(ids[i])];
    }
    return text;
  }

  int32_t size() const override { return static_cast<int32_t>(pieces_.size()); }
  int32_t bos() const override { return bos_; }
  bool adds_bos() const override { return adds_bos_; }
  std::string digest() const override { return digest_; }

 private:
  // Each text is preceded by its length, so that no two vocabularies run into the same bytes.
  std::string digest_of(const BpeVocabulary& vocabulary) const {
    Sha256 sha;
    const auto number = [&](int64_t n) { sha.update(std::as_bytes(std::span(&n, 1))); };
    const auto text = [&](std::string_view t) {
      number(static_cast<int64_t>(t.size()));
      sha.update(t);
    };
    text("bpe");
    text(pretokenizer_.name());
    for (const auto* list : {&vocabulary.tokens, &vocabulary.merges}) {
      number(static_cast<int64_t>(list->size()));
      for (const auto& entry : *list) text(entry);
    }
    for (size_t i = 0; i < vocabulary.tokens.size(); ++i)
      number(vocabulary.types.empty() ? int64_t{BpeVocabulary::Normal} : vocabulary.types[i]);
    number(bos_);
    number(adds_bos_);
    return sha.hex();
  }

  Pretokenizer pretokenizer_;
  Bpe bpe_;
  SpecialTokens special_, user_defined_;
  std::vector<std::string> pieces_;  // by id, decoded
  int32_t bos_;
  bool adds_bos_ = false;
  std::string digest_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(const BpeVocabulary& vocabulary, const std::string& where) {
  return std::make_unique<BpeTokenizer>(vocabulary, where);
}

std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufFile& file) {
  const std::string where = file.file()->path().string();
  const std::string key = "tokenizer.ggml.";
  const auto model = file.text(key + "model");
  if (!model)
    throw invalid("{}: {}model is absent: the file has no tokenizer. Give token ids (.npy)", where, key);
  if (*model != "gpt2") {
    throw invalid(
        "{}: {}model is '{}': expected 'gpt2' (byte-level BPE), the only kind supported. Give token ids "
        "(.npy)",
        where, key, *model);
  }
  BpeVocabulary vocabulary;
  const auto* tokens = file.texts(key + "tokens");
  const auto* merges = file.texts(key + "merges");
  if (!tokens || tokens->empty()) throw failure("{}: {}tokens is absent or empty", where, key);
  if (!merges) throw failure("{}: {}merges is absent: 'gpt2' needs them", where, key);
  vocabulary.tokens = *tokens;
  vocabulary.merges = *merges;
  if (const auto* types = file.integers(key + "token_type")) vocabulary.types = *types;
  vocabulary.pretokenizer = file.text(key + "pre").value_or("default");
  const int64_t bos = file.integer(key + "bos_token_id").value_or(-1);
  if (bos < -1 || bos >= static_cast<int64_t>(tokens->size()))
    throw failure("{}: {}bos_token_id is {}, the vocabulary has {} tokens", where, key, bos, tokens->size());
  vocabulary.bos = static_cast<int32_t>(bos);
  vocabulary.adds_bos = file.boolean(key + "add_bos_token");
  return make_bpe_tokenizer(vocabulary, where);
}

}  // namespace oscar
