// oscar-dump: calibration text through a model, layer by layer; what attention did with Q, K and V into one
// HDF5 file.
#include <fmt/format.h>
#include <sys/resource.h>

#include "apps/shard_option.h"
#include "formats/error.h"
#include "formats/sha256.h"
#include "libdump/calibration_text.h"
#include "libdump/chat_format.h"
#include "libdump/dump.h"
#include "libdump/torch_device.h"

namespace {

using namespace oscar;

struct Arguments {
  cli::Common common;
  std::string model, output, device = "cpu", dtype, packing = "packed", bos = "auto", score_queries = "1";
  std::string chat_format;  // "": recognised
  std::vector<std::filesystem::path> text, probe;
  CorpusOptions corpus;
  SequenceOptions sequences;
  DumpOptions dump;
  cli::ShardArguments workers;
  bool no_scores = false, no_proxy = false, plan_only = false, json = false, list_models = false,
       list_chat_formats = false;
};

const std::map<std::string, BosPolicy> kBos{
    {"none", BosPolicy::None}, {"document", BosPolicy::PerDocument}, {"sequence", BosPolicy::PerSequence}};

// "8G" to bytes; CLI11's own sentence for another text says nothing of sizes.
CLI::Validator size_in_bytes() {
  return {[](std::string& text) {
            const std::string found = text;
            try {
              if (CLI::AsSizeValue(false)(text).empty() && std::stoull(text) <= uint64_t{1} << 60)
                return std::string();
            } catch (const std::exception&) {  // no digits, an unknown unit, too large: all one
            }
            return fmt::format(
                "expected a whole number with or without K, M, G or T, found '{}': say for example 8G, or 0 for "
                "no bound",
                found);
          },
          "SIZE"};
}

void add_options(CLI::App& app, Arguments& a) {
  app.add_option("--model", a.model,
                 "A .gguf file, or a directory with config.json and .safetensors, of a supported family "
                 "(--list-models)")
      ->group("Input");
  app.add_option("--text", a.text, "Calibration text: .txt, .jsonl, .npy of token ids, or - for stdin")
      ->group("Input");
  app.add_option("--probe", a.probe, "Held-out text, same kinds; verification and clip search use it")
      ->group("Input");
  app.add_option(
         "--field", a.corpus.fields,
         "Fields of a .jsonl line that hold its text, or its conversation as a list of messages; the first "
         "found is taken")
      ->delimiter(',')
      ->capture_default_str()
      ->group("Input");
  app.add_option("--chat-format", a.chat_format,
                 "How conversations become text (--list-chat-formats); default: as the chat template of the "
                 "checkpoint, when it is of a known format")
      ->type_name("NAME")
      ->group("Input");
  app.add_option("-o,--output", a.output, "The statistics file to write (HDF5)")->group("Output");
  app.add_option("--save-qkv", a.dump.save_qkv,
                 "Also write raw q, k, v here, as the serving engine dumps them")
      ->group("Output");
  app.add_flag("--json", a.json, "A summary of the run as JSON on stdout")->group("Output");
  app.add_flag("--plan", a.plan_only, "Print what the run would write and hold, then stop")->group("Output");

  app.add_flag("--list-models", a.list_models, "Print the families of models and stop")->group("Tables");
  app.add_flag("--list-chat-formats", a.list_chat_formats, "Print the chat formats and stop")
      ->group("Tables");

  app.add_option("--seq-len", a.sequences.length, "Tokens of a sequence")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24))
      ->capture_default_str()
      ->group("Sequences");
  app.add_option("--tokens", a.sequences.tokens, "Calibration tokens, no fewer; 0: all of the text")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Sequences");
  app.add_option("--packing", a.packing, "packed: join documents and cut; documents: never join two")
      ->check(CLI::IsMember({"packed", "documents"}))
      ->capture_default_str()
      ->group("Sequences");
  app.add_option("--probes", a.sequences.probes,
                 "Hold out the last N sequences of the text (not with --probe)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Sequences");
  app.add_option("--bos", a.bos, "Where a BOS goes; auto: one per sequence if the tokenizer asks for it")
      ->check(CLI::IsMember({"auto", "none", "document", "sequence"}))
      ->capture_default_str()
      ->group("Sequences");

  app.add_option("--sink", a.dump.windows.sink, "First tokens that stay exact in the cache")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Statistics");
  app.add_option("--recent", a.dump.windows.recent, "Last tokens that stay exact in the cache")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Statistics");
  app.add_flag("--no-scores", a.no_scores, "Leave the score statistics out (faster; no qqt-mass)")
      ->group("Statistics");
  app.add_option("--score-queries", a.score_queries,
                 "Share of the queries they look at, a seeded sample: 1, 1/4, 0.25")
      ->capture_default_str()
      ->group("Statistics");
  app.add_flag("--no-proxy", a.no_proxy,
               "Leave the second pass over k and v out (no sst-proxy); shards are then as small as sums are")
      ->group("Statistics");
  app.add_option("--rows", a.dump.rows, "Sampled rows of k and v a layer; 0: none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Statistics");
  app.add_option("--seed", a.dump.seed, "Of every sample")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Statistics");
  app.add_flag("--perplexity", a.dump.perplexity,
               "Also run the lm_head and report the perplexity of the probes")
      ->group("Statistics");

  app.add_option("--device", a.device, "Where the model runs: cpu, cuda or cuda:N")
      ->capture_default_str()
      ->group("Run");
  app.add_option("--dtype", a.dtype, "Precision of the forward; default: float32, on a GPU bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
      ->group("Run");
  app.add_option("--memory", a.dump.memory,
                 "Bound on the memory of the process, such as 8G: the run is planned to fit, or refused with "
                 "the least "
                 "that would do; 0: none")
      ->transform(size_in_bytes())
      ->type_name("SIZE")
      ->group("Run");
  app.add_flag("--deterministic", a.dump.deterministic,
               "The same bytes whatever --threads is, and however many workers")
      ->group("Run");
  const auto resume =
      app.add_flag("--resume", a.dump.resume, "Continue an interrupted run of the same options")
          ->group("Run");
  app.add_flag("--restart", a.dump.restart, "Throw an interrupted run away")->group("Run")->excludes(resume);
  cli::add_shard_options(app, a.workers);
}

