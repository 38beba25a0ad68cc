// Who dumps q, k and v as layer_<number>/{q,k,v}/<chunk>.pt, and what <number> and <chunk> mean there. The
// folders look alike, so what a number means is told by what lies beside the rows, or asked for.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/dtype.h"

namespace oscar {

// Global: <number> is the layer's index in the decoder. Local: layers with full attention are counted from 0,
// and a layer_map.json says their global ids; a model with full attention in every layer has none, as both
// are the same.
enum class IdSpace { Global, Local };
std::string_view id_space_name(IdSpace space);  // "global", "local"
IdSpace parse_id_space(std::string_view text);  // std::invalid_argument for another word

struct RawDialect {
  std::string_view name;
  std::string_view writer;       // in a sentence: "a raw dump of …"
  IdSpace ids;                   // what <number> is
  std::string_view first_chunk;  // what chunk 0 holds, which is skipped; empty: it has none
  bool cut_last;                 // a token budget may end the last chunk inside the lengths that it lists
  bool one_prompt;               // a chunk is one sequence
};
std::span<const RawDialect> raw_dialect_table();

// What lies in a folder, as far as it tells the dialects apart.
struct RawClues {
  std::vector<int> numbers;             // of the layers, ascending, at least one
  bool lengths = false;                 // seq_lens/
  bool stage = false;                   // it is qkv_dumps/llamacpp of a staged run
  std::optional<std::vector<int>> map;  // local_to_global of layer_map.json, ascending
  DType dtype = DType::BF16;            // of the rows
};
struct RawReading {
  const RawDialect* dialect = nullptr;
  IdSpace id_space = IdSpace::Global;  // what the numbers were taken for
  std::vector<int> layers;             // ascending global ids, one a number
  std::vector<std::string> notes;      // what was found and why, sentences for the user
};
// `asked` decides where it is given, against the clues too. std::invalid_argument, with both readings, where
// the clues do not decide; and for local numbers whose global ids nothing says. `where` begins its message.
RawReading read_clues(const std::string& where, const RawClues& clues, std::optional<IdSpace> asked);

}  // namespace oscar
