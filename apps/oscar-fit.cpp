// oscar-fit: second moments in, rotations out. Checks what it fits and refuses what it cannot trust.
#include <fmt/format.h>

#include "apps/cli.h"
#include "formats/error.h"
#include "libcalib/artifacts/raw_dump.h"
#include "libcalib/artifacts/rotation_directory.h"
#include "libcalib/artifacts/statistics_file.h"

namespace {

using namespace oscar;

struct Arguments {
  cli::Common common;
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;
  std::string method, target_k, target_v, composition, granularity = "layer";
  std::vector<std::string> formats = {"pt", "safetensors"};
  int head_dim = 0, layers = 0;
  bool allow_undersampled = false, json = false, list_methods = false, list_targets = false,
       list_compositions = false;
};

void add_options(CLI::App& app, Arguments& a) {
  app.add_option("input", a.inputs,
                 "Statistics files of oscar-dump, shards of one run, or one directory of raw q, k, v")
      ->type_name("STATS.h5|RAW_DUMP")
      ->group("Input");
  app.add_option("--layers", a.layers, "Layers of a model without statistics (--method hadamard)")
      ->check(CLI::Range(1, 4096))
      ->group("Input");
  app.add_option("--head-dim", a.head_dim, "Head dim of a model without statistics (--method hadamard)")
      ->check(CLI::Range(1, 4096))
      ->group("Input");

  app.add_option("--method", a.method,
                 "A row of --list-methods; oscar, or oscar-proxy for a raw dump, when left out")
      ->group("Fit");
  app.add_option("--target-k", a.target_k,
                 "Second moment of the keys instead of the method's (--list-targets)")
      ->group("Fit");
  app.add_option("--target-v", a.target_v, "Second moment of the values instead of the method's")
      ->group("Fit");
  app.add_option("--composition", a.composition, "Product instead of the method's (--list-compositions)")
      ->group("Fit");
  app.add_option("--granularity", a.granularity, "One rotation a layer, or one per KV head")
      ->check(CLI::IsMember({"layer", "head"}))
      ->capture_default_str()
      ->group("Fit");
  app.add_flag("--allow-undersampled", a.allow_undersampled, "Fit from fewer than 4 D tokens per head")
      ->group("Fit");

  app.add_option("-o,--output", a.output, "Directory of the rotation files and manifest.json")
      ->group("Output");
  app.add_option("--format", a.formats, "pt, safetensors or both, separated by a comma")
      ->delimiter(',')
      ->check(CLI::IsMember({"pt", "safetensors"}))
      ->capture_default_str()
      ->group("Output");
  app.add_flag("--json", a.json, "The manifest, with every check, as JSON on stdout")->group("Output");

  app.add_flag("--list-methods", a.list_methods, "Print the methods and stop")->group("Tables");
  app.add_flag("--list-targets", a.list_targets, "Print the targets and stop")->group("Tables");
  app.add_flag("--list-compositions", a.list_compositions, "Print the compositions and stop")
      ->group("Tables");
}

bool print_tables(const Arguments& a) {
  if (a.list_methods) {
    for (const auto& m : method_table()) {
      fmt::print("{:<12} {:<9} {:<10} {:<8} {}\n", m.name, m.target_k.empty() ? "-" : m.target_k,
                 m.target_v.empty() ? "-" : m.target_v, m.composition.empty() ? "H" : m.composition,
                 m.summary);
    }
  }
  if (a.list_targets) {
    for (const auto& t : target_table()) fmt::print("{:<10} {}  {}\n", t.name, side_name(t.side), t.meaning);
  }
  if (a.list_compositions) {
    for (const auto& c : composition_table()) fmt::print("{:<8} {}\n", c.name, c.product);
  }
  return a.list_methods || a.list_targets || a.list_compositions;
}

struct Input {
  Provenance provenance;
  std::map<int, LayerStatistics> layers;
  std::vector<std::string> notes;
  bool raw = false;
};

Input read_raw(const Arguments& a, int threads) {
  const RawDump dump = open_raw_dump(a.inputs[0]);
  Input input;
  input.raw = true;
  cli::Progress progress("reading", "layers", a.common.quiet);
  input.layers = read_raw_layers(dump, threads, [&](int64_t done, int64_t total) {
    progress.update(done, total, fmt::format("{}/{}", done, total));
  });
  Provenance& p = input.provenance;
  p.tool_version = OSCAR_VERSION;
  p.layers_total = static_cast<int>(dump.layers.size());
  p.tokens = input.layers.begin()->second.sums.tokens;
  p.sequence_lengths = dump.sequence_lengths;
  return input;
}

Input read_statistics(const Arguments& a) {
  MergedStatistics merged = read_merged(a.inputs);
  return {std::move(merged.header.provenance), std::move(merged.layers), std::move(merged.notes), false};
}

// Shapes alone: all that H needs.
Input no_statistics(const Arguments& a) {
  Input input;
  input.provenance.tool_version = OSCAR_VERSION;
  input.provenance.layers_total = a.layers;
  for (int id = 0; id < a.layers; ++id) {
    LayerShape shape;
    shape.layer = id;
    shape.q_heads = shape.kv_heads = 1;
    shape.dim_k = shape.dim_v = a.head_dim;
    input.layers[id].sums = LayerSums(shape);
  }
  return input;
}

Input read_input(const Arguments& a, int threads) {
  if (a.inputs.empty()) {
    if (a.method == "hadamard" && a.layers > 0 && a.head_dim > 0) return no_statistics(a);
    throw invalid(
        "no input: give a statistics file of oscar-dump, a raw dump, or --method hadamard --layers N "
        "--head-dim D");
  }
  if (a.layers > 0 || a.head_dim > 0)
    throw invalid("--layers and --head-dim are for --method hadamard without statistics");
  if (!std::filesystem::is_directory(a.inputs[0])) return read_statistics(a);
  if (a.inputs.size() > 1)
    throw invalid("{}: a raw dump is read alone, not with other inputs", a.inputs[0].string());
  return read_raw(a, threads);
}

// The method's row, with what the command line puts in its place.
FitOptions fit_options(const Arguments& a, bool raw, int threads) {
  const MethodInfo& method = find_method(!a.method.empty() ? std::string_view(a.method)
                                         : raw             ? "oscar-proxy"
                                                           : "oscar");
  FitOptions options;
  options.target_k = a.target_k.empty() ? method.target_k : a.target_k;
  options.target_v = a.target_v.empty() ? method.target_v : a.target_v;
  if (!method.composition.empty()) options.composition = method.composition;
  if (!a.composition.empty()) options.composition = a.composition;
  options.per_head = a.granularity == "head";
  options.allow_undersampled = a.allow_undersampled;
  options.threads = threads;
  if (options.target_k.empty() && options.target_v.empty()) {
    if (!a.composition.empty()) throw invalid("--composition: '{}' is H alone and takes none", method.name);
    if (options.per_head) throw invalid("--granularity head: '{}' is one H for every head", method.name);
    if (a.allow_undersampled) throw invalid("--allow-undersampled: '{}' needs no tokens", method.name);
  }
  return options;
}

void print_side(const Arguments& a, const FitResult& result, const FitOptions& options, Side side) {
  FitCheck worst;
  double shared = 0;
  int count = 0, shared_layer = 0, rank = 1 << 30, dim = 0;
  for (const FitCheck& check : result.checks) {
    if (check.side != side) continue;
    if (check.shared_loss >= worst.shared_loss) shared_layer = check.layer;
    worst.orthogonality = std::max(worst.orthogonality, check.orthogonality);
    worst.residual = std::max(worst.residual, check.residual);
    worst.condition = std::max(worst.condition, check.condition);
    worst.lemma1 = std::max(worst.lemma1, check.lemma1);
    worst.shared_loss = std::max(worst.shared_loss, check.shared_loss);
    rank = std::min(rank, check.rank);
    shared += check.shared_loss;
    ++count;
  }
  const RotationSet& set = side == Side::K ? result.k : result.v;
  dim = static_cast<int>(set.layers.begin()->second.rotation[0].rows());
  std::string text =
      fmt::format("  {}  {}: orthogonal to {:.1e}", side_name(side), set.objective, worst.orthogonality);
  if (set.objective != "hadamard") {
    text += fmt::format(", residual {:.1e}, rank {} of {}, condition {:.2g}, diagonal max/mean {:.3f}",
                        worst.residual, rank, dim, worst.condition, worst.lemma1);
    if (!options.per_head) {
      text += fmt::format("; shared by the heads: {:.1f} % less energy on top (worst: layer {}, {:.1f} %)",
                          100 * shared / count, shared_layer, 100 * worst.shared_loss);
    }
  }
  cli::note(a.common.quiet, text);
}

void print_summary(const Arguments& a, const Input& input, const FitOptions& options, const FitResult& result,
                   const std::vector<ManifestFile>& files) {
  const bool quiet = a.common.quiet;
  for (const auto& text : input.notes) cli::note(quiet, "note: " + text);
  for (const auto& text : result.warnings) cli::note(quiet, "warning: " + text);
  cli::note(quiet, fmt::format("{} layers, {} tokens; the worst of each check:", input.layers.size(),
                               input.provenance.tokens));
  for (const Side side : {Side::K, Side::V}) print_side(a, result, options, side);
  for (const auto& file : files) {
    cli::note(quiet,
              fmt::format("wrote {}  sha256 {}", (a.output / file.name).string(), file.sha256.substr(0, 16)));
  }
  if (input.raw || a.inputs.empty()) return;
  cli::note(quiet, fmt::format("next: oscar-clip {0} --rotations {1} -o {1}/clip.json", a.inputs[0].string(),
                               a.output.string()));
}

int fit_command(const Arguments& a) {
  if (print_tables(a)) return 0;
  if (a.output.empty()) throw invalid("-o is required: the directory of the rotation files");
  if (a.formats.empty()) throw invalid("--format: expected pt, safetensors or both");
  const int threads = cli::threads_or_cores(a.common.threads);
  // Names first: a typing error must not cost the reading of a dump.
  fit_options(a, false, threads);
  for (const auto& name : {a.target_k, a.target_v}) {
    if (!name.empty()) find_target(name);
  }
  if (!a.composition.empty()) find_composition(a.composition);

  const Input input = read_input(a, threads);
  const FitOptions options = fit_options(a, input.raw, threads);
  const FitResult result = fit(input.layers, options);
  std::vector<RotationFormat> formats;
  for (const auto& name : a.formats)
    formats.push_back(name == "pt" ? RotationFormat::Pt : RotationFormat::SafeTensors);
  const auto files = write_rotation_directory(a.output, input.provenance, options, result, formats);
  print_summary(a, input, options, result, files);
  if (a.json) cli::print_json(manifest_json(input.provenance, options, result, files));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Fits rotations for 2-bit KV caches to the second moments of a calibration run.", "oscar-fit");
  Arguments arguments;
  add_options(app, arguments);
  cli::add_common(app, arguments.common,
                  "  oscar-fit stats.h5 -o rotations/\n"
                  "  oscar-fit stats.0.h5 stats.1.h5 --granularity head --target-v sst-proxy -o rotations/\n"
                  "  oscar-fit --method hadamard --layers 36 --head-dim 128 --format pt -o rotations/\n");
  return cli::run(app, argc, argv, [&] { return fit_command(arguments); });
}
