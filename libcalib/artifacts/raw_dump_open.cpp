#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>

#include "formats/atomic_write.h"
#include "formats/error.h"
#include "formats/pt.h"
#include "libcalib/artifacts/raw_dump_parts.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

using Names = std::vector<std::string>;  // of files that are not read

// The number in prefix<number>suffix, written without leading zeros.
std::optional<int> number_in(std::string_view name, std::string_view prefix, std::string_view suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size())
    return std::nullopt;
  const auto text = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return text == std::to_string(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

// Numbers of the entries prefix<number>suffix, ascending; others are reported, but those that `known` names.
std::vector<int64_t> numbered(const fs::path& directory, std::string_view prefix, std::string_view suffix,
                              std::initializer_list<std::string_view> known, Names& others) {
  std::vector<int64_t> numbers;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const auto number = number_in(name, prefix, suffix);
    if (number && it->is_directory() == suffix.empty())
      numbers.push_back(*number);
    else if (std::ranges::find(known, name) == known.end())
      others.push_back((directory.filename() / name).string());
  }
  if (error) throw failure("{}: {}", directory.string(), error.message());
  std::ranges::sort(numbers);
  return numbers;
}

fs::path layer_path(const RawDump& dump, int number) {
  return dump.directory / fmt::format("layer_{}", number);
}

std::optional<std::vector<int>> layer_map(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  const auto map = nlohmann::json::parse(read_text(path), nullptr, false);
  const auto ids = map.is_object() ? map.value("local_to_global", nlohmann::json()) : nlohmann::json();
  std::vector<int> global;
  for (const auto& id : ids.is_array() ? ids : nlohmann::json::array()) {
    if (!id.is_number_integer() || id < 0 || id > (1 << 30) || (!global.empty() && id <= global.back()))
      throw failure("{}: expected global ids that ascend, found {}", path.string(), id.dump());
    global.push_back(id.get<int>());
  }
  if (global.empty()) throw failure("{}: expected {{\"local_to_global\": [ids]}}", path.string());
  return global;
}

// Chunks of every layer's q, k and v, which must be the same, without 0; `zero` says that there was one.
void read_chunks(RawDump& dump, bool& zero, Names& others) {
  for (const int layer : dump.numbers) {
    // No name has a slash: all but the known ones are reported.
    numbered(layer_path(dump, layer), "", "/", {"q", "k", "v", "seq_lens"}, others);
    for (const char* name : {"q", "k", "v"}) {
      const fs::path path = layer_path(dump, layer) / name;
      auto chunks = numbered(path, "", ".pt", {}, others);
      zero |= std::erase(chunks, 0) > 0;
      if (layer == dump.numbers[0] && name == std::string_view("q"))
        dump.chunks = std::move(chunks);
      else if (chunks != dump.chunks) {
        throw failure("{}: has {} chunks where layer_{}/q has {}, or others: the dump is not whole",
                      path.string(), chunks.size(), dump.numbers[0], dump.chunks.size());
      }
    }
  }
  if (dump.chunks.empty())
    throw failure("{}: no chunk{}", dump.directory.string(), zero ? " but the warm-up chunk 0" : "");
}

std::vector<int64_t> read_lengths(const fs::path& path) {
  const PtValue value = read_pt(path);
  const Tensor& tensor = value.tensor(path.string());
  if (tensor.shape.size() != 1 || (tensor.dtype != DType::I32 && tensor.dtype != DType::I64))
    throw failure("{}: expected I32 [sequences], found {} {}", path.string(), info(tensor.dtype).name,
                  to_string(tensor.shape));
  auto lengths = tensor.integers();
  if (std::ranges::any_of(lengths, [](int64_t n) { return n < 1 || n > (int64_t{1} << 40); }))
    throw failure("{}: expected lengths of at least one token", path.string());
  return lengths;
}

