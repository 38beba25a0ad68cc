// Proves on held-out rows, layer by layer, what a quantised cache loses; compares rotation files by their
// meaning.
#include <iostream>

#include "apps/measure.h"
#include "formats/atomic_write.h"
#include "formats/sha256.h"
#include "libcalib/bounds.h"
#include "libcalib/clip.h"
#include "libcalib/compare.h"
#include "libcalib/report.h"
#include "libcalib/verify_rows.h"

using namespace oscar;

namespace {

struct Options {
  cli::Common common;
  cli::Measure measure;
  std::vector<std::string> rotations, compare;
  std::string clip, json, baseline;
  std::vector<int> layers;
  Bounds bounds;
  double baseline_tolerance = 0.02, tolerance = 1e-4;
  bool per_layer = false, clip_by_layer = false;
};

std::vector<int> choose_probes(const std::string& text, size_t stored) {
  if (cli::is_list(text)) return cli::parse_list("--probes", text);
  size_t count = std::min<size_t>(2, stored);
  if (!text.empty()) {
    count = static_cast<size_t>(cli::parse_integer("--probes", text));
    if (count > stored) throw invalid("--probes {}: the statistics have {}", count, stored);
  }
  std::vector<int> probes(count);
  for (size_t i = 0; i < count; ++i) probes[i] = static_cast<int>(i);
  return probes;
}

// --clip RK,RV holds for every row; a clip.json was found for the rotations, the baselines keep the published
// constants.
struct Clip {
  ClipChoice rotations;
  double baseline_k = kHandRatioK, baseline_v = kHandRatioV;
};
Clip read_clip_option(const Options& options, const std::vector<int>& probes) {
  Clip clip;
  clip.rotations.model_k = kHandRatioK;
  clip.rotations.model_v = kHandRatioV;
  if (options.clip.empty()) return clip;
  const auto parts = cli::split(options.clip, ',');
  const auto k = cli::parse_number(parts[0]);
  const auto v = parts.size() == 2 ? cli::parse_number(parts[1]) : std::nullopt;
  if (k && v) {
    clip.baseline_k = clip.rotations.model_k = *k;
    clip.baseline_v = clip.rotations.model_v = *v;
    return clip;
  }
  clip.rotations = read_clip(options.clip);
  for (const int probe : clip.rotations.probes) {
    if (std::ranges::find(probes, probe) == probes.end()) continue;
    cli::note(options.common.quiet,
              fmt::format("note: {} was searched on probe {} too: the figures are slightly favourable",
                          options.clip, probe));
    break;
  }
  return clip;
}

void write_json(const Options& options, const std::string& text) {
  if (options.json == "-") {
    std::cout << text;
  } else if (!options.json.empty()) {
    write_file(options.json, text);
    cli::note(options.common.quiet, fmt::format("wrote {} (sha256 {})", options.json,
                                                sha256_hex(std::as_bytes(std::span(text))).substr(0, 16)));
  }
}

int compare_files(const Options& options) {
  const auto result = compare(read_rotations(options.compare[0]), read_rotations(options.compare[1]));
  (options.json == "-" ? std::cerr : std::cout) << to_text(result);
  write_json(options, to_json(result, options.tolerance).dump(2) + '\n');
  if (result.equal(options.tolerance)) return 0;
  throw wanting("{} and {} differ by more than {}", options.compare[0], options.compare[1],
                options.tolerance);
}

int verify_rows(const Options& options) {
  cli::use_threads(options.common);
  const StatisticsReader statistics(options.measure.statistics);
  VerifyOptions request;
  request.windows = cli::windows(options.measure, statistics.header());
  request.first_query = cli::first_position(options.measure, request.windows);
  request.probes = choose_probes(options.measure.probes, statistics.header().probe_lengths.size());
  request.layers = options.layers;

  const auto clip = read_clip_option(options, request.probes);
  const ScalarRows scalar{statistics.header().layers, &find_codec(options.measure.codec),
                          options.measure.groups};
  auto rows = scalar.baselines(clip.baseline_k, clip.baseline_v);
  std::vector<std::string> bounded;
  for (const auto& text : options.rotations) {
    const auto [name, pair] = cli::read_named_rotations(text);
    bounded.push_back(name);
    const auto& found = clip.rotations;
    const bool own = options.clip_by_layer;
    rows.push_back(scalar.row(name, &pair.k, &pair.v, found.model_k, found.model_v,
                              own ? found.k : decltype(found.k){}, own ? found.v : decltype(found.v){}));
  }
  if (bounded.empty()) {
    for (const auto& row : rows) bounded.push_back(row.name);
  }

  cli::Progress progress("verify", "step", options.common.quiet);
  const size_t layers = options.layers.empty() ? statistics.header().layers.size() : options.layers.size();
  const auto report = verify(statistics, rows, request, cli::layer_progress(progress, layers));
  (options.json == "-" ? std::cerr : std::cout) << to_text(report, options.per_layer);
  write_json(options, to_json(report).dump(2) + '\n');

  auto failed = exceeded(report, bounded, options.bounds);
  if (!options.baseline.empty()) {
    for (auto& line : regressions(report, options.baseline, options.baseline_tolerance))
      failed.push_back(std::move(line));
  }
  if (failed.empty()) return 0;
  throw wanting("{}", fmt::join(failed, "\n"));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "What attention loses, layer by layer, when the history of a KV cache is read from packed codes",
      "oscar-verify");
  Options options;
  auto* statistics =
      app.add_option("statistics", options.measure.statistics, "stats.h5 with probes, from oscar-dump");
  app.add_option("--rotations", options.rotations,
                 "[NAME=]DIR of oscar-fit, or [NAME=]K.pt,V.pt; may be given several times")
      ->allow_extra_args(false);
  app.add_option("--clip", options.clip,
                 "clip.json of oscar-clip for the rotations, or RK,RV for every row (default 0.96,0.92)")
      ->group("Cache");
  app.add_flag("--clip-by-layer", options.clip_by_layer, "Use the ratios that clip.json found for each layer")
      ->group("Cache");
  cli::add_measure(app, options.measure,
                   "N: the first N; a list such as 0,3 (or 3,) names them (default: the first two)");
  app.add_option("--layers", options.layers, "Only these layers, comma-separated")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group("What is measured");
  app.add_option("--json", options.json,
                 "Write the report as JSON; - is stdout, the table then goes to stderr")
      ->group("Output");
  app.add_flag("--per-layer", options.per_layer, "A table of every layer for every row")->group("Output");
  app.add_option("--max-kl", options.bounds.max_kl,
                 "Exit 1 if a layer's attention KL is above, in a row of --rotations")
      ->group("Bounds");
  app.add_option("--max-output-error", options.bounds.max_output_error, "The same for the output error")
      ->group("Bounds");
  app.add_option("--baseline", options.baseline,
                 "Exit 1 if a row got worse than in this earlier --json report")
      ->group("Bounds");
  app.add_option("--baseline-tolerance", options.baseline_tolerance,
                 "Relative increase that --baseline allows")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->group("Bounds");
  auto* compare = app.add_option("--compare", options.compare,
                                 "Two rotation files A B: exit 1 if they mean different things")
                      ->expected(2)
                      ->group("Comparison")
                      ->excludes(statistics);
  app.add_option("--tolerance", options.tolerance, "Relative difference of covariances that --compare allows")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->needs(compare)
      ->group("Comparison");
  cli::add_common(
      app, options.common,
      "  oscar-verify stats.h5 --rotations rotations/ --clip rotations/clip.json --json report.json\n"
      "  oscar-verify stats.h5 --rotations oscar=a/ --rotations dc=b/ --positions 2048: --max-kl 0.2\n"
      "  oscar-verify --compare a/k_rotation.pt b/k_rotation.pt\n");
  return cli::run(app, argc, argv, [&] {
    if (!options.compare.empty()) return compare_files(options);
    if (options.measure.statistics.empty()) throw invalid("stats.h5 is required (or --compare A B)");
    return verify_rows(options);
  });
}
