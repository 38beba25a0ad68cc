#include "libcalib/artifacts/convert.h"

#include <algorithm>

#include "formats/atomic_write.h"
#include "formats/error.h"
#include "libcalib/artifacts/codes_file.h"
#include "libcalib/artifacts/gguf_rotations.h"
#include "libcalib/artifacts/moments_file.h"
#include "libcalib/artifacts/nova_bundle.h"
#include "libcalib/artifacts/product_codebooks.h"
#include "libcalib/artifacts/rotation_versions.h"
#include "libcalib/artifacts/rows_file.h"
#include "libcalib/setup.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

// Everything that the inputs hold, each thing once.
struct Content {
  std::optional<RotationSet> k, v;
  std::optional<SideCodes> k_codes, v_codes;
  std::optional<ProductCodebooks> k_books, v_books;
  std::optional<RawDump> dump;
  std::vector<fs::path> shards;  // of statistics, or a whole run
  std::optional<MergedStatistics> moments;
  size_t inputs = 0;
  std::optional<RowsFile> rows;
  Provenance provenance;
  std::string summary;  // of what was found, for messages
  std::vector<std::string> notes;
};

template <typename T>
void put(std::optional<T>& place, T value, const fs::path& path, std::string_view what) {
  if (place) throw invalid("{}: {} given twice", path.string(), what);
  place = std::move(value);
}
void put_rotations(Content& c, RotationSet set, const fs::path& path) {
  const bool k = set.side == Side::K;
  put(k ? c.k : c.v, std::move(set), path, k ? "rotations of K" : "rotations of V");
}
void put_codes(Content& c, SideCodes codes, const fs::path& path) {
  const bool k = codes.side == Side::K;
  put(k ? c.k_codes : c.v_codes, std::move(codes), path, k ? "codes of K" : "codes of V");
}

void read_one(Content& c, FileKind kind, const fs::path& path, const ConvertOptions& options) {
  switch (kind) {
    case FileKind::TurboQuant:
      c.notes.push_back(fmt::format(
          "{}: its levels are not carried over: a rotation file has no place for them", path.string()));
      [[fallthrough]];
    case FileKind::Rotations:
    case FileKind::RotationDirectory:
    case FileKind::Gguf:
      for (auto& set : rotations_in(path)) put_rotations(c, std::move(set), path);
      return;
    case FileKind::Codes: {
      auto codes = read_codes(fs::is_directory(path) ? path / kCodesFile : path);
      put_codes(c, std::move(codes.k), path);
      return put_codes(c, std::move(codes.v), path);
    }
    case FileKind::NovaBundle:
      return put_codes(c, read_nova_bundle(path, options.layer_ids), path);
    case FileKind::ProductCodebooks: {
      auto books = read_product_codebooks(path);
      const bool k = books.side == Side::K;
      return put(k ? c.k_books : c.v_books, std::move(books), path, "codebooks of one side");
    }
    case FileKind::RawDump:
      return put(c.dump, open_raw_dump(path, options.id_space), path, "a raw dump");
    case FileKind::Moments:
    case FileKind::Rows:
    case FileKind::Statistics:
      break;  // of several ranks or shards: read together
  }
}

Content gather(const std::vector<fs::path>& inputs, const ConvertOptions& options) {
  Content c;
  std::map<FileKind, std::vector<fs::path>> parts;
  for (const auto& path : inputs) {
    const auto kind = kind_of(path);
    parts[kind].push_back(path);
    c.summary += fmt::format("{}{} ({})", c.summary.empty() ? "" : ", ", path.string(), describe(kind));
    read_one(c, kind, path, options);
  }
  c.inputs = inputs.size();
  c.shards = parts[FileKind::Statistics];
  if (!c.shards.empty()) c.provenance = StatisticsReader(c.shards).header().provenance;
  if (parts.contains(FileKind::Moments)) {
    if (!c.shards.empty()) throw invalid("statistics and moments together: give one of them");
    c.moments = read_moments(parts[FileKind::Moments]);
    c.provenance = c.moments->header.provenance;
  }
  if (parts.contains(FileKind::Rows)) c.rows = read_rows(parts[FileKind::Rows]);
  return c;
}

