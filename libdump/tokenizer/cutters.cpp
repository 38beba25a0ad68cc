#include "libdump/tokenizer/cutters.h"

#include "libdump/tokenizer/json_part.h"
#include "libdump/tokenizer/text_pattern.h"

namespace oscar {
namespace {

using Json = nlohmann::json;
using Made = std::unique_ptr<const Cutter>;

// A text is matches and what lies between them; a behaviour says what of that becomes a piece.
struct Part {
  size_t begin, end;
  bool match;
};
using Parts = std::vector<Part>;

Part joined(const Part& left, const Part& right) {
  return {left.begin, right.end, right.match};
}

void isolated(Parts&) {}
void removed(Parts& parts) {
  std::erase_if(parts, [](const Part& part) { return part.match; });
}
void contiguous(Parts& parts) {
  Parts out;
  for (const Part& part : parts) {
    if (!out.empty() && out.back().match == part.match)
      out.back() = joined(out.back(), part);
    else
      out.push_back(part);
  }
  parts.swap(out);
}
// A match goes to its neighbour, unless that is a match too.
void merged_with_previous(Parts& parts) {
  Parts out;
  bool after_match = false;
  for (const Part& part : parts) {
    if (part.match && !after_match && !out.empty())
      out.back() = joined(out.back(), part);
    else
      out.push_back(part);
    after_match = part.match;
  }
  parts.swap(out);
}
void merged_with_next(Parts& parts) {
  Parts out;
  bool before_match = false;
  for (size_t i = parts.size(); i--;) {
    if (parts[i].match && !before_match && !out.empty())
      out.back() = joined(parts[i], out.back());
    else
      out.push_back(parts[i]);
    before_match = parts[i].match;
  }
  parts.assign(out.rbegin(), out.rend());
}

struct Behaviour {
  std::string_view name;
  void (*apply)(Parts&);
};
constexpr Behaviour behaviours[] = {{"Isolated", isolated},
                                    {"Removed", removed},
                                    {"Contiguous", contiguous},
                                    {"MergedWithPrevious", merged_with_previous},
                                    {"MergedWithNext", merged_with_next}};

const Behaviour& behaviour(std::string_view name) {
  for (const Behaviour& each : behaviours)
    if (each.name == name) return each;
  throw invalid("pre-tokenizer Split: behavior '{}' is not known", name);
}

struct Split : Cutter {
  explicit Split(const Json& part)
      : Split(TextPattern(part.at("pattern")), behaviour(part.at("behavior").get<std::string>()),
              part.value("invert", false)) {}
  Split(TextPattern what, const Behaviour& then, bool inverted)
      : pattern(std::move(what)), apply(then.apply), invert(inverted) {}

  void cut(Pieces& pieces) const override {
    std::vector<std::string_view> out;
    out.reserve(pieces.list.size());
    Parts parts;
    for (const auto piece : pieces.list) {
      parts.clear();
      size_t done = 0;
      pattern.each(piece, [&](size_t begin, size_t end) {
        if (done < begin) parts.push_back({done, begin, invert});
        parts.push_back({begin, end, !invert});
        done = end;
      });
      if (done < piece.size()) parts.push_back({done, piece.size(), invert});
      apply(parts);
      for (const Part& part : parts)
        if (part.begin < part.end) out.push_back(piece.substr(part.begin, part.end - part.begin));
    }
    pieces.list.swap(out);
  }
  TextPattern pattern;
  void (*apply)(Parts&);
  bool invert;
};

struct Digits : Split {
  explicit Digits(const Json& part)
      : Split(TextPattern::oniguruma("\\p{N}"),
              behaviour(part.value("individual_digits", false) ? "Isolated" : "Contiguous"), false) {}
};

std::string_view with_prefix(std::string_view piece, std::string_view prefix, Pieces& pieces) {
  return piece.starts_with(prefix) ? piece : pieces.owned.emplace_back(prefix).append(piece);
}

struct ByteLevel : Cutter {
  explicit ByteLevel(const Json& part) : prefix_space(part.value("add_prefix_space", true)) {
    if (!part.value("use_regex", true)) return;
    words = std::make_unique<const Split>(
        TextPattern::oniguruma(
            R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"),
        behaviour("Isolated"), false);
  }
  void cut(Pieces& pieces) const override {
    if (prefix_space)
      for (auto& piece : pieces.list) piece = with_prefix(piece, " ", pieces);
    if (words) words->cut(pieces);
  }
  bool byte_level() const override { return true; }
  bool prefix_space;
  std::unique_ptr<const Split> words;  // GPT-2's, where use_regex
};

struct Metaspace : Cutter {
  explicit Metaspace(const Json& part)
      : mark(part.at("replacement")),
        scheme(part.value("prepend_scheme", part.value("add_prefix_space", true) ? "always" : "never")),
        space(Json{{"String", " "}}) {
    if (scheme != "always" && scheme != "first" && scheme != "never")
      throw invalid("pre-tokenizer Metaspace: prepend_scheme '{}' is not known", scheme);
    if (part.value("split", true))
      words = std::make_unique<const Split>(TextPattern(Json{{"String", mark}}), behaviour("MergedWithNext"),
                                            false);
  }
  void cut(Pieces& pieces) const override {
    for (size_t i = 0; i < pieces.list.size(); ++i) {
      auto& piece = pieces.list[i];
      piece = pieces.owned.emplace_back(space.replaced(piece, mark));
      if (scheme == "always" || (scheme == "first" && i == 0 && pieces.at_start))
        piece = with_prefix(piece, mark, pieces);
    }
    if (words) words->cut(pieces);
  }
  std::string mark, scheme;
  TextPattern space;
  std::unique_ptr<const Split> words;
};

struct Sequence : Cutter {
  explicit Sequence(const Json& part) {
    for (const auto& each : part.at("pretokenizers")) {
      if (byte_level()) throw invalid("a pre-tokenizer after ByteLevel is not supported");
      parts.push_back(read_cutter(each));
    }
  }
  void cut(Pieces& pieces) const override {
    for (const auto& part : parts) part->cut(pieces);
  }
  bool byte_level() const override { return !parts.empty() && parts.back()->byte_level(); }
  std::vector<Made> parts;
};

template <typename Kind>
Made make(const Json& part) {
  return std::make_unique<const Kind>(part);
}
constexpr PartKind<Cutter> kinds[] = {
    {"Sequence", make<Sequence>}, {"Split", make<Split>},         {"ByteLevel", make<ByteLevel>},
    {"Digits", make<Digits>},     {"Metaspace", make<Metaspace>},
};

}  // namespace

Made read_cutter(const Json& part) {
  return read_part<Cutter>(part, kinds, "pre-tokenizer");
}

}  // namespace oscar