// From layer_<number>/seq_lens/ (engines, staged) or seq_lens/ (ours), which must agree. Empty: there are
// none.
std::vector<std::vector<int64_t>> listed_lengths(const RawDump& dump, Names& others) {
  std::vector<fs::path> folders;
  if (const fs::path path = dump.directory / "seq_lens"; fs::is_directory(path)) folders.push_back(path);
  const size_t shared = folders.size();
  for (const int layer : dump.numbers) {
    if (const fs::path path = layer_path(dump, layer) / "seq_lens"; fs::is_directory(path))
      folders.push_back(path);
  }
  if (folders.size() != shared && folders.size() != shared + dump.numbers.size())
    throw failure("{}: some layers have seq_lens and some have not: the dump is not whole",
                  dump.directory.string());
  std::vector<std::vector<int64_t>> lengths;
  for (const fs::path& folder : folders) {
    const auto chunks = numbered(folder, "", ".pt", {}, others);
    for (size_t i = 0; i < dump.chunks.size(); ++i) {
      if (std::ranges::find(chunks, dump.chunks[i]) == chunks.end())
        throw failure("{}: nothing for chunk {}: the dump is not whole", folder.string(), dump.chunks[i]);
      auto each = read_lengths(folder / fmt::format("{}.pt", dump.chunks[i]));
      if (folder == folders[0])
        lengths.push_back(std::move(each));
      else if (each != lengths[i])
        throw failure("{}: chunk {} has other lengths than in {}", folder.string(), dump.chunks[i],
                      folders[0].string());
    }
  }
  return lengths;
}

// The lengths of chunk i against its tokens.
void fit_lengths(RawDump& dump, size_t i, int64_t tokens) {
  auto& lengths = dump.chunk_lengths[i];
  const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const bool last = i + 1 == dump.chunks.size();
  if (sum < tokens || (sum > tokens && !(last && dump.dialect->cut_last)))
    throw failure("{}: chunk {}: seq_lens sum to {} tokens, the rows are {}", dump.directory.string(),
                  dump.chunks[i], sum, tokens);
  if (dump.dialect->one_prompt && lengths.size() != 1)
    throw failure("{}: chunk {}: expected one sequence, as this pipeline has one prompt a chunk, found {}",
                  dump.directory.string(), dump.chunks[i], lengths.size());
  if (sum == tokens) return;
  dump.notes.push_back(fmt::format(
      "chunk {} lists {} tokens and holds {}: the token budget cut it, and its lengths are cut too",
      dump.chunks[i], sum, tokens));
  for (int64_t over = sum - tokens; over > 0;) {
    const int64_t cut = std::min(over, lengths.back());
    lengths.back() -= cut;
    over -= cut;
    if (lengths.back() == 0) lengths.pop_back();
  }
}

void note_others(const Names& others, std::vector<std::string>& notes) {
  if (others.empty()) return;
  constexpr size_t shown = 5;
  const std::span<const std::string> some(others.data(), std::min(others.size(), shown));
  notes.push_back(
      fmt::format("warning: not read, as the names are of no part of a dump: {}{}", fmt::join(some, ", "),
                  others.size() > shown ? fmt::format(" and {} more", others.size() - shown) : ""));
}

}  // namespace

RawDump open_raw_dump(const fs::path& directory, std::optional<IdSpace> id_space) {
  const RawFolder folder = find_raw_folder(directory);
  RawDump dump;
  dump.directory = folder.directory;
  Names others;
  bool zero = false;
  for (const int64_t number :
       numbered(dump.directory, "layer_", "", {"seq_lens", "layer_map.json", "prompts.jsonl"}, others))
    dump.numbers.push_back(static_cast<int>(number));
  if (dump.numbers.empty())
    throw invalid("{}: expected layer_<number>, found {}", dump.directory.string(), others[0]);
  read_chunks(dump, zero, others);
  dump.chunk_lengths = listed_lengths(dump, others);
  const bool lengths = !dump.chunk_lengths.empty();
  std::vector<int64_t> tokens;
  for (const int64_t chunk : dump.chunks) {
    const Tensor k = read_raw_rows(layer_path(dump, dump.numbers[0]) / "k" / fmt::format("{}.pt", chunk));
    if (tokens.empty()) dump.dtype = k.dtype;
    tokens.push_back(k.shape[0]);
  }

  RawReading reading = read_clues(
      dump.directory.string(),
      {dump.numbers, lengths, !folder.work.empty(), layer_map(dump.directory / "layer_map.json"), dump.dtype},
      id_space);
  dump.dialect = reading.dialect;
  dump.id_space = reading.id_space;
  dump.layers = std::move(reading.layers);
  dump.notes = std::move(reading.notes);
  if (zero && dump.dialect->first_chunk.empty())
    throw failure(
        "{}: has a chunk 0, and {} numbers prompts from 1: is it another dump, or two in one folder?",
        dump.directory.string(), dump.dialect->writer);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!lengths) dump.chunk_lengths.push_back({tokens[i]});
    fit_lengths(dump, i, tokens[i]);
    const auto& each = dump.chunk_lengths[i];
    dump.sequence_lengths.insert(dump.sequence_lengths.end(), each.begin(), each.end());
  }
  check_stage(folder, dump, dump.notes);
  note_others(others, dump.notes);
  return dump;
}

}  // namespace oscar
