// What statistics cost beside the forward on a GPU: a model of Qwen3-8B's shape with random weights, 30,000
// tokens in sequences of 2,048, weights in the GPU's memory. bench_device_dump [layers] [sequence length]
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <malloc.h>

#include <chrono>
#include <climits>
#include <fstream>
#include <future>

#include "libdump/models/families.h"
#include "libdump/models/transformer.h"
#include "libdump/sinks/layer_sink.h"
#include "libdump/torch_device.h"

using namespace oscar;

namespace {

constexpr int64_t kHidden = 4096, kIntermediate = 12288, kHeads = 32, kKvHeads = 8, kDim = 128;
constexpr int64_t kQkv = (kHeads + 2 * kKvHeads) * kDim;
constexpr double kEps = 1e-6, kTheta = 1e6;

at::Tensor random_weight(at::IntArrayRef shape, at::Device device) {
  return at::randn(shape, at::TensorOptions(device).dtype(at::kBFloat16)).mul_(0.02);
}

class RandomWeights : public WeightSource {
 public:
  at::Tensor load(const std::string& name, const std::vector<int64_t>& shape) const override {
    return load_on(at::kCPU, name, shape);
  }
  at::Tensor load_on(at::Device device, const std::string&, const std::vector<int64_t>& shape) const override {
    return shape.size() == 1 ? at::ones(shape, at::TensorOptions(device).dtype(at::kFloat))
                             : random_weight(shape, device).to(at::kFloat);
  }
  at::Tensor load_part(const std::string&, const std::vector<int64_t>&, int64_t) const override { return {}; }
  at::Tensor load_rows(const std::string&, const std::vector<int64_t>&,
                       std::span<const int32_t>) const override {
    return {};
  }
  void check(const std::map<std::string, std::vector<int64_t>>&) const override {}
  int64_t bytes() const override { return 0; }
  std::string digest() const override { return ""; }
};

std::unique_ptr<Model> make_model(int layers, int64_t length, at::Device device) {
  const auto folder = std::filesystem::temp_directory_path() / "oscar-bench-device-dump";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << fmt::format(
      R"({{"model_type": "qwen3", "num_hidden_layers": {}, "hidden_size": {}, "intermediate_size": {},
          "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {}, "vocab_size": 1000,
          "rms_norm_eps": {}, "rope_theta": {}, "max_position_embeddings": 40960}})",
      layers, kHidden, kIntermediate, kHeads, kKvHeads, kDim, kEps, kTheta);
  TransformerSpec spec = qwen3_hf(HfConfig(folder));
  finish(spec);
  auto model = make_transformer(std::move(spec), std::make_unique<RandomWeights>(), {}, Precision::BFloat16, device);
  model->reserve_positions(length);
  return model;
}

// The forward as one writes it with LibTorch alone: everything in bfloat16, fused attention.
struct BareLayer {
  at::Tensor input_norm, q_norm, k_norm, post_norm, qkv, out, gate_up, down;
  explicit BareLayer(at::Device device) {
    const auto one = [&](int64_t n) { return at::ones({n}, at::TensorOptions(device).dtype(at::kBFloat16)); };
    input_norm = one(kHidden);
    post_norm = one(kHidden);
    q_norm = one(kDim);
    k_norm = one(kDim);
    qkv = random_weight({kQkv, kHidden}, device);
    out = random_weight({kHidden, kHeads * kDim}, device);
    gate_up = random_weight({2 * kIntermediate, kHidden}, device);
    down = random_weight({kHidden, kIntermediate}, device);
  }
  // hidden (B, T, hidden) bfloat16; cos and sin (T, D) bfloat16.
  void forward(at::Tensor& hidden, const at::Tensor& cos, const at::Tensor& sin) const {
    const int64_t b = hidden.size(0), t = hidden.size(1);
    const auto all = at::linear(at::rms_norm(hidden, {kHidden}, input_norm, kEps), qkv)
                         .split_with_sizes({kHeads * kDim, kKvHeads * kDim, kKvHeads * kDim}, 2);
    const auto heads = [&](const at::Tensor& x, int64_t n, const at::Tensor& norm) {
      at::Tensor rows = at::rms_norm(x.reshape({b, t, n, kDim}), {kDim}, norm, kEps).transpose(1, 2);
      const at::Tensor turned =
          at::cat({rows.narrow(3, kDim / 2, kDim / 2).neg(), rows.narrow(3, 0, kDim / 2)}, 3);
      return rows * cos + turned * sin;
    };
    const at::Tensor o = at::scaled_dot_product_attention(
        heads(all[0], kHeads, q_norm), heads(all[1], kKvHeads, k_norm),
        all[2].reshape({b, t, kKvHeads, kDim}).transpose(1, 2), {}, 0, true, {}, /*enable_gqa=*/true);
    hidden = hidden + at::linear(o.transpose(1, 2).reshape({b, t, kHeads * kDim}), out);
    const at::Tensor both = at::linear(at::rms_norm(hidden, {kHidden}, post_norm, kEps), gate_up);
    hidden = hidden + at::linear(at::silu(both.narrow(2, 0, kIntermediate)) *
                                     both.narrow(2, kIntermediate, kIntermediate),
                                 down);
  }
};

