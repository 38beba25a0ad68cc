// Searches the clip ratios on held-out rows by what attention loses, and prints what to serve with.
#include <iostream>

#include "apps/measure.h"
#include "formats/atomic_write.h"
#include "formats/sha256.h"
#include "libcalib/report.h"

using namespace oscar;

// The last probes, so that oscar-verify's default (the first two) stays unseen; all of them when there are no
// more.
static std::vector<int> choose_probes(const std::string& text, size_t stored, bool quiet) {
  if (cli::is_list(text)) return cli::parse_list("--probes", text);
  size_t count = stored > 2 ? stored - 2 : stored;
  if (!text.empty()) {
    count = static_cast<size_t>(cli::parse_integer("--probes", text));
    if (count > stored) throw invalid("--probes {}: the statistics have {}", count, stored);
  }
  if (stored > 0 && stored - count < 2) {
    cli::note(quiet,
              fmt::format(
                  "note: of {} probes, the search uses the last {}: oscar-verify's default probes (the first "
                  "two) are among them, its figures will be slightly favourable",
                  stored, count));
  }
  std::vector<int> probes;
  for (size_t i = stored - count; i < stored; ++i) probes.push_back(static_cast<int>(i));
  return probes;
}

int main(int argc, char** argv) {
  CLI::App app("Clip ratios of a 2-bit KV cache, searched on held-out rows by the attention's own loss",
               "oscar-clip");
  cli::Common common;
  cli::Measure measure;
  ClipOptions options;
  std::string rotations, output;
  std::vector<double> ratios;
  bool json = false;
  app.add_option("statistics", measure.statistics,
                 "stats.h5 with probes, from oscar-dump, or every shard of a run")
      ->required()
      ->type_name("STATS.h5");
  app.add_option("--rotations", rotations, "Directory of oscar-fit, or K.pt,V.pt")->required();
  app.add_option("-o,--output", output, "clip.json to write; oscar-verify --clip reads it")->group("Output");
  app.add_flag("--json", json, "The report as JSON on stdout instead of the table")->group("Output");
  cli::add_measure(app, measure,
                   "N: the last N; a list such as 2,3 (or 2,) names them (default: all but the first two)");
  app.add_option("--queries", options.queries, "Positions sampled per probe and layer")
      ->capture_default_str()
      ->group("What is measured");
  app.add_option("--seed", options.seed, "Seed of the sample")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("What is measured");
  app.add_option("--ratios", ratios,
                 "Grid of ratios, comma-separated; 0 (off), 0.96 for K and 0.92 for V are always in it")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group("What is measured");
  cli::add_common(app, common,
                  "  oscar-clip stats.h5 --rotations rotations/ -o rotations/clip.json\n"
                  "  oscar-clip stats.h5 --rotations k_rotation.pt,v_rotation.pt --positions 2048: --ratios "
                  "0.9,0.94,0.98\n");
  return cli::run(app, argc, argv, [&] {
    cli::use_threads(common);
    auto inputs = measure.statistics;
    for (const auto& path : cli::named_paths(rotations).paths) inputs.emplace_back(path);
    cli::check_outputs({{"-o", output}}, inputs);
    const auto& codec = find_codec(measure.codec.value_or(cli::kCodec));
    const StatisticsReader statistics(measure.statistics, cli::threads_or_cores(common.threads));
    const auto named = cli::read_named_rotations(rotations);
    if (named.codes) {
      throw invalid(
          "--rotations {}: these codes bring their own codec ({} / {}); clip ratios are searched for "
          "rotations "
          "of an INT2 engine",
          rotations, codec_names(named.codes->k), codec_names(named.codes->v));
    }
    const auto& pair = named.pair;
    options.windows = cli::windows(measure, statistics.header());
    options.first_query = cli::first_position(measure, options.windows);
    options.probes = choose_probes(measure.probes, statistics.header().probe_lengths.size(), common.quiet);
    if (!ratios.empty()) options.ratios = ratios;

    cli::Progress progress("clip", "step", common.quiet);
    const auto report = search_clip(statistics, &pair.k, &pair.v, codec, measure.groups.value_or(1), options,
                                    cli::layer_progress(progress, statistics.header().layers.size()));
    const auto text = to_json(report).dump(2) + '\n';
    std::cout << (json ? text : to_text(report));
    if (output.empty()) return 0;
    write_file(output, text);
    cli::note(common.quiet,
              fmt::format("wrote {} (sha256 {})\nnext: oscar-verify {} --rotations {} --clip {}", output,
                          sha256_hex(std::as_bytes(std::span(text))).substr(0, 16),
                          cli::statistics_text(measure), rotations, output));
    return 0;
  });
}
