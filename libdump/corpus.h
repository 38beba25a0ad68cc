// Where calibration text comes from: documents of text, or of token ids.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

namespace oscar {

// One document: text still to be tokenized, or ids as they are.
using Document = std::variant<std::string, std::vector<int32_t>>;

struct CorpusOptions {
  // .jsonl: the first of these fields that a line has; `messages` are refused here until chat formats exist for the model.
  std::vector<std::string> fields{"text", "prompt"};
  std::string paragraph_separator;   // .txt: "" one document a file; otherwise split on it
};

// By extension: .txt (or any other text, or "-" for stdin), .jsonl, .npy (1-D one document, 2-D one a row). An empty file, invalid
// UTF-8 (with offset), a line that is not JSON (with line number), negative ids: std::invalid_argument.
std::vector<Document> read_corpus(const std::vector<std::filesystem::path>& files, const CorpusOptions& options);

}  // namespace oscar
