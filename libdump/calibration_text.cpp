#include "libdump/calibration_text.h"

#include <algorithm>

#include "formats/error.h"

namespace oscar {

CalibrationText read_calibration_text(const Model& model, const std::vector<std::filesystem::path>& text,
                                      const std::vector<std::filesystem::path>& probe,
                                      const CorpusOptions& corpus_options, SequenceOptions options,
                                      std::optional<BosPolicy> bos) {
  CalibrationText out;
  const auto corpus = read_corpus(text, corpus_options);
  const auto probe_corpus = probe.empty() ? std::vector<Document>{} : read_corpus(probe, corpus_options);
  const auto is_text = [](const Document& document) { return std::holds_alternative<std::string>(document); };
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