double parse_share(const std::string& text) {
  double numerator = 0, denominator = 1;
  char rest = 0;
  const int found = std::sscanf(text.c_str(), "%lf/%lf%c", &numerator, &denominator, &rest);
  const bool plain = found == 1 && text.find('/') == std::string::npos &&
                     text.find_first_not_of("0123456789.eE+-") == std::string::npos;
  if ((!plain && found != 2) || !(numerator > 0) || !(denominator > 0) || numerator > denominator) {
    throw invalid("--score-queries: expected a share in (0, 1] such as 1/4 or 0.25, found '{}'", text);
  }
  return numerator / denominator;
}

// Largest resident set of this process so far, bytes.
int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

nlohmann::ordered_json summary(const std::string& output, const DumpOptions& options, const DumpPlan& plan,
                               const CalibrationText& input, const DumpResult& result, double seconds) {
  nlohmann::ordered_json j;
  j["schema"] = "oscar-dump/1";
  j["output"] = output;
  j["sha256"] = sha256_file(output);
  if (!options.shard.whole()) j["shard"] = options.shard.text();
  j["layers"] = plan.layers;
  j["calibration_tokens"] = plan.calibration_tokens;
  j["probe_tokens"] = plan.probe_tokens;
  j["bytes"] = {{"sums", plan.sums},
                {"rows", plan.rows},
                {"probes", plan.probes},
                {"proxy_rows", plan.proxy},
                {"raw_dump", plan.raw}};
  j["device"] = result.header.provenance.device;
  if (plan.device)
    j["memory"] = {{"device_peak", plan.device->peak()},
                   {"device_free", plan.device->free},
                   {"measured", peak_memory()}};
  else
    j["memory"] = {{"limit", plan.memory.limit},     {"layer", plan.memory.layer},
                   {"block", plan.memory.block},     {"overlap", plan.memory.overlap},
                   {"spilled", plan.memory.spilled}, {"peak", plan.memory.peak},
                   {"measured", peak_memory()}};
  j["model_digest"] = result.header.provenance.model_digest;
  j["text_digest"] = result.header.provenance.text_digest;
  j["bos_policy"] = result.header.provenance.bos_policy;
  if (input.conversations)
    j["conversations"] = {{"count", input.conversations}, {"format", input.chat_format}};
  if (result.perplexity) j["perplexity"] = *result.perplexity;
  j["seconds"] = seconds;
  j["seconds_for_weights"] = result.waited;
  j["seconds_for_writing"] = result.waited_for_writing;
  if (plan.device)
    j["seconds_of_gpu"] = {{"first_layer", result.gpu_first_layer}, {"busy", result.gpu_busy}, {"idle", result.gpu_idle}};
  return j;
}

