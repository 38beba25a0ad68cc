// From the files on a command line to sequences: corpus, tokenizer, chat format and BOS policy in one place.
#pragma once
#include <optional>

#include "libdump/models/model.h"
#include "libdump/sequences.h"
#include "libdump/tokenizer/tokenizer.h"

namespace oscar {

struct CalibrationText {
  SequenceSet sequences;
  std::unique_ptr<Tokenizer> tokenizer;  // nullptr when every document was token ids
  std::string bos_policy;                // as provenance records it
  std::string chat_format;               // of the conversations; "": there are none
  int64_t conversations = 0;             // probes included
};

// `bos`: nullopt takes what the tokenizer asks for, one BOS per sequence or none. A policy that needs a BOS
// which the tokenizer does not have is std::invalid_argument. A conversation begins with the BOS that its
// format says, unless `bos` is None.
// `chat_format`: a name, or "" for the one of the checkpoint's chat template; a name without conversations
// is std::invalid_argument.
CalibrationText read_calibration_text(const Model& model, const std::vector<std::filesystem::path>& text,
                                      const std::vector<std::filesystem::path>& probe,
                                      const CorpusOptions& corpus, SequenceOptions options,
                                      std::optional<BosPolicy> bos, const std::string& chat_format = "");

}  // namespace oscar
