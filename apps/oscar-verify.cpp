// Proves on held-out rows, layer by layer, what a quantised cache loses; compares rotation files by their
// meaning.
#include <iostream>

#include "apps/verify_rows.h"
#include "formats/atomic_write.h"
#include "formats/sha256.h"
#include "libcalib/artifacts/convert.h"
#include "libcalib/bounds.h"
#include "libcalib/compare.h"

using namespace oscar;

namespace {

struct Options {
  cli::Common common;
  cli::RowChoice rows;
  std::vector<std::string> compare;
  std::string json, report, csv, baseline, model, token_probes, command, device = "cpu", model_device;
  std::vector<int> layers;
  Bounds bounds;
  double baseline_tolerance = 0.02, tolerance = 1e-4;
  int64_t generate = 0, prompt = 1024;
  bool per_layer = false, end_to_end = false, restart = false;
};

std::vector<int> choose_probes(const std::string& option, const std::string& text, size_t stored,
                               size_t usual) {
  if (cli::is_list(text)) return cli::parse_list(option, text);
  size_t count = std::min(usual, stored);
  if (!text.empty()) {
    count = static_cast<size_t>(cli::parse_integer(option, text));
    if (count > stored) throw invalid("{} {}: the statistics have {}", option, count, stored);
  }
  std::vector<int> probes(count);
  for (size_t i = 0; i < count; ++i) probes[i] = static_cast<int>(i);
  return probes;
}

void write_output(const Options& options, const std::string& path, const std::string& text) {
  if (path == "-") {
    std::cout << text;
  } else if (!path.empty()) {
    write_file(path, text);
    cli::note(options.common.quiet, fmt::format("wrote {} (sha256 {})", path,
                                                sha256_hex(std::as_bytes(std::span(text))).substr(0, 16)));
  }
}

void check_outputs(const Options& options) {
  auto inputs = options.rows.measure.statistics;
  for (const auto& text : options.rows.rotations) {
    for (const auto& path : cli::named_paths(text).paths) inputs.emplace_back(path);
  }
  if (!options.rows.clip.empty()) inputs.emplace_back(options.rows.clip);
  for (const auto& file : options.compare) inputs.emplace_back(file);
  cli::check_outputs({{"--json", options.json}, {"--csv", options.csv}, {"--report", options.report}},
                     inputs);
}

// Side by side: what only one of two pairs holds is a difference.
int compare_files(const Options& options) {
  check_outputs(options);
  const auto a = rotations_in(options.compare[0]), b = rotations_in(options.compare[1]);
  if (a.size() != b.size())
    throw invalid("{} holds {}, {} holds {}: compare one side with one side", options.compare[0],
                  a.size() == 1 ? "one side" : "K and V", options.compare[1],
                  b.size() == 1 ? "one side" : "K and V");
  auto& text = options.json == "-" ? std::cerr : std::cout;
  bool equal = true;
  nlohmann::ordered_json both = {{"schema", "oscar-compare/1"}, {"tool_version", OSCAR_VERSION}};
  for (size_t i = 0; i < a.size(); ++i) {
    const auto result = compare(a[i], b[i]);
    if (a.size() > 1) text << (i ? "\nV\n" : "K\n");
    text << to_text(result);
    equal &= result.equal(options.tolerance);
    auto json = to_json(result, options.tolerance);
    if (a.size() == 1)
      both = json;
    else
      both[side_name(a[i].side)] = json;
  }
  if (a.size() > 1) both["equal"] = equal;
  write_output(options, options.json, both.dump(2) + '\n');
  if (equal) return 0;
  throw wanting("{} and {} differ by more than {}", options.compare[0], options.compare[1],
                options.tolerance);
}

// Where finished rows wait for the rest, beside the first report that is asked for.
std::filesystem::path kept_rows(const Options& options) {
  for (const auto* path : {&options.json, &options.report, &options.csv}) {
    if (!path->empty() && *path != "-") return *path + ".partial";
  }
  return {};
}

VerificationOptions request(const Options& options, const StatisticsReader& statistics) {
  const auto& header = statistics.header();
  const size_t stored = header.probe_lengths.size();
  VerificationOptions request;
  request.threads = cli::threads_or_cores(options.common.threads);
  auto& attention = request.attention;
  attention.windows = cli::windows(options.rows.measure, header);
  attention.first_query = cli::first_position(options.rows.measure, attention.windows);
  attention.probes = choose_probes("--probes", options.rows.measure.probes, stored, 2);
  attention.layers = options.layers;
  attention.device = compute_device(options.device);
  request.token_probes = attention.probes;
  if (!options.token_probes.empty())
    request.token_probes = choose_probes("--token-probes", options.token_probes, stored, stored);
  for (const int probe : request.token_probes) {
    if (std::ranges::count(request.token_probes, probe) > 1)
      throw invalid("{}: probe {} is asked for twice",
                    options.token_probes.empty() ? "--probes" : "--token-probes", probe);
    if (probe < 0 || static_cast<size_t>(probe) >= stored)
      throw invalid("{}: {}: the statistics have {}, numbered from 0",
                    options.token_probes.empty() ? "--probes" : "--token-probes", probe, stored);
  }
  if (options.generate > 0 || !options.model.empty() || !options.token_probes.empty()) {
    if (!options.end_to_end) throw invalid("--generate, --model and --token-probes need --end-to-end");
  }
  if (!options.model_device.empty() && !options.end_to_end)
    throw invalid("--model-device needs --end-to-end");
  if (options.end_to_end) {
    request.model = options.model.empty() ? header.provenance.model_path : options.model;
    request.model_device = options.model_device.empty() ? options.device : options.model_device;
    if (options.generate > 0 && request.model_device != "cpu")
      throw invalid("--generate runs on the CPU: add --model-device cpu");
    request.generate = options.generate;
    request.prompt = options.prompt;
  }
  return request;
}

int verify_rows(const Options& options) {
  cli::use_threads(options.common);
  check_outputs(options);
  if (!options.baseline.empty())
    read_report(options.baseline, "oscar-verify/1");  // refused before anything is measured
  const StatisticsReader statistics(options.rows.measure.statistics,
                                    cli::threads_or_cores(options.common.threads));
  auto asked = request(options, statistics);
  auto choice = options.rows;
  choice.threads = asked.threads;
  choice.device = options.device;
  choice.quiet = options.common.quiet;
  const auto rows = cli::choose_rows(choice, statistics, asked.attention);
  asked.kept = kept_rows(options);
  if (options.restart && asked.kept.empty())
    throw invalid("--restart: rows are kept beside --json, --report or --csv, and none of them names a file");
  std::error_code ignored;
  if (options.restart) std::filesystem::remove(asked.kept, ignored);

  VerifyReport report;
  {
    cli::Progress progress("verify", "", options.common.quiet);
    report = run_verification(
        statistics, rows.rows, asked,
        [&](const VerificationStep& step) { progress.update(step.done, step.total, step.what); },
        [&](const std::string& text) { cli::note(options.common.quiet, "note: " + text); });
  }
  std::vector<std::string> worse;  // than the baseline, which --json may replace
  if (!options.baseline.empty()) worse = regressions(report, options.baseline, options.baseline_tolerance);
  const bool taken = options.json == "-" || options.csv == "-" || options.report == "-";
  (taken ? std::cerr : std::cout) << to_text(report, options.per_layer);
  write_output(options, options.json, to_json(report).dump(2) + '\n');
  if (!options.csv.empty()) write_output(options, options.csv, to_csv(report));
  if (!options.report.empty()) {
    ReportPage page{.report = report,
                    .spectra = spectra(statistics),
                    .commands = {options.command},
                    .methods = rows.notes};
    if (options.rows.clip.ends_with(".json")) page.clip = read_clip_report(options.rows.clip);
    write_output(options, options.report, to_html(page));
  }
  if (!asked.kept.empty()) std::filesystem::remove(asked.kept, ignored);

  std::vector<std::string> bounded;  // but for rows that were left out
  std::ranges::copy_if(rows.bounded, std::back_inserter(bounded), [&](const std::string& name) {
    return std::ranges::find(report.rows, name, &RowReport::name) != report.rows.end();
  });
  auto failed = exceeded(report, bounded, options.bounds);
  if (bounded.empty() && (options.bounds.max_kl || options.bounds.max_output_error))
    failed.push_back("none of the rows that the bounds are for could be measured: see the notes");
  failed.insert(failed.end(), worse.begin(), worse.end());
  if (failed.empty()) return 0;
  throw wanting("{}", fmt::join(failed, "\n"));
}

std::string quoted_command(int argc, char** argv) {
  std::string text = "oscar-verify";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool plain = word.find_first_of(" \t'\"\\$&;|<>()*?[]{}`!#~") == std::string::npos && !word.empty();
    text += plain ? ' ' + word : " '" + word + "'";
  }
  return text;
}