std::invalid_argument unfit(const Content& c, std::string_view target, std::string_view needs) {
  return invalid("{} needs {}; the input is {}", target, needs, c.summary);
}

// ---- targets. Each writes what it is named after, or says what is missing.
using Write = void (*)(Content&, const fs::path&, const ConvertOptions&, Conversion&);

// One side to a file, both to a directory.
template <typename WriteSet>
void write_sides(Content& c, const fs::path& out, std::string_view extension, Conversion& done,
                 WriteSet write) {
  if (!c.k && !c.v) throw unfit(c, fmt::format("a {} rotation file", extension), "rotations");
  if (!out.extension().empty()) {
    if (c.k && c.v)
      throw invalid("{}: the input holds K and V, the output is one file: name a directory", out.string());
    write(c.k ? *c.k : *c.v, out);
    done.files.push_back(out);
    return;
  }
  make_directory(out);
  for (auto* set : {&c.k, &c.v}) {
    if (!*set) continue;
    const fs::path path = out / (rotation_file_stem(**set) + std::string(extension));
    write(**set, path);
    done.files.push_back(path);
  }
}
template <int version>
void write_pt_version(Content& c, const fs::path& out, const ConvertOptions& options, Conversion& done) {
  for (auto* set : {&c.k, &c.v}) {
    if (version && *set) *set = as_version(**set, version, options.kv_heads);
  }
  write_sides(c, out, ".pt", done, [&](const RotationSet& set, const fs::path& path) {
    write_rotations_pt(path, set, c.provenance);
  });
}
void write_safetensors_rotations(Content& c, const fs::path& out, const ConvertOptions&, Conversion& done) {
  write_sides(c, out, ".safetensors", done, [&](const RotationSet& set, const fs::path& path) {
    write_rotations_safetensors(path, set, c.provenance);
  });
}
void write_into_gguf(Content& c, const fs::path& out, const ConvertOptions& options, Conversion& done) {
  if (!c.k || !c.v) throw unfit(c, "a GGUF model", "rotations of K and V");
  if (options.base.empty()) throw invalid("--base MODEL.gguf: the model that the rotations go into");
  for (auto* set : {&*c.k, &*c.v}) *set = as_version(*set, 1, 0);
  const auto written =
      write_gguf_rotations(out, GgufFile::open(options.base), {*c.k, *c.v}, c.provenance, options.order);
  done.files.push_back(out);
  done.notes.push_back(
      fmt::format("what the engine computes with the stored matrices is K R to {:.1e}", written.round_trip));
  done.notes.insert(done.notes.end(), written.notes.begin(), written.notes.end());
}

