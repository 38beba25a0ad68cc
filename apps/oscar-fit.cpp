// oscar-fit: second moments in, rotations out. Checks what it fits and refuses what it cannot trust.
#include <fmt/format.h>

#include <iostream>

#include "apps/artifact_commands.h"
#include "apps/fit_input.h"
#include "formats/error.h"
#include "libcalib/artifacts/codes_file.h"
#include "libcalib/artifacts/convert.h"
#include "libcalib/artifacts/rotation_directory.h"
#include "libcalib/composition.h"
#include "libcalib/compute_device.h"
#include "libcalib/targets.h"

namespace {

using namespace oscar;

struct Arguments {
  cli::Common common;
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;
  std::string method, target_k, target_v, composition, granularity, engine, id_space, device = "cpu";
  cli::ArtifactArguments artifacts;
  std::optional<double> bits;
  std::vector<std::string> formats = {"pt", "safetensors"};
  int head_dim = 0, layers = 0;
  bool allow_undersampled = false, json = false, list_methods = false, list_targets = false,
       list_compositions = false, list_conversions = false;
};

void add_options(CLI::App& app, Arguments& a) {
  app.add_option(
         "input", a.inputs,
         "Statistics files of oscar-dump (shards of one run), one directory of raw q, k, v, or the engine's "
         "oscar_moments_rank*.pt or oscar_rows_rank*.pt; with --convert and --absorb-v, artifacts")
      ->type_name("STATS.h5|RAW_DUMP|FILE.pt")
      ->group("Input");
  app.add_option("--id-space", a.id_space, "What the layer numbers of a raw dump are, where it does not say")
      ->check(CLI::IsMember({"global", "local"}))
      ->group("Input");
  app.add_option("--layers", a.layers, "Layers of a model without statistics (--method hadamard)")
      ->check(CLI::Range(1, 4096))
      ->group("Input");
  app.add_option("--head-dim", a.head_dim, "Head dim of a model without statistics (--method hadamard)")
      ->check(CLI::Range(1, 4096))
      ->group("Input");

  app.add_option(
         "--method", a.method,
         "NAME[:option=value…] of --list-methods, or one of K and one of V: awvq:shape=4x10/awvq:shape=4x6 "
         "(oscar, or oscar-proxy for a raw dump, when left out)")
      ->group("Fit");
  auto* bits =
      app.add_option("--bits", a.bits,
                     "A budget instead of a method: measured bits a channel, mean of keys and values")
          ->check(CLI::Range(0.01, 16.0))
          ->group("Fit");
  app.add_option("--engine", a.engine,
                 "What the budget buys: codebook (vector codes) or int2 (layers left in BF16)")
      ->check(CLI::IsMember({"codebook", "int2"}))
      ->needs(bits)
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
      ->group("Fit");
  app.add_option("--device", a.device,
                 "Where codebooks are trained: cpu, cuda or cuda:N, by a LibTorch that has CUDA; the same "
                 "bytes, sooner")
      ->capture_default_str()
      ->group("Fit");
  app.add_flag("--allow-undersampled", a.allow_undersampled, "Fit from fewer than 4 D tokens per head")
      ->group("Fit");

  app.add_option("-o,--output", a.output,
                 "Directory of the rotation files and manifest.json; what --convert and --absorb-v write")
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
  app.add_flag("--list-conversions", a.list_conversions, "Print what --convert writes and stop")
      ->group("Tables");
  cli::add_artifact_options(app, a.artifacts);
  // Nothing is fitted there: options of a fit are refused, not passed over.
  for (CLI::Option* option : app.get_options()) {
    const bool fits =
        option->get_group() == "Fit" || option->get_group() == "Input" || option->check_lname("format");
    for (const char* name : {"--convert", "--absorb-v"}) {
      const bool raw_input = option->check_lname("id-space") && name == std::string_view("--convert");
      if (fits && !raw_input && !option->get_positional()) app.get_option(name)->excludes(option);
    }
  }
}

bool print_tables(const Arguments& a) {
  if (a.list_methods) {
    for (const auto& m : method_table()) {
      const bool same = m.k == m.v;
      const unsigned needs = parse_method(m.name).needs();
      std::cout << fmt::format("{:<12} {}{}\n{:<12} needs {}; stores {}\n", m.name, m.summary,
                               m.source.empty() ? "" : fmt::format(" [{}]", m.source), "", needs_text(needs),
                               m.stores);
      std::cout << fmt::format("{:<12} options{} {}\n", "", same ? ":" : " of K:", m.k->options);
      if (!same) std::cout << fmt::format("{:<12} options of V: {}\n", "", m.v->options);
    }
    std::cout << fmt::format("\nOptions of methods, NAME:option=value:\n");
    for (const auto& option : option_table())
      std::cout << fmt::format("  {:<12} {}\n", option.name, option.meaning);
  }
  if (a.list_targets) {
    for (const auto& t : target_table())
      std::cout << fmt::format("{:<10} {}  {}\n", t.name, side_name(t.side), t.meaning);
  }
  if (a.list_compositions) {
    for (const auto& c : composition_table()) std::cout << fmt::format("{:<8} {}\n", c.name, c.product);
  }
  if (a.list_conversions) {
    for (const auto& t : conversion_targets()) std::cout << fmt::format("{:<12} {}\n", t.name, t.summary);
  }
  return a.list_methods || a.list_targets || a.list_compositions || a.list_conversions;
}

bool is_hadamard(const Arguments& a) {
  return a.method == "hadamard" || a.method.starts_with("hadamard:");
}

cli::FitSource source_of(const Arguments& a, int threads) {
  if (a.inputs.empty() && !(is_hadamard(a) && a.layers > 0 && a.head_dim > 0)) {
    throw invalid(
        "no input: give a statistics file of oscar-dump, a raw dump, moments or rows, or --method hadamard "
        "--layers N "
        "--head-dim D");
  }
  if (!a.inputs.empty() && (a.layers > 0 || a.head_dim > 0))
    throw invalid("--layers and --head-dim are for --method hadamard without statistics");
  constexpr int64_t kMost = int64_t{1} << 25;  // numbers of one side: 128 MiB a file
  if (int64_t{a.layers} * a.head_dim * a.head_dim > kMost)
    throw invalid("--layers {} --head-dim {}: no model is that large: expected layers x D^2 up to {}",
                  a.layers, a.head_dim, kMost);
  cli::FitSource source{a.inputs, {}, a.layers, a.head_dim, threads, a.common.quiet};
  if (!a.id_space.empty()) source.id_space = parse_id_space(a.id_space);
  return source;
}

// The specification, with what the older options of the command line put in its place.
Method chosen_method(const Arguments& a, bool scores) {
  if (a.bits && !a.method.empty())
    throw invalid(
        "--bits chooses the codes itself: leave --method out, or give the method its own bits, {}:bits={}",
        a.method, *a.bits);
  std::string k = !a.method.empty() ? a.method : scores ? "oscar" : "oscar-proxy";
  if (a.bits) k = fmt::format("{}:bits={}", a.engine == "int2" ? "budget-int2" : "budget", *a.bits);
  std::string v = k;
  if (const auto slash = k.find('/'); slash != std::string::npos) {
    v = k.substr(slash + 1);
    k = k.substr(0, slash);
  }
  const auto add = [](std::string& side, const char* option, const std::string& value) {
    if (!value.empty()) side += fmt::format(":{}={}", option, value);
  };
  add(k, "target", a.target_k);
  add(v, "target", a.target_v);
  for (std::string* side : {&k, &v}) {
    add(*side, "composition", a.composition);
    add(*side, "granularity", a.granularity);
  }
  return parse_method(k == v ? k : k + "/" + v);
}

std::unique_ptr<CodewordSearch> open_search(const Arguments& a, const Method& method) {
  if (cuda_number(a.device) >= 0 && !method.trains())
    throw invalid("--device {}: method '{}' trains no codebooks, which is what that is for: leave it out",
                  a.device, method.name);
  return open_codeword_search(a.device);
}

void print_side(const Arguments& a, const FitResult& result, Side side) {
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
    worst.volume_spread = std::max(worst.volume_spread, check.volume_spread);
    worst.distortion = std::max(worst.distortion, check.distortion);
    worst.shared_loss = std::max(worst.shared_loss, check.shared_loss);
    rank = std::min(rank, check.rank);
    shared += check.shared_loss;
    ++count;
  }
  const SideCodes& codes = side == Side::K ? result.codes.k : result.codes.v;
  const auto& heads = codes.layers.begin()->second;
  dim = static_cast<int>(heads[0].transform.forward.rows());
  std::string text = fmt::format("  {}  {}, {}: map times inverse is 1 to {:.1e}", side_name(side),
                                 codes.objective, codec_names(codes), worst.orthogonality);
  if (rank > 0) {
    text += fmt::format(", residual {:.1e}, rank {} of {}, condition {:.2g}", worst.residual, rank, dim,
                        worst.condition);
    if (worst.lemma1 > 0) text += fmt::format(", diagonal max/mean {:.3f}", worst.lemma1);
    if (worst.volume_spread > 0)
      text += fmt::format(", volumes of groups within a factor {:.2f}", worst.volume_spread);
    if (worst.distortion > 0) text += fmt::format(", {:.2f} % of the energy lost", 100 * worst.distortion);
    if (shared > 0) {
      text += fmt::format("; shared by the heads: {:.1f} % less energy on top (worst: layer {}, {:.1f} %)",
                          100 * shared / count, shared_layer, 100 * worst.shared_loss);
    }
  }
  cli::note(a.common.quiet, text);
}

