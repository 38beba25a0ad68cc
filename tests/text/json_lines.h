// The lines that tests/golden/make_tokens_json.py gave to the `tokenizers` package, made again.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "libdump/tokenizer/utf8.h"

namespace oscar::test {

using Characters = std::vector<uint32_t>;

inline Characters characters_of(std::string_view text) {
  Characters out;
  for (size_t at = 0; at < text.size();) out.push_back(next_code_point(text, at));
  return out;
}

class JsonLines {
 public:
  JsonLines(const std::vector<std::string>& seeds, std::vector<std::string> essays,
            const std::vector<std::string>& added)
      : essays_(std::move(essays)) {
    for (const auto& text : seeds) seeds_.push_back(characters_of(text));
    for (const auto& text : added) added_.push_back(characters_of(text));
  }

  std::string line(size_t i) {
    const size_t kind = i % 6;
    if (kind == 0) return essays_[next(essays_.size())];
    if (kind == 1) return text_of(seeds_[next(seeds_.size())], 0, ~size_t{0});
    if (kind == 2) {
      const size_t first = next(essays_.size() - 3);
      return essays_[first] + "\n" + essays_[first + 1] + "\n" + essays_[first + 2];
    }
    std::string text;
    for (size_t parts = 1 + next(8); parts--;) {
      text += kind == 3 && next(2) ? token() : kind == 4 ? character() : slice();
      text += between[next(std::size(between))];
    }
    return text;
  }

 private:
  static constexpr std::string_view between[] = {"",
                                                 "",
                                                 " ",
                                                 "  ",
                                                 "\n",
                                                 "\t",
                                                 "\r\n",
                                                 " \n\n ",
                                                 "\u00a0",
                                                 "\u3000",
                                                 "\u2581",
                                                 "\u2581\u2581",
                                                 "'s",
                                                 "'LL",
                                                 "12345",
                                                 ".",
                                                 std::string_view("\0", 1),
                                                 "e\u0301",
                                                 "\u180e",
                                                 "\u2028",
                                                 "</",
                                                 "<0x0A>"};
  static constexpr uint32_t scatter[][2] = {{0x20, 0x250},     {0x20, 0x3000},     {0x3000, 0xd800},
                                            {0xe000, 0x20000}, {0x1f300, 0x1fb00}, {0x20000, 0x110000}};

  size_t next(size_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % n;
  }
  static std::string text_of(const Characters& all, size_t begin, size_t count) {
    std::string text;
    for (size_t i = begin; i < all.size() && i - begin < count; ++i) text += to_utf8(all[i]);
    return text;
  }
  std::string slice() {
    const auto& seed = seeds_[next(seeds_.size())];
    const size_t begin = next(seed.size());
    return text_of(seed, begin, 1 + next(40));
  }
  std::string token() {
    const auto& token = added_[next(added_.size())];
    const size_t cut = next(4) == 0 ? next(token.size()) : token.size();
    return text_of(token, 0, cut) + text_of(token, cut + 1, ~size_t{0});
  }
  std::string character() {
    const auto& [first, end] = scatter[next(std::size(scatter))];
    return to_utf8(first + static_cast<uint32_t>(next(end - first)));
  }

  std::vector<std::string> essays_;
  std::vector<Characters> seeds_, added_;
  uint64_t state_ = 1;
};

}  // namespace oscar::test