template <typename F>
double best_of(int runs, at::Device device, const F& run) {
  double best = 1e9;
  for (int i = 0; i <= runs; ++i) {  // the first warms up
    wait_for(device);
    const auto begin = std::chrono::steady_clock::now();
    run();
    wait_for(device);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (i > 0) best = std::min(best, seconds);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const c10::InferenceMode guard;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);  // as a run has it (libdump/decoder.cpp)
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  const int layers = argc > 1 ? std::atoi(argv[1]) : 36;
  const int64_t length = argc > 2 ? std::atoll(argv[2]) : 2048, total = 30000;
  const at::Device device = torch_device("cuda");
  fmt::print("kernels of this build: {}\n", has_kernels(device) ? "yes" : "no");
  std::vector<int64_t> lengths, own;
  for (int64_t left = total; left > 0; left -= length) {
    own.push_back(static_cast<int64_t>(lengths.size()));
    lengths.push_back(std::min(left, length));
  }
  const auto states = [&](at::ScalarType type) {
    std::vector<at::Tensor> hidden;
    for (const int64_t n : lengths)
      hidden.push_back(at::randn({n, kHidden}, at::TensorOptions(device).dtype(type)));
    return hidden;
  };

  double bare = 1e9;
  {
    std::vector<BareLayer> model;
    for (int i = 0; i < layers; ++i) model.emplace_back(device);
    const at::Tensor angle = at::outer(
        at::arange(length, at::TensorOptions(device).dtype(at::kFloat)),
        at::pow(kTheta, at::arange(0, kDim, 2, at::TensorOptions(device).dtype(at::kFloat)) / -double(kDim)));
    const at::Tensor angles = at::cat({angle, angle}, 1);
    const at::Tensor cos = angles.cos().to(at::kBFloat16), sin = angles.sin().to(at::kBFloat16);
    for (const int64_t batch : {1, 5, 14}) {
      const double seconds = best_of(3, device, [&] {
        for (size_t first = 0; first < lengths.size();) {
          const int64_t n = lengths[first];
          const int64_t count = n < length ? 1 : std::min<int64_t>(batch, total / length - int64_t(first));
          at::Tensor hidden =
              at::randn({count, n, kHidden}, at::TensorOptions(device).dtype(at::kBFloat16));
          for (const BareLayer& layer : model) layer.forward(hidden, cos.narrow(0, 0, n), sin.narrow(0, 0, n));
          first += static_cast<size_t>(count);
        }
      });
      fmt::print("bare LibTorch, {:2} sequences at a time: {:.3f} s\n", batch, seconds);
      bare = std::min(bare, seconds);
    }
  }

  const auto rows = std::make_shared<const SampledPositions>(choose_rows(0, lengths, 4096));
  const auto model = make_model(layers, length, device);
  std::vector<std::unique_ptr<DecoderLayer>> loaded;
  for (int i = 0; i < layers; ++i) loaded.push_back(model->load_layer(i));
  const double forward = best_of(3, device, [&] {
    auto hidden = states(at::kFloat);
    for (const auto& layer : loaded) {
      for (at::Tensor& x : hidden) layer->forward(x, {});
    }
  });
  fmt::print("oscar forward: {:.3f} s, {:.2f} x bare\n", forward, forward / bare);
  for (const bool scores : {false, true}) {
    double computing = 0, waiting = 0;  // of all four runs
    const double seconds = best_of(3, device, [&] {
      auto hidden = states(at::kFloat);
      std::future<void> finishing;
      for (int i = 0; i < layers; ++i) {
        LayerSinkOptions options;
        options.windows = {64, 256};
        options.scores = scores;
        options.rows = rows;
        options.device = device;
        const std::shared_ptr<LayerSink> sink =
            make_layer_sink(model->config().attention[static_cast<size_t>(i)], lengths, own, 0,
                            loaded[static_cast<size_t>(i)]->output_metrics(), options);
        for (size_t s = 0; s < hidden.size(); ++s)
          loaded[static_cast<size_t>(i)]->forward(
              hidden[s], [&](const AttentionRows& rows) { sink->take(static_cast<int64_t>(s), rows); });
        const auto launched = std::chrono::steady_clock::now();
        wait_for(device);
        const auto computed = std::chrono::steady_clock::now();
        if (finishing.valid()) finishing.get();
        computing += std::chrono::duration<double>(computed - launched).count();
        waiting += std::chrono::duration<double>(std::chrono::steady_clock::now() - computed).count();
        finishing = std::async(std::launch::async, [sink, device] {
          const c10::InferenceMode in_thread;
          const SideStream stream(device, SideStream::Work::Finishing);
          sink->finish();
        });
      }
      finishing.get();
    });
    fmt::print("oscar forward and {}: {:.3f} s, {:.2f} x bare, {:.2f} x its forward\n",
               scores ? "all statistics" : "moments", seconds, seconds / bare, seconds / forward);
    fmt::print("  of a run: {:.3f} s after the last launch of a layer, {:.3f} s for the layer before to be written\n",
               computing / 4, waiting / 4);
  }
}