// How many heads took which code, K and V apart.
void print_plan(bool quiet, const FitResult& result) {
  if (result.plan.empty()) return;
  double loss = 0;
  for (const Side side : {Side::K, Side::V}) {
    std::map<double, std::pair<std::string, int>> counts;  // by bits
    double bits = 0;
    int items = 0;
    for (const PlanItem& item : result.plan) {
      if (item.side != side) continue;
      auto& [shape, count] = counts[item.bits];
      shape = item.shape;
      ++count;
      bits += item.bits;
      loss += item.loss;
      ++items;
    }
    std::string text;
    for (const auto& [each, row] : counts)
      text += fmt::format("  {} x {} ({:.3g})", row.second, row.first, each);
    cli::note(quiet, fmt::format("plan {}: {:.3f} bits a channel:{}", side_name(side),
                                 bits / std::max(items, 1), text));
  }
  cli::note(quiet, fmt::format("predicted loss {:.3g}{}", loss,
                               result.uniform_loss > 0
                                   ? fmt::format(", of the best single code within the budget {:.3g}",
                                                 result.uniform_loss)
                                   : ""));
}

void print_summary(const Arguments& a, const cli::LoadedInput& input, const FitResult& result,
                   const std::vector<ManifestFile>& files) {
  const bool quiet = a.common.quiet;
  for (const auto& text : input.notes) cli::note(quiet, "note: " + text);
  for (const auto& text : result.warnings) cli::note(quiet, "warning: " + text);
  cli::note(quiet, fmt::format("{}: {} layers, {} tokens; the worst of each check:", result.codes.name,
                               input.fit.layers.size(), input.provenance.tokens));
  for (const Side side : {Side::K, Side::V}) print_side(a, result, side);
  print_plan(quiet, result);
  for (const auto& file : files) {
    cli::note(quiet,
              fmt::format("wrote {}  sha256 {}", (a.output / file.name).string(), file.sha256.substr(0, 16)));
  }
  if (!input.scores) return;
  const bool codes =
      std::ranges::any_of(files, [](const ManifestFile& file) { return file.name == kCodesFile; });
  cli::note(quiet, codes ? fmt::format("next: oscar-verify {} --rotations {} --end-to-end",
                                       a.inputs[0].string(), a.output.string())
                         : fmt::format("next: oscar-clip {0} --rotations {1} -o {1}/clip.json",
                                       a.inputs[0].string(), a.output.string()));
}

