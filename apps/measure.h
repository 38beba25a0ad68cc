// Options that oscar-clip and oscar-verify share: how positions, probes, windows and rotations are written.
#pragma once
#include <fmt/format.h>
#include <omp.h>

#include <charconv>
#include <filesystem>
#include <optional>

#include "apps/cli.h"
#include "formats/error.h"
#include "libcalib/artifacts/codes_file.h"
#include "libcalib/artifacts/rotation_directory.h"
#include "libcalib/artifacts/statistics_file.h"
#include "libcalib/names.h"
#include "libcalib/verify.h"

namespace oscar::cli {

struct Measure {
  std::vector<std::filesystem::path> statistics;  // stats.h5, or the shards of one run
  std::string positions, probes;
  std::optional<std::string> codec;  // kCodec where it is not said
  std::optional<int64_t> sink, recent;
  std::optional<int> groups;  // 1
};
inline constexpr const char* kCodec = "sglang-prefill";

inline void add_measure(CLI::App& app, Measure& options, const std::string& probes_help) {
  app.add_option("--positions", options.positions,
                 "Count positions from A on, written A: (default: the first with a history)")
      ->group("What is measured");
  app.add_option("--sink", options.sink, "First tokens kept exact (default: as in the statistics)")
      ->group("What is measured");
  app.add_option("--recent", options.recent, "Last tokens kept exact (default: as in the statistics)")
      ->group("What is measured");
  app.add_option("--probes", options.probes, probes_help)->group("What is measured");
  app.add_option("--codec", options.codec, "Codec of the cache: " + known_names(codec_table()))
      ->default_str(kCodec)
      ->group("Cache");
  app.add_option("--groups", options.groups, "Quantisation groups of a row")
      ->default_str("1")
      ->group("Cache");
}

// As words of a command.
inline std::string statistics_text(const Measure& options) {
  std::string text;
  for (const auto& path : options.statistics) text += (text.empty() ? "" : " ") + path.string();
  return text;
}

inline int64_t parse_integer(const std::string& option, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw invalid("{}: expected a number, found '{}'", option, text);
  }
  return value;
}

inline std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

inline std::vector<int> parse_list(const std::string& option, const std::string& text) {
  std::vector<int> values;
  for (const auto& part : split(text, ',')) {
    const int64_t value = parse_integer(option, part);
    if (value > INT32_MAX) throw invalid("{}: {} is no number of a probe", option, value);
    values.push_back(static_cast<int>(value));
  }
  return values;
}

inline Windows checked(const Windows& windows) {
  constexpr int64_t kMost = int64_t{1} << 40;  // sums of two are positions
  if (windows.sink < 0 || windows.recent < 0 || windows.sink > kMost || windows.recent > kMost)
    throw invalid("windows sink {}, recent {}: expected numbers from 0 to {}", windows.sink, windows.recent,
                  kMost);
  return windows;
}
inline Windows windows(const Measure& options, const StatisticsHeader& header) {
  return checked({.sink = options.sink.value_or(header.windows.sink),
                  .recent = options.recent.value_or(header.windows.recent)});
}

struct Output {
  std::string option, path;  // empty: not asked for; "-": stdout
};
// Before hours of measuring: that every output can be written where it is asked for, and over nothing that is read.
void check_outputs(const std::vector<Output>& outputs, const std::vector<std::filesystem::path>& inputs);

inline int64_t first_position(const Measure& options, const Windows& windows) {
  if (options.positions.empty()) return windows.sink + windows.recent;
  if (options.positions.back() != ':')
    throw invalid("--positions: expected A:, such as 2048:, found '{}'", options.positions);
  return parse_integer("--positions", options.positions.substr(0, options.positions.size() - 1));
}

// "3,5" names probes, a trailing comma makes "3," a list too; a plain number is a count.
inline bool is_list(const std::string& text) {
  return text.find(',') != std::string::npos;
}

// [NAME=]DIR or [NAME=]K.pt,V.pt. What exists under the whole text is that: a path may hold = and commas.
struct NamedPaths {
  std::string name;  // may be empty
  std::vector<std::string> paths;
};
inline NamedPaths named_paths(const std::string& text) {
  const auto exists = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
  };
  const auto equals = text.find('=');
  const bool named = equals != std::string::npos && equals < text.find('/') && !exists(text);
  const auto place = named ? text.substr(equals + 1) : text;
  return {named ? text.substr(0, equals) : "", exists(place) ? std::vector{place} : split(place, ',')};
}

struct NamedRotations {
  std::string name;
  std::optional<CacheCodes> codes;  // of a directory with codes.safetensors: codecs and all
  RotationPair pair;                // otherwise
};
// [NAME=]DIR, [NAME=]K.pt,V.pt or [NAME=]codes.safetensors. Without a name: that of the directory.
inline NamedRotations read_named_rotations(const std::string& text) {
  auto [name, parts] = named_paths(text);
  if (parts.empty() || parts.size() > 2)
    throw invalid("--rotations {}: expected [NAME=]DIR or [NAME=]K.pt,V.pt", text);
  const auto path = std::filesystem::absolute(parts[0]).lexically_normal();
  const bool file = parts.size() == 2 || path.filename() == kCodesFile;
  const auto directory = file ? path.parent_path() : path;
  if (name.empty())
    name = (directory.has_filename() ? directory : directory.parent_path()).filename().string();
  if (parts.size() == 1) {
    if (file || has_codes(path)) {
      NamedRotations result{name, read_codes(file ? path : path / kCodesFile), {}};
      result.codes->name = name;
      return result;
    }
    return {name, std::nullopt, read_rotation_directory(parts[0])};
  }
  NamedRotations result{name, std::nullopt, {read_rotations(parts[0]), read_rotations(parts[1])}};
  check(result.pair.k, parts[0]);
  check(result.pair.v, parts[1]);
  return result;
}

// Steps come layer by layer: a log says which.
inline std::function<void(int64_t, int64_t)> layer_progress(Progress& progress, size_t layers) {
  return [&progress, layers](int64_t done, int64_t total) {
    const auto layer = (done - 1) * static_cast<int64_t>(layers) / total + 1;
    progress.update(done, total, fmt::format("layer {} of {}", layer, layers));
  };
}

inline void use_threads(const Common& common) {
  omp_set_num_threads(threads_or_cores(common.threads));
}

}  // namespace oscar::cli