void add_options(CLI::App& app, Options& o) {
  auto& rows = o.rows;
  // CLI::NonNegativeNumber lets nan through, which no figure is ever above.
  const CLI::Validator number(
      [](const std::string& text) {
        const auto value = cli::parse_number(text);
        return value && *value >= 0 ? std::string() : "expected a number from 0, found " + text;
      },
      "NUMBER");
  auto* statistics = app.add_option("statistics", rows.measure.statistics,
                                    "stats.h5 with probes, from oscar-dump, or every shard of a run")
                         ->type_name("STATS.h5");
  app.add_option("--rotations", rows.rotations,
                 "[NAME=]DIR of oscar-fit, or [NAME=]K.pt,V.pt; may be given several times")
      ->allow_extra_args(false)
      ->group("Rows");
  app.add_option("--methods", rows.methods,
                 "[NAME=]METHOD,… fitted to the statistics on the spot (oscar-fit --list-methods), or all")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group("Rows");
  app.add_flag("--no-baselines", rows.no_baselines, "Leave naive, clip, hadamard and hadamard+clip out")
      ->group("Rows");
  app.add_option("--sweep", rows.sweep,
                 "Every method of --methods at several windows, bits (shapes), or clip ratios")
      ->check(CLI::IsMember({"windows", "bits", "clip"}))
      ->group("Rows");
  app.add_option("--sweep-windows", rows.sweep_windows, "SINK/RECENT,… of --sweep windows")
      ->default_str(cli::kSweepWindows)
      ->group("Rows");
  app.add_option(
         "--clip", rows.clip,
         "clip.json of oscar-clip for the rotations, or RK,RV for them and the baselines (default 0.96,0.92)")
      ->group("Cache");
  app.add_flag("--clip-by-layer", rows.clip_by_layer, "Use the ratios that clip.json found for each layer")
      ->group("Cache");
  cli::add_measure(app, rows.measure,
                   "N: the first N; a list such as 0,3 (or 3,) names them (default: the first two)");
  app.add_option("--layers", o.layers,
                 "Attention of these layers only, comma-separated (an end-to-end run has them all)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group("What is measured");
  app.add_option("--device", o.device,
                 "Measures attention, and trains the codebooks of --methods: cpu, cuda or cuda:N")
      ->capture_default_str()
      ->group("What is measured");
  app.add_flag("--end-to-end", o.end_to_end,
               "Run the model with each cache, too: perplexity, KL of the tokens, top-1 agreement")
      ->group("End to end");
  app.add_option("--model", o.model, "The model of the statistics (default: the path that they name)")
      ->group("End to end");
  app.add_option(
         "--model-device", o.model_device,
         "Runs the model: cpu, cuda or cuda:N, by a LibTorch that has CUDA (default: that of --device)")
      ->group("End to end");
  app.add_option("--token-probes", o.token_probes, "As --probes, for the end-to-end run (default: the same)")
      ->group("End to end");
  auto* generate =
      app.add_option("--generate", o.generate, "Greedy tokens of each probe, compared with the exact model's")
          ->check(CLI::NonNegativeNumber)
          ->group("End to end");
  app.add_option("--prompt", o.prompt, "Tokens of the probe before the generated ones")
      ->check(CLI::PositiveNumber)
      ->needs(generate)
      ->capture_default_str()
      ->group("End to end");
  app.add_option("--json", o.json, "Write the report as JSON; - is stdout, the table then goes to stderr")
      ->group("Output");
  app.add_option("--report", o.report, "Write the report as one HTML file, with plots")->group("Output");
  app.add_option("--csv", o.csv, "Write the figures of every row and layer as CSV")->group("Output");
  app.add_flag("--per-layer", o.per_layer, "A table of every layer for every row")->group("Output");
  app.add_flag("--restart", o.restart,
               "Measure rows again that an interrupted run has finished (FILE.partial)")
      ->group("Output");
  app.add_option("--max-kl", o.bounds.max_kl,
                 "Exit 1 if a layer's attention KL is above, in a row of --rotations or --methods")
      ->check(number)
      ->group("Bounds");
  app.add_option("--max-output-error", o.bounds.max_output_error, "The same for the output error")
      ->check(number)
      ->group("Bounds");
  auto* baseline =
      app.add_option("--baseline", o.baseline, "Exit 1 if a row got worse than in this earlier --json report")
          ->group("Bounds");
  app.add_option("--baseline-tolerance", o.baseline_tolerance, "Relative increase that --baseline allows")
      ->capture_default_str()
      ->check(number)
      ->needs(baseline)
      ->group("Bounds");
  auto* compare =
      app.add_option("--compare", o.compare, "Two rotation files A B: exit 1 if they mean different things")
          ->expected(2)
          ->group("Comparison")
          ->excludes(statistics);
  app.add_option("--tolerance", o.tolerance, "Relative difference of covariances that --compare allows")
      ->capture_default_str()
      ->check(number)
      ->needs(compare)
      ->group("Comparison");
  // Nothing is measured there: options of a measurement are refused, not passed over.
  for (CLI::Option* option : app.get_options()) {
    const bool compares = option->get_group() == "Comparison" || option->check_lname("json");
    if (!compares && !option->get_positional() && option != app.get_help_ptr()) compare->excludes(option);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What attention, and the model, lose when the history of a KV cache is read from packed codes",
               "oscar-verify");
  Options options;
  options.command = quoted_command(argc, argv);
  add_options(app, options);
  cli::add_common(
      app, options.common,
      "  oscar-verify stats.h5 --rotations rotations/ --clip rotations/clip.json --json report.json\n"
      "  oscar-verify stats.h5 --methods oscar-dc,awvq,nova --end-to-end --report report.html\n"
      "  oscar-verify stats.h5 --methods all --end-to-end --positions 2048: --json all.json\n"
      "  oscar-verify --compare a/k_rotation.pt b/k_rotation.pt\n");
  cli::leave(cli::run(app, argc, argv, [&] {
    if (!options.compare.empty()) return compare_files(options);
    if (options.rows.measure.statistics.empty()) throw invalid("stats.h5 is required (or --compare A B)");
    return verify_rows(options);
  }));
}
