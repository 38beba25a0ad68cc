#include "libdump/tokenizer/special_tokens.h"

#include <algorithm>

namespace oscar {

void SpecialTokens::add(std::string text, int32_t id) {
  if (text.empty()) return;
  const auto place = std::find_if(tokens_.begin(), tokens_.end(),
                                  [&](const Token& other) { return other.text.size() < text.size(); });
  tokens_.insert(place, {std::move(text), id});
  for (auto& list : by_first_byte_) list.clear();
  for (size_t i = 0; i < tokens_.size(); ++i)
    by_first_byte_[static_cast<uint8_t>(tokens_[i].text[0])].push_back(i);
}

// A vocabulary may have a thousand special tokens and a text none of them: one pass finds which are there at
// all.
std::vector<size_t> SpecialTokens::present(std::string_view text) const {
  auto waiting = by_first_byte_;
  std::vector<size_t> found;
  for (size_t at = 0; at < text.size(); ++at) {
    auto& candidates = waiting[static_cast<uint8_t>(text[at])];
    if (candidates.empty()) continue;
    std::erase_if(candidates, [&](size_t i) {
      if (!text.substr(at).starts_with(tokens_[i].text)) return false;
      found.push_back(i);
      return true;
    });
  }
  std::sort(found.begin(), found.end());
  return found;
}

void SpecialTokens::split(std::string_view text,
                          const std::function<void(std::string_view, int32_t)>& piece) const {
  struct Part {
    std::string_view text;
    int32_t id;
  };
  std::vector<Part> parts{{text, -1}}, next;
  for (const size_t i : present(text)) {
    const Token& token = tokens_[i];
    next.clear();
    for (const Part& part : parts) {
      if (part.id >= 0) {
        next.push_back(part);
        continue;
      }
      std::string_view rest = part.text;
      for (size_t at; (at = rest.find(token.text)) != rest.npos; rest.remove_prefix(at + token.text.size())) {
        if (at) next.push_back({rest.substr(0, at), -1});
        next.push_back({rest.substr(at, token.text.size()), token.id});
      }
      if (!rest.empty()) next.push_back({rest, -1});
    }
    parts.swap(next);
  }
  for (const Part& part : parts)
    if (!part.text.empty()) piece(part.text, part.id);
}

}  // namespace oscar