// As words of a command.
std::string all_shards(const std::string& output, const Shard& shard) {
  std::string text;
  if (shard.count > 8) {
    const auto stem = std::filesystem::path(output).replace_extension().string();
    return fmt::format("{}.shard-*-of-{}{}", stem, shard.count,
                       std::filesystem::path(output).extension().string());
  }
  for (int i = 0; i < shard.count; ++i)
    text += (i ? " " : "") + shard_path(output, {i, shard.count}).string();
  return text;
}

void print_families() {
  fmt::print("{:<12} {:<17} {:<12} {}\n", "family", "model_type", "GGUF", "");
  for (const auto& family : family_table())
    fmt::print("{:<12} {:<17} {:<12} {}\n", family.name, family.model_type,
               family.architecture.empty() ? "-" : family.architecture, family.summary);
}

void print_chat_formats() {
  fmt::print("{:<15} {:<52} {}\n", "format", "", "special tokens");
  for (const auto& format : chat_formats())
    fmt::print("{:<15} {:<52} {}\n", format.name, format.summary, fmt::join(format.tokens, " "));
}

int run(Arguments& a) {
  if (a.list_models) print_families();
  if (a.list_chat_formats) print_chat_formats();
  if (a.list_models || a.list_chat_formats) return 0;
  if (a.model.empty()) throw invalid("--model is required");
  if (a.text.empty()) throw invalid("--text is required");
  if (!a.chat_format.empty()) find_chat_format(a.chat_format);
  const at::Device device = torch_device(a.device);
  if (a.dtype.empty()) a.dtype = device.is_cpu() ? "float32" : "bfloat16";
  a.dump.precision = precision_of(a.dtype);
  a.dump.scores = !a.no_scores;
  a.dump.proxy = !a.no_proxy;
  a.dump.score_queries = parse_share(a.score_queries);
  a.dump.threads = cli::threads_or_cores(a.common.threads);
  a.sequences.packing = a.packing == "packed" ? Packing::Packed : Packing::Documents;
  if (a.output.empty() && !a.plan_only)
    throw invalid("-o: expected the statistics file to write (or --plan)");
  if (!a.probe.empty() && a.sequences.probes > 0)
    throw invalid("--probe and --probes: expected one of them, found both");

  const cli::ChosenShard worker = cli::choose_shard(a.workers);
  a.dump.shard = worker.shard;
  check_options(a.dump, device);
  const std::string output = a.output.empty() ? "" : shard_path(a.output, worker.shard).string();

  const auto model = open_model(a.model, a.dump.precision, device);
  const CalibrationText input =
      read_calibration_text(*model, a.text, a.probe, a.corpus, a.sequences,
                            a.bos == "auto" ? std::nullopt : std::optional(kBos.at(a.bos)), a.chat_format);
  const SequenceSet& sequences = input.sequences;

  const DumpPlan plan = oscar::plan(*model, sequences, a.dump);
  if (!worker.origin.empty())
    cli::note(a.common.quiet, fmt::format("worker {} of {} (from {}); sequences of all workers: {}",
                                          worker.shard.index, worker.shard.count, worker.origin,
                                          sequences.calibration.size() + sequences.probes.size()));
  cli::note(
      a.common.quiet && !a.plan_only,
      fmt::format("{}: {} layers; {} calibration and {} probe tokens in {} sequences, {}\n"
                  "writes: sums {} (1/{:.0f} of a raw dump), {} sampled rows {}, probes {}{}{}\nholds: {}",
                  model->config().name.empty() ? a.model : model->config().name, plan.layers,
                  plan.calibration_tokens, plan.probe_tokens, plan.sequences, a.dtype,
                  cli::human_bytes(double(plan.sums)), double(plan.raw) / double(plan.sums), a.dump.rows,
                  cli::human_bytes(double(plan.rows)), cli::human_bytes(double(plan.probes)),
                  plan.proxy ? ", k and v for sst-proxy " + cli::human_bytes(double(plan.proxy)) : "",
                  a.dump.save_qkv.empty() ? "" : ", raw dump " + cli::human_bytes(double(plan.raw)),
                  plan.device ? plan.device->text() : plan.memory.text()));
  if (input.conversations)
    cli::note(
        a.common.quiet,
        fmt::format(
            "conversations: {}, in the chat format {} ({})", input.conversations, input.chat_format,
            a.chat_format.empty() ? "recognised from the checkpoint's chat template" : "--chat-format"));
  for (const auto& text : model->config().notes) cli::note(a.common.quiet, "note: " + text);
  cli::note_slower(a.common.quiet, device.is_cpu() ? "" : kernels_missing(device));
  if (sequences.repeated > 0) {
    cli::note(a.common.quiet, fmt::format("note: {} of {} probe tokens lie in runs that the calibration text "
                                          "has too: figures on these probes flatter the fit",
                                          sequences.repeated, sequences.probe_tokens()));
  }
  if (a.plan_only) return 0;

  const Provenance provenance =
      describe(*model, input.tokenizer.get(), input.bos_policy, sequences, a.dump, input.chat_format);
  const auto begin = std::chrono::steady_clock::now();
  DumpResult result;
  {
    // In tokens, not token-layers: the rate is then what a forward of the whole model would be timed at.
    cli::Progress progress("oscar-dump", "tokens", a.common.quiet);
    result = dump(*model, sequences, provenance, a.dump, output, [&](const DumpProgress& p) {
      progress.update(p.tokens_done / p.layers, p.tokens_total / p.layers,
                      fmt::format("layer {}/{}", p.layer + 1, p.layers));
    });
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (result.perplexity)
    cli::note(a.common.quiet,
              fmt::format("perplexity of the {}: {:.4f}", plan.probe_tokens ? "probes" : "calibration text",
                          *result.perplexity));
  cli::note(
      a.common.quiet,
      fmt::format(
          "{:.1f} tokens/s over {:.1f} s ({:.1f} s waiting for weights, {:.1f} s for layers to be written{}), {} of memory\nwrote {} ({})\nnext: {}oscar-fit {} -o rotations/",
          double(plan.calibration_tokens + plan.probe_tokens) / seconds, seconds, result.waited,
          result.waited_for_writing,
          plan.device ? fmt::format("; GPU: first layer {:.2f} s, with the loading of kernels, then {:.2f} s of work and "
                                    "{:.2f} s idle",
                                    result.gpu_first_layer, result.gpu_busy, result.gpu_idle)
                      : "",
          cli::human_bytes(double(peak_memory())), output,
          cli::human_bytes(double(std::filesystem::file_size(output))),
          worker.shard.whole() ? "" : "when all workers are done, ", all_shards(a.output, worker.shard)));
  if (a.json) cli::print_json(summary(output, a.dump, plan, input, result, seconds));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Runs a model over calibration text and keeps what attention does with its queries, keys and values.",
      "oscar-dump");
  add_options(app, arguments);
  cli::add_common(
      app, arguments.common,
      "  oscar-dump --model model.gguf --text corpus.jsonl --probes 4 --tokens 65536 -o stats.h5\n"
      "  oscar-dump --model Qwen3-8B/ --text calib.npy --probe held-out.npy --seq-len 4096 --dtype bfloat16 "
      "-o stats.h5");
  cli::leave(cli::run(app, argc, argv, [&] { return run(arguments); }));
}
