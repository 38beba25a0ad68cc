#include "libdump/dump.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <mutex>

#include "formats/atomic_write.h"
#include "formats/error.h"
#include "libcalib/artifacts/raw_dump.h"
#include "libdump/models/host_rows.h"
#include "libdump/partial.h"
#include "libdump/sinks/layer_sink.h"
#include "libdump/torch_device.h"

namespace oscar {

namespace {

// Parts of a version that kept other sums do not go on.
std::string sum_names() {
  std::string names;
  for (const SumInfo& info : sum_table()) names.append(info.name).push_back(' ');
  return names;
}

std::map<std::string, std::string> fingerprint(const Provenance& p, const DumpOptions& o,
                                               const std::vector<std::vector<int32_t>>& probes,
                                               int inner_threads, at::Device device) {
  std::map<std::string, std::string> all = {
      {"schema", "oscar-stats/1"},
      {"tool_version", p.tool_version},
      {"model_digest", p.model_digest},
      {"tokenizer_digest", p.tokenizer_digest},
      {"text_digest", p.text_digest},
      {"probe_digest", digest(probes)},
      {"dtype", name(o.precision)},
      {"device", p.device},
      {"windows", fmt::format("{}/{}", o.windows.sink, o.windows.recent)},
      {"scores", o.scores ? "true" : "false"},
      {"sums", sum_names()},
      {"score_queries", fmt::format("{}", o.score_queries)},
      {"seed", fmt::format("{}", o.seed)},
      {"rows", fmt::format("{}", o.rows)},
      {"proxy", o.proxy ? "true" : "false"},
      {"shard", o.shard.text()},
      {"save_qkv", o.save_qkv.string()},
      {"deterministic", o.deterministic ? "true" : "false"},
      {"threads", o.deterministic ? "any" : fmt::format("{}", o.threads)},
      {"threads of a product", fmt::format("{}", inner_threads)}};
  if (!device.is_cpu()) all["kernels"] = has_kernels(device) ? "this build's" : "LibTorch's";
  return all;
}

const LayerShape* shape_of(const ModelConfig& config, int layer) {
  for (const LayerShape& shape : config.attention) {
    if (shape.layer == layer) return &shape;
  }
  return nullptr;
}

// What the shards of a run must have in common besides what the provenance names.
std::string options_of_run(int inner_threads) {
  return fmt::format("threads of a product={} sums={}", inner_threads, sum_names());
}

// Mean over positions of -log p(next token), exponentiated.
double perplexity(const Model& model, const std::vector<at::Tensor>& hidden,
                  const std::vector<std::vector<int32_t>>& sequences, size_t first) {
  const c10::InferenceMode guard;
  double nats = 0;
  int64_t count = 0;
  for (size_t s = first; s < sequences.size(); ++s) {
    const auto targets = static_cast<int64_t>(sequences[s].size()) - 1;
    for (int64_t t = 0; t < targets; t += 512) {
      const int64_t n = std::min<int64_t>(512, targets - t);
      const at::Tensor scores = at::log_softmax(model.logits(hidden[s].narrow(0, t, n)), 1);
      const std::vector<int64_t> next(sequences[s].begin() + t + 1, sequences[s].begin() + t + 1 + n);
      const at::Tensor of_next =
          to_cpu(scores.gather(1, to_device(at::tensor(next), model.device()).unsqueeze(1)));
      for (int64_t i = 0; i < n; ++i) {
        const float value = of_next.const_data_ptr<float>()[i];
        if (!std::isfinite(value))
          throw failure(
              "after the last layer, sequence {}, token {}: the logits are not finite: the model overflows; "
              "run with --dtype float32 or check the checkpoint",
              s, t + i);
        nats -= value;
      }
      count += n;
    }
  }
  return std::exp(nats / static_cast<double>(std::max<int64_t>(count, 1)));
}

}  // namespace

Provenance describe(const Model& model, const Tokenizer* tokenizer, const std::string& bos_policy,
                    const SequenceSet& sequences, const DumpOptions& options,
                    const std::string& chat_format) {
  const ModelConfig& config = model.config();
  Provenance p;
  p.tool_version = OSCAR_VERSION;
  p.model_name = config.name;
  p.model_path = std::filesystem::absolute(config.path).lexically_normal().string();
  p.architecture = config.architecture;
  p.model_digest = model.weights().digest();
  p.tokenizer_digest = tokenizer ? tokenizer->digest() : "";
  p.text_digest = digest(sequences.calibration);
  p.bos_policy = bos_policy;
  p.rope = config.describe_rope();
  p.dtype = name(options.precision);
  p.device = model.device().is_cpu() ? "cpu" : "cuda";
  p.command = fmt::format("sink={} recent={} scores={} score-queries={} rows={} seed={}{}",
                          options.windows.sink, options.windows.recent, options.scores, options.score_queries,
                          options.rows, options.seed, options.proxy ? "" : " proxy=false");
  if (!chat_format.empty()) p.command += " chat-format=" + chat_format;
  p.layers_total = config.layers;
  p.tokens = share_of(sequences, options.shard).tokens();
  p.shard = options.shard.text();
  p.sequence_lengths = lengths(sequences.calibration);
  return p;
}

DumpResult dump(Model& model, const SequenceSet& set, const Provenance& provenance,
                const DumpOptions& options, const std::filesystem::path& output,
                const std::function<void(const DumpProgress&)>& progress) {
  using Clock = std::chrono::steady_clock;
  const ModelConfig& config = model.config();
  const DType rows_dtype = dtype_of(options.precision);
  const at::Device device = model.device();
  check_options(options, device);
  const std::vector<Dealt> workers = deal(set, options.shard.count);
  const Dealt& own = workers.at(static_cast<size_t>(options.shard.index));
  const SequenceSet share = share_of(set, options.shard);
  const auto calibration = static_cast<int64_t>(share.calibration.size());
  // Index in the run of a sequence that runs here.
  const auto index_in_run = [&](int64_t i) {
    return i < calibration ? own.calibration[static_cast<size_t>(i)]
                           : static_cast<int64_t>(set.calibration.size()) +
                                 own.probes[static_cast<size_t>(i - calibration)];
  };
  const std::filesystem::path raw_folder =
      options.save_qkv.empty() ? "" : options.save_qkv.string() + ".partial";

  if (!device.is_cpu()) plan_device(model, set, options);
  const MemoryNeeds needs = needs_of(model, set, options);
  const MemoryPlan memory = plan_memory(needs, options.memory);
  const auto of_run = static_cast<int64_t>(set.calibration.size() + set.probes.size());
  DecoderOptions how{.threads = options.threads,
                     .deterministic = options.deterministic,
                     .sequences_of_run = of_run,
                     .block = memory.block < needs.threads ? memory.block : 0,
                     .read_ahead = memory.overlap,
                     .frugal = options.memory > 0};
  const int inner = device.is_cpu() ? threading_of(how, of_run).inner : 1;

  DumpResult result;
  StatisticsHeader& header = result.header;
  header.provenance = provenance;
  header.windows = options.windows;
  header.has_scores = options.scores;
  header.has_output_scores = options.scores;
  header.layers = config.attention;
  header.probe_lengths = lengths(set.probes);
  header.probe_ids = set.probes;
  if (!options.shard.whole()) {
    header.shard_sequences = own.calibration;
    header.shard_probes = own.probes;
    header.shard_plan = plan_digest(set, workers, options_of_run(inner));
  }

  if (options.memory > 0) header.memory_plan = memory.text();

  PartialRun partial(output, fingerprint(provenance, options, set.probes, inner, device), options.resume,
                     options.restart);
  if (options.restart && !raw_folder.empty()) std::filesystem::remove_all(raw_folder);
  std::vector<std::vector<int32_t>> sequences = share.calibration;
  sequences.insert(sequences.end(), share.probes.begin(), share.probes.end());
  const std::vector<int64_t> all_lengths = lengths(sequences);
  const std::filesystem::path spill = memory.spill ? partial.path() : "";
  how.spill = spill;
  Decoder decoder(model, sequences, how);
  if (const int layer = partial.hidden_layer(); layer > 0) decoder.restore(partial.hidden(layer), layer);

  std::optional<RawDumpWriter> raw;
  if (!raw_folder.empty()) {
    raw.emplace(raw_folder, rows_dtype);
    for (int64_t i = 0; i < calibration; ++i)
      raw->lengths(i + 1, {static_cast<int32_t>(all_lengths[static_cast<size_t>(i)])});
  }

  const auto sampled = std::make_shared<const SampledPositions>(
      choose_rows(options.seed, provenance.sequence_lengths, options.rows));
  std::mutex progress_mutex;
  const int64_t total_tokens = share.tokens() + share.probe_tokens();
  int64_t done = 0;
  auto saved = Clock::now();
  double save_cost = 0.1;
  std::future<void> writing;  // the layer before, while this one computes
  const auto written = [&] {
    const auto begin = Clock::now();
    if (writing.valid()) writing.get();
    result.waited_for_writing += std::chrono::duration<double>(Clock::now() - begin).count();
  };
  while (!decoder.done()) {
    const int layer = decoder.layer();
    done = int64_t{layer} * total_tokens;
    const auto step = [&](int64_t index) {
      const std::lock_guard lock(progress_mutex);
      done += all_lengths[static_cast<size_t>(index)];
      if (progress) progress({layer, config.layers, done, total_tokens * config.layers});
    };
    const LayerShape* shape = shape_of(config, layer);
    if (!shape || partial.has_part(layer)) {
      decoder.run_layer({});
      continue;
    }
    const std::shared_ptr<LayerSink> sink = make_layer_sink(
        *shape, provenance.sequence_lengths, own.calibration, static_cast<int64_t>(set.probes.size()),
        decoder.weights().output_metrics(),
        LayerSinkOptions{options.windows, options.scores, options.score_queries, options.seed, sampled,
                         options.proxy, !options.shard.whole(), spill, device, options.deterministic,
                         options.threads});
    decoder.run_layer([&](int64_t index, const AttentionRows& rows) {
      sink->take(index_in_run(index), rows);
      if (raw && index < calibration) {
        const HostRows host(rows);
        raw->chunk(layer, index + 1, *shape, host.q, host.k, host.v, rows.tokens);
      }
      step(index);
    });
    written();
    writing = std::async(std::launch::async, [&, shape, sink, path = partial.part(layer)] {
      const c10::InferenceMode guard;
      const SideStream stream(device, SideStream::Work::Finishing);
      AtomicFile part(path);
      StatisticsWriter writer(part.path(), rows_dtype);
      writer.layer(sink->finish(), sink->probes());
      if (!header.shard_plan.empty())
        sink->each_sequence([&](int64_t sequence, const RowsOfSequence& rows) {
          writer.sequence(*shape, sequence, rows.tokens, rows.k, rows.v);
        });
      StatisticsHeader one = header;
      one.layers = {*shape};
      writer.finish(one);
      part.commit();
    });
    if (!memory.overlap) written();
    // Hidden states are written so seldom that they cost at most a twentieth of the run, and never before the
    // parts they follow.
    if (const double since = std::chrono::duration<double>(Clock::now() - saved).count();
        !decoder.done() && since > std::max(2.0, 20 * save_cost)) {
      written();
      const auto begin = Clock::now();
      decoder.save(partial.hidden(decoder.layer()));
      partial.forget_hidden_but(decoder.layer());
      saved = Clock::now();
      save_cost = std::chrono::duration<double>(saved - begin).count();
    }
  }
  written();
  result.waited = decoder.waited();
  result.gpu_first_layer = decoder.first_layer();
  result.gpu_busy = decoder.gpu_time().busy();
  result.gpu_idle = decoder.gpu_time().idle();
  if (options.perplexity)
    result.perplexity =
        perplexity(model, decoder.hidden(), sequences, set.probes.empty() ? 0 : set.calibration.size());

  std::vector<std::filesystem::path> parts;
  for (const LayerShape& shape : config.attention) parts.push_back(partial.part(shape.layer));
  AtomicFile file(output);
  assemble(parts, header, rows_dtype, file.path());
  file.commit();
  if (!raw_folder.empty()) {
    std::filesystem::remove(options.save_qkv);  // an empty folder may be in the way
    std::filesystem::rename(raw_folder, options.save_qkv);
  }
  partial.remove();
  return result;
}

}  // namespace oscar