// Under the codec that a rotation file stands for.
SideCodes codes_of_rotations(const RotationSet& set) {
  std::vector<LayerShape> shapes;
  for (const auto& entry : set.layers) shapes.emplace_back().layer = entry.first;
  return scalar_codes(set.side, shapes, &set, find_codec("sglang-prefill"), {});
}
std::optional<SideCodes> side_codes(Content& c, Side side) {
  auto& codes = side == Side::K ? c.k_codes : c.v_codes;
  auto& books = side == Side::K ? c.k_books : c.v_books;
  auto& set = side == Side::K ? c.k : c.v;
  if (codes) return codes;
  if (books && !set)
    throw unfit(c, "codes from PQ codebooks",
                fmt::format("the rotations that they were trained with, {}", books->rotation));
  if (books) return codes_of(*books, *set);
  return set ? std::optional(codes_of_rotations(*set)) : std::nullopt;
}
void write_codes_file(Content& c, const fs::path& out, const ConvertOptions&, Conversion& done) {
  auto k = side_codes(c, Side::K), v = side_codes(c, Side::V);
  if (!k || !v) throw unfit(c, kCodesFile, "codes or rotations of K and of V");
  fs::path path = out;
  if (out.extension().empty()) {  // a directory, as for rotations: readers know the file by its name
    make_directory(out);
    path /= kCodesFile;
  }
  write_codes(path, {k->objective == v->objective ? k->objective : k->objective + "/" + v->objective, *k, *v},
              c.provenance);
  done.files.push_back(path);
}
void write_nova(Content& c, const fs::path& out, const ConvertOptions&, Conversion& done) {
  const auto k = side_codes(c, Side::K);
  if (!k) throw unfit(c, kNovaFile, "codes of K");
  write_nova_bundle(out, *k);
  done.files.push_back(out);
  if (c.v_codes || c.v) done.notes.push_back("codebook.pt holds keys alone: values need a file of their own");
}
void write_product(Content& c, const fs::path& out, const ConvertOptions&, Conversion& done) {
  const bool directory = out.extension().empty();
  const bool both = (c.k_books || c.k_codes) && (c.v_books || c.v_codes);
  if (both && !directory)
    throw invalid("{}: the input holds K and V, the output is one file: name a directory", out.string());
  struct Part {
    ProductCodebooks books;
    std::optional<RotationSet>
        maps;  // that codes carry: the engine wants them in a rotation file beside the books
  };
  std::vector<Part> parts;  // all of them before the first is written: K alone is not what was asked for
  for (const Side side : {Side::K, Side::V}) {
    auto& books = side == Side::K ? c.k_books : c.v_books;
    const auto& codes = side == Side::K ? c.k_codes : c.v_codes;
    if (books) parts.push_back({*books, std::nullopt});
    if (!books && codes) parts.push_back({product_codebooks_of(*codes), maps_of(*codes)});
  }
  if (parts.empty()) throw unfit(c, "a PQ file", "codebooks, or codes of one shape");
  if (directory) make_directory(out);
  for (const Part& part : parts) {
    if (part.maps) {
      const auto path = (directory ? out : out.parent_path()) / (part.books.rotation + ".pt");
      write_rotations_pt(path, *part.maps, c.provenance);
      done.files.push_back(path);
    }
    const auto path = directory ? out / product_codebooks_name(part.books) : out;
    write_product_codebooks(path, part.books);
    done.files.push_back(path);
  }
}
void write_moments_file(Content& c, const fs::path& out, const ConvertOptions& options, Conversion& done) {
  if (!c.moments && c.shards.empty()) throw unfit(c, moments_file_name(), "statistics");
  write_moments(out, c.provenance,
                c.moments ? c.moments->layers : read_merged(c.shards, options.threads).layers);
  done.files.push_back(out);
}
void write_rows_file(Content& c, const fs::path& out, const ConvertOptions&, Conversion& done) {
  if (!c.rows && !c.dump) throw unfit(c, rows_file_name(), "rows or a raw dump");
  write_rows(out, c.rows ? *c.rows : rows_of_raw_dump(*c.dump));
  done.files.push_back(out);
}

void write_statistics(Content& c, const fs::path& out, const ConvertOptions& options, Conversion& done) {
  constexpr std::string_view needs = "the shards of one run of oscar-dump, and nothing else";
  if (c.shards.empty() || c.shards.size() != c.inputs) throw unfit(c, "a statistics file", needs);
  const StatisticsReader reader(c.shards, options.threads);
  if (!reader.notes().empty()) throw unfit(c, "a statistics file", needs);
  write_whole(reader, out);
  done.files.push_back(out);
}

