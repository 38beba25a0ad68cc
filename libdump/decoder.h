// The layer-by-layer forward over all sequences: load a layer once, run every sequence through it, drop it. On
// a GPU hidden states stay there, and a layer's last kernel has ended when run_layer() returns.
#pragma once
#include <filesystem>
#include <functional>
#include <future>
#include <optional>

#include "libdump/models/model.h"
#include "libdump/spill.h"
#include "libdump/torch_device.h"

namespace oscar {

struct DecoderOptions {
  int threads = 2;
  bool deterministic = false;  // one sequence a thread, always: the result does not depend on `threads`
  // Of the whole run, of which other workers may have the rest: every worker chooses as one alone would. 0:
  // as many as there are here.
  int64_t sequences_of_run = 0;
  // A bound on memory (memory_plan.h): sequences at a time (0: `threads`), whether the next layer is read
  // while one computes, whether freed memory goes back at once, and the folder for hidden states; "": they
  // are in memory.
  int block = 0;
  bool read_ahead = true;
  bool frugal = false;
  std::filesystem::path spill{};
};
// Sequences at a time, and threads inside the products of one. The bits of a sequence depend on the latter.
struct Threading {
  int workers = 1, inner = 1;
};
Threading threading_of(const DecoderOptions& options, int64_t sequences_of_run);

class Decoder {
 public:
  Decoder(Model& model, std::vector<std::vector<int32_t>> sequences, DecoderOptions options);

  // What happens to the rows of sequence `index`; called from worker threads, each sequence exactly once per
  // layer.
  using Sink = std::function<void(int64_t index, const AttentionRows& rows)>;
  // What takes the place of attention in sequence `index`; called as Sink is.
  using Attend = std::function<void(int64_t index, const AttentionRows& rows, float* o)>;
  // Runs layer `layer()` over all sequences and advances. The next layer's weights are read meanwhile.
  void run_layer(const Sink& sink, const Attend& attend = {});
  int layer() const { return layer_; }
  bool done() const;
  const DecoderLayer&
  weights();  // of the layer that run_layer() will run; read now if they are not there yet
  double waited() const { return waited_; }  // seconds for weights, while nothing computed
  // Of a GPU: seconds from the embedding to the end of the first layer, in which LibTorch loads its kernels, and
  // what comes after it. Kernels that `sink` launches from its thread count as work.
  double first_layer() const { return first_layer_.value_or(0); }
  const GpuTime& gpu_time() const { return gpu_time_; }

  const std::vector<at::Tensor>& hidden() const { return hidden_; }  // where the model is
  // Hidden states of all sequences before layer(), for --resume. Atomic; restore() refuses the states of
  // another run.
  void save(const std::filesystem::path& path) const;
  void restore(const std::filesystem::path& path, int layer);

 private:
  std::unique_ptr<DecoderLayer> load(int layer) const;

  const Model& model_;
  DecoderOptions options_;
  std::vector<std::vector<int32_t>> sequences_;
  std::shared_ptr<Spill> states_;   // what hidden_ looks at, and keeps; none on a GPU
  std::vector<at::Tensor> hidden_;  // (T, hidden) of each sequence
  int layer_ = 0;
  double waited_ = 0;
  GpuTime gpu_time_;
  std::optional<double> first_layer_;
  std::unique_ptr<DecoderLayer> current_;
  std::future<std::unique_ptr<DecoderLayer>> next_;
};

}  // namespace oscar
