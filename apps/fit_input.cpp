#include "apps/fit_input.h"

#include "formats/error.h"
#include "libcalib/artifacts/convert.h"
#include "libcalib/artifacts/moments_file.h"
#include "libcalib/artifacts/rows_file.h"
#include "libcalib/artifacts/statistics_file.h"

namespace oscar::cli {
namespace {

LoadedInput read_raw(const FitSource& source) {
  const RawDump dump = open_raw_dump(source.paths[0], source.id_space);
  LoadedInput input;
  input.notes = dump.notes;
  Progress progress("reading", "layers", source.quiet);
  input.fit.layers = read_raw_layers(dump, source.threads, [&](int64_t done, int64_t total) {
    progress.update(done, total, fmt::format("{}/{}", done, total));
  });
  Provenance& p = input.provenance;
  p.tool_version = OSCAR_VERSION;
  p.layers_total = static_cast<int>(dump.layers.size());
  p.tokens = input.fit.layers.begin()->second.sums.tokens;
  p.sequence_lengths = dump.sequence_lengths;
  return input;
}

LoadedInput taken(MergedStatistics merged) {
  return {std::move(merged.header.provenance), {std::move(merged.layers), {}}, std::move(merged.notes)};
}

// Shapes alone: all that H needs.
LoadedInput shapes_alone(const FitSource& source) {
  LoadedInput input;
  input.provenance.tool_version = OSCAR_VERSION;
  input.provenance.layers_total = source.layers;
  for (int id = 0; id < source.layers; ++id) {
    LayerShape shape;
    shape.layer = id;
    shape.q_heads = shape.kv_heads = 1;
    shape.dim_k = shape.dim_v = source.head_dim;
    input.fit.layers[id].sums = LayerSums(shape);
  }
  return input;
}

}  // namespace

LoadedInput read_fit_input(const FitSource& source) {
  if (source.paths.empty()) return shapes_alone(source);
  const FileKind kind = kind_of(source.paths[0]);
  for (const auto& path : source.paths) {
    if (kind_of(path) != kind)
      throw invalid("{} and {} are of two kinds, {} and {}: give shards or ranks of one run",
                    source.paths[0].string(), path.string(), describe(kind), describe(kind_of(path)));
  }
  if (source.id_space && kind != FileKind::RawDump)
    throw invalid("--id-space is for raw dumps: {} is {}", source.paths[0].string(), describe(kind));
  switch (kind) {
    case FileKind::RawDump:
      if (source.paths.size() > 1)
        throw invalid("{}: a raw dump is read alone, not with other inputs", source.paths[0].string());
      return read_raw(source);
    case FileKind::Moments:
      return taken(read_moments(source.paths));
    case FileKind::Rows:
      return taken(statistics_of_rows(read_rows(source.paths), source.threads));
    case FileKind::Statistics: {
      LoadedInput input = taken(read_merged(source.paths, source.threads));
      input.fit.rows = row_reader(source.paths);
      input.scores = true;
      return input;
    }
    default:
      throw invalid(
          "{}: is {}, not something to fit: give statistics of oscar-dump, a raw dump, moments or rows; "
          "--convert turns one "
          "artifact into another",
          source.paths[0].string(), describe(kind));
  }
}

}  // namespace oscar::cli
