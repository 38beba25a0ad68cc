#include "libdump/calibration_text.h"

#include <algorithm>

#include "formats/error.h"
#include "libdump/chat_format.h"

namespace oscar {
namespace {

bool is_conversation(const Document& document) {
  return std::holds_alternative<Conversation>(document);
}

int64_t to_ids(std::vector<Document>& corpus, const ChatEncoder& encoder) {
  int64_t conversations = 0;
  for (Document& document : corpus) {
    if (!is_conversation(document)) continue;
    document.emplace<std::vector<int32_t>>(encoder.encode(std::get<Conversation>(document), document.source));
    document.was_conversation = true;
    ++conversations;
  }
  return conversations;
}

}  // namespace

CalibrationText read_calibration_text(const Model& model, const std::vector<std::filesystem::path>& text,
                                      const std::vector<std::filesystem::path>& probe,
                                      const CorpusOptions& corpus_options, SequenceOptions options,
                                      std::optional<BosPolicy> bos, const std::string& chat_format) {
  CalibrationText out;
  auto corpus = read_corpus(text, corpus_options);
  auto probe_corpus = probe.empty() ? std::vector<Document>{} : read_corpus(probe, corpus_options);
  const auto is_text = [](const Document& document) {
    return !std::holds_alternative<std::vector<int32_t>>(document);
  };
  const bool chats =
      std::ranges::any_of(corpus, is_conversation) || std::ranges::any_of(probe_corpus, is_conversation);
  if (!chats && !chat_format.empty())
    throw invalid(
        "--chat-format: the text has no conversations (a list of messages in a line of .jsonl): leave the "
        "option out");
  const bool any_text = std::ranges::any_of(corpus, is_text) || std::ranges::any_of(probe_corpus, is_text);

  options.vocabulary = model.config().vocabulary;
  if (any_text) {
    out.tokenizer = model.tokenizer();
    if (out.tokenizer->size() > options.vocabulary) {
      throw failure("{}: the tokenizer has {} tokens, the embedding {}: the file is inconsistent",
                    model.config().path, out.tokenizer->size(), options.vocabulary);
    }
    options.bos_policy = bos.value_or(out.tokenizer->adds_bos() ? BosPolicy::PerSequence : BosPolicy::None);
    options.bos = out.tokenizer->bos();
    if (options.bos_policy != BosPolicy::None && options.bos < 0) {
      throw invalid("--bos: {} has no BOS token: expected --bos none", model.config().path);
    }
    out.bos_policy = name(options.bos_policy);
    if (chats) {
      const std::string& path = model.config().path;
      const ChatFormat& format = chat_format.empty() ? recognise_chat_format(read_chat_template(path), path)
                                                     : find_chat_format(chat_format);
      const ChatEncoder encoder(format, *out.tokenizer, bos != BosPolicy::None);
      out.chat_format = format.name;
      out.conversations = to_ids(corpus, encoder) + to_ids(probe_corpus, encoder);
    }
  } else {
    if (bos && *bos != BosPolicy::None)
      throw invalid("--bos: token ids are taken as they are, no BOS is added to them: leave the option out");
    out.bos_policy = "as given";
  }
  out.sequences = make_sequences(
      corpus, probe_corpus, [&](const std::string& document) { return out.tokenizer->encode(document); },
      options);
  return out;
}

}  // namespace oscar
