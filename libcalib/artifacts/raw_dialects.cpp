#include "libcalib/artifacts/raw_dialects.h"

#include "formats/error.h"

namespace oscar {
namespace {

constexpr RawDialect kDialects[] = {
    {"engine", "a serving engine or oscar-dump --save-qkv", IdSpace::Global, "the warm-up of the server",
     true, false},
    {"nova", "NOVA-KV's dump_qkv.py", IdSpace::Local, "the first tokens of chunk 1 again", false, false},
    {"staged", "the llama.cpp rotation pipeline", IdSpace::Global, "", false, true},
};
constexpr const RawDialect &kEngine = kDialects[0], &kNova = kDialects[1], &kStaged = kDialects[2];

bool inside(const RawClues& c) {
  return c.map && static_cast<size_t>(c.numbers.back()) < c.map->size();
}

struct Guess {
  const RawDialect* dialect;
  std::string why;
  std::string doubt{};  // why the numbers could as well be of the other kind; empty: they could not
};

Guess guess(const RawClues& c, bool dense, std::optional<IdSpace> asked) {
  if (c.stage)
    return {&kStaged, "it is qkv_dumps/llamacpp",
            c.map ? "that pipeline numbers by global id and writes no layer_map.json, but there is one" : ""};
  if (c.lengths && c.map)
    return {
        asked == IdSpace::Local ? &kNova : &kEngine, "it has seq_lens and a layer_map.json",
        "seq_lens are of dumps by global id, layer_map.json is of dumps by local number, and both are there"};
  if (c.lengths) return {&kEngine, "it has seq_lens and no layer_map.json"};
  if (c.map)
    return {&kNova, "it has a layer_map.json and no seq_lens",
            inside(c) ? ""
                      : fmt::format("layer_map.json has {} entries and there is layer_{}", c.map->size(),
                                    c.numbers.back())};
  if (c.dtype == DType::F16)
    return {&kNova, "rows are F16, without seq_lens",
            dense ? ""
                  : fmt::format("no seq_lens, no layer_map.json, and numbers that are not 0 to {}",
                                c.numbers.size() - 1)};
  return {&kEngine, fmt::format("rows are {}, and dumps by local number are always F16", info(c.dtype).name)};
}

// One layer under both readings, one where they differ if there is any.
std::string both_readings(const RawClues& c) {
  const auto local = [&](int number) { return (*c.map)[static_cast<size_t>(number)]; };
  for (const int number : c.numbers) {
    if (c.map && static_cast<size_t>(number) < c.map->size() && local(number) == number &&
        number != c.numbers.back())
      continue;
    const std::string text =
        !c.map ? "the one with this number among those with full attention, with an id that only a "
                 "layer_map.json says"
        : static_cast<size_t>(number) >= c.map->size() ? "none, as the map ends before it"
                                                       : fmt::format("layer {} of the model", local(number));
    return fmt::format("as a global id layer_{0} is layer {0} of the model, as a local number it is {1}",
                       number, text);
  }
  return "";
}

std::vector<int> global_ids(const std::string& where, const RawClues& c, bool dense) {
  if (!c.map && dense) return c.numbers;
  if (!c.map)
    throw invalid(
        "{}: local layer numbers without a layer_map.json, and not 0 to {}: their global ids are "
        "unknown. Add layer_map.json {{\"local_to_global\": [ids]}}, or, if they are global ids, say "
        "--id-space global",
        where, c.numbers.size() - 1);
  if (!inside(c))
    throw invalid(
        "{}: layer_map.json has {} entries and none for layer_{}: if the numbers are global ids, say "
        "--id-space global",
        where, c.map->size(), c.numbers.back());
  std::vector<int> ids;
  for (const int number : c.numbers) ids.push_back((*c.map)[static_cast<size_t>(number)]);
  return ids;
}

}  // namespace

std::string_view id_space_name(IdSpace space) {
  return space == IdSpace::Global ? "global" : "local";
}

IdSpace parse_id_space(std::string_view text) {
  for (const IdSpace space : {IdSpace::Global, IdSpace::Local}) {
    if (text == id_space_name(space)) return space;
  }
  throw invalid("--id-space: expected global or local, found '{}'", text);
}

std::span<const RawDialect> raw_dialect_table() {
  return kDialects;
}

RawReading read_clues(const std::string& where, const RawClues& c, std::optional<IdSpace> asked) {
  const bool dense = static_cast<size_t>(c.numbers.back()) + 1 == c.numbers.size();
  const Guess found = guess(c, dense, asked);
  if (!found.doubt.empty() && !asked)
    throw invalid(
        "{}: what the layer numbers mean cannot be told: {}; {}. Choose with --id-space global|local", where,
        found.doubt, both_readings(c));
  RawReading r;
  r.dialect = found.dialect;
  r.id_space = asked.value_or(found.dialect->ids);
  r.layers = r.id_space == IdSpace::Global ? c.numbers : global_ids(where, c, dense);
  r.notes.push_back(fmt::format("a raw dump of {} ({}): {}", r.dialect->writer, r.dialect->name, found.why));
  r.notes.push_back(fmt::format("layer numbers are {}{}",
                                r.id_space == IdSpace::Global ? "global ids" : "local",
                                asked ? fmt::format(", as --id-space {} says", id_space_name(*asked))
                                : r.id_space == IdSpace::Local && c.map ? ", mapped by layer_map.json"
                                                                        : ""));
  if (c.map && r.id_space == IdSpace::Global) r.notes.push_back("layer_map.json is not followed");
  if (c.map && r.id_space == IdSpace::Local && c.map->size() != c.numbers.size())
    r.notes.push_back(
        fmt::format("warning: layer_map.json has {} layers, the dump {}", c.map->size(), c.numbers.size()));
  if (dense && !c.map && (asked == IdSpace::Local || (!c.lengths && !c.stage && !asked)))
    r.notes.push_back(
        fmt::format("warning: the numbers 0 to {} are taken as ids of the model: local and global are the "
                    "same only if every layer has full attention",
                    c.numbers.back()));
  if (!dense && !c.map && !c.lengths && !c.stage && !asked)
    r.notes.push_back(
        "warning: no seq_lens and no layer_map.json: the numbers are taken as global ids by the dtype of "
        "the rows alone");
  r.notes.push_back(r.dialect->first_chunk.empty()
                        ? "every chunk is used"
                        : fmt::format("chunk 0, {}, is skipped if there is one", r.dialect->first_chunk));
  if (!c.lengths && !r.dialect->one_prompt)
    r.notes.push_back("no seq_lens: a chunk is taken as one sequence" +
                      std::string(r.dialect == &kEngine ? ", though a server may mix requests in one" : ""));
  return r;
}

}  // namespace oscar