int fit_command(const Arguments& a) {
  if (print_tables(a)) return 0;
  if (cli::wanted(a.artifacts)) {
    auto artifacts = a.artifacts;
    if (!a.id_space.empty()) artifacts.id_space = parse_id_space(a.id_space);
    return cli::run_artifact_command(artifacts, a.inputs, a.output, a.json, a.common);
  }
  if (a.output.empty()) throw invalid("-o is required: the directory of the rotation files");
  if (a.formats.empty()) throw invalid("--format: expected pt, safetensors or both");
  const int threads = cli::threads_or_cores(a.common.threads);
  // Names first: a typing error must not cost the reading of a dump.
  const auto search = open_search(a, chosen_method(a, true));
  if (search) cli::note_slower(a.common.quiet, search->slower());

  const cli::LoadedInput input = cli::read_fit_input(source_of(a, threads));
  FitRecord record{input.provenance, chosen_method(a, input.scores), a.allow_undersampled, {}};
  {
    cli::Progress progress("fit", "layers", a.common.quiet || !(record.method.needs() & kRows));
    record.result = fit(
        input.fit, record.method,
        {.allow_undersampled = a.allow_undersampled,
         .threads = threads,
         .progress = [&](int64_t done,
                         int64_t total) { progress.update(done, total, fmt::format("{}/{}", done, total)); },
         .search = search ? *search : cpu_search()});
  }
  std::vector<RotationFormat> formats;
  for (const auto& name : a.formats) {
    const auto format = name == "pt" ? RotationFormat::Pt : RotationFormat::SafeTensors;
    if (std::ranges::find(formats, format) == formats.end()) formats.push_back(format);
  }
  const auto files = write_fit_directory(a.output, record, formats);
  print_summary(a, input, record.result, files);
  if (a.json) cli::print_json(manifest_json(record, files));
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
                  "  oscar-fit stats.h5 --method awvq:shape=4x10/awvq:shape=4x6 -o codes/\n"
                  "  oscar-fit stats.h5 --bits 1.5 --engine codebook -o codes/\n"
                  "  oscar-fit --convert rotations/ --base model.gguf -o model-rotated.gguf\n"
                  "  oscar-fit rotations/ --absorb-v Qwen3-8B/ -o Qwen3-8B-rotated/\n"
                  "  oscar-fit --method hadamard --layers 36 --head-dim 128 --format pt -o rotations/\n");
  cli::leave(cli::run(app, argc, argv, [&] { return fit_command(arguments); }));
}