struct Target {
  ConversionTarget row;
  bool (*named)(const std::string& file);  // by the output's name; nullptr: only by --to
  Write write;
};
const Target kTargets[] = {
    {{"gguf", "a copy of --base with rotations of K and V, one a layer"},
     [](const std::string& n) { return n.ends_with(".gguf"); },
     write_into_gguf},
    {{"codes", "codes.safetensors from codes, a NOVA bundle, PQ with its rotations, or rotations; K and V"},
     [](const std::string& n) { return n == kCodesFile; },
     write_codes_file},
    {{"safetensors", "rotations, one side; a directory for both"},
     [](const std::string& n) { return n.ends_with(".safetensors"); },
     write_safetensors_rotations},
    {{"nova", "codebook.pt, keys of 4x8 codes"},
     [](const std::string& n) { return n == kNovaFile; },
     write_nova},
    {{"pq", "k_pq_*.pt, v_pq_*.pt, with the rotations beside them where the input is codes"},
     [](const std::string& n) {
       return n.ends_with(".pt") && (n.find("_pq_") != n.npos || n.find("_rvq_") != n.npos);
     },
     write_product},
    {{"moments", "oscar_moments_rank0.pt from statistics"},
     [](const std::string& n) { return n.starts_with("oscar_moments_rank"); },
     write_moments_file},
    {{"rows", "oscar_rows_rank0.pt from a raw dump"},
     [](const std::string& n) { return n.starts_with("oscar_rows_rank"); },
     write_rows_file},
    {{"stats", "stats.h5, the shards of one run as the file of a run without workers"},
     [](const std::string& n) { return n.ends_with(".h5"); },
     write_statistics},
    {{"pt", "rotations, the version that holds them; a directory for both sides"},
     [](const std::string& n) { return n.ends_with(".pt") || n.find('.') == n.npos; },
     write_pt_version<0>},
    {{"v1", "one rotation a layer, orthogonal, no means"}, nullptr, write_pt_version<1>},
    {{"v2", "one rotation a KV head (--kv-heads where the input has one a layer)"},
     nullptr,
     write_pt_version<2>},
    {{"v3", "with means and inverses, if there are any"}, nullptr, write_pt_version<3>},
};
const std::vector<ConversionTarget>& rows_of_targets() {
  static const auto rows = [] {
    std::vector<ConversionTarget> list;
    for (const auto& target : kTargets) list.push_back(target.row);
    return list;
  }();
  return rows;
}

const Target& target_of(const fs::path& output, const std::string& to) {
  const std::string name =
      output.has_filename() ? output.filename().string() : output.parent_path().filename().string();
  for (const auto& target : kTargets) {
    if (to.empty() ? target.named && target.named(name) : target.row.name == to) return target;
  }
  std::string known;
  for (const auto& target : kTargets) known += (known.empty() ? "" : ", ") + std::string(target.row.name);
  if (!to.empty()) throw invalid("--to {}: expected one of {}", to, known);
  throw invalid("{}: the name does not say what to write: say --to, one of {}", output.string(), known);
}

// Options that this conversion would pass over.
void refuse_unused(const std::vector<fs::path>& inputs, std::string_view target,
                   const ConvertOptions& options) {
  const auto has = [&](FileKind kind) {
    return std::ranges::any_of(inputs, [&](const fs::path& path) { return kind_of(path) == kind; });
  };
  const auto only = [&](bool given, const char* option, bool used, std::string_view where) {
    if (given && !used) throw invalid("{}: is for {}, the conversion is to '{}'", option, where, target);
  };
  only(!options.base.empty(), "--base", target == "gguf", "--to gguf");
  only(options.order.has_value(), "--rotary-order", target == "gguf", "--to gguf");
  only(options.kv_heads > 0, "--kv-heads", target == "v2", "--to v2");
  only(!options.layer_ids.empty(), "--layer-ids", has(FileKind::NovaBundle), "a codebook.pt as input");
  only(options.id_space.has_value(), "--id-space", has(FileKind::RawDump), "a raw dump as input");
}

}  // namespace

std::span<const ConversionTarget> conversion_targets() {
  return rows_of_targets();
}

Conversion convert(const std::vector<fs::path>& inputs, const fs::path& output,
                   const ConvertOptions& options) {
  if (inputs.empty()) throw invalid("--convert: no input");
  const Target& target = target_of(output, options.to);
  refuse_unused(inputs, target.row.name, options);
  Content content = gather(inputs, options);
  Conversion done;
  target.write(content, output.has_filename() ? output : output.parent_path(), options, done);
  done.notes.insert(done.notes.begin(), content.notes.begin(), content.notes.end());
  return done;
}

}  // namespace oscar
