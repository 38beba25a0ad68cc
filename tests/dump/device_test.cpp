// A run on a GPU: its parts by LibTorch's operations, which run on the CPU too, against the CPU's own; and
// where there is a GPU, whole runs.
#include <ATen/ATen.h>

#include "libdump/device_layers.h"
#include "libdump/dump.h"
#include "libdump/models/host_rows.h"
#include "libdump/sinks/device_sink.h"
#include "libdump/sinks/host_sink.h"
#include "tests/support/support.h"
#include "tests/support/toy_model.h"

namespace oscar {
namespace {

std::vector<int32_t> ids(int64_t count, int64_t seed, int64_t vocabulary) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i)
    out.push_back(static_cast<int32_t>((i * i * 31 + seed * 977 + i) % vocabulary));
  return out;
}

// The same rows as a GPU would have them.
DeviceRows tensors_of(const AttentionRows& r, const std::vector<Matrix>& metrics) {
  const LayerShape& s = *r.shape;
  const auto copy = [](const float* from, at::IntArrayRef sizes) {
    return at::from_blob(const_cast<float*>(from), sizes, at::kFloat).clone();
  };
  std::vector<float> metric;
  for (const Matrix& g : metrics) metric.insert(metric.end(), g.data(), g.data() + g.size());
  return {copy(r.q, {r.tokens, s.q_heads, s.dim_k}),  copy(r.k, {r.tokens, s.kv_heads, s.dim_k}),
          copy(r.v, {r.tokens, s.kv_heads, s.dim_v}), copy(r.o, {r.tokens, s.q_heads, s.dim_v}),
          copy(r.lse, {s.q_heads, r.tokens}),         copy(r.hidden, {r.tokens, r.hidden_width}),
          at::tensor(metric).view({s.q_heads, s.dim_v, s.dim_v})};
}

void expect_close(const LayerStatistics& a, const LayerStatistics& b, double tolerance) {
  EXPECT_EQ(a.sums.tokens, b.sums.tokens);
  EXPECT_EQ(a.sums.score_queries, b.sums.score_queries);
  EXPECT_EQ(a.sums.score_tokens, b.sums.score_tokens);
  for (const SumInfo& info : sum_table())
    EXPECT_LE(test::relative_error(a.sums.values(info.sum), b.sums.values(info.sum)), tolerance)
        << "layer " << a.sums.shape().layer << " " << info.name;
  EXPECT_EQ(a.rows.sequence, b.rows.sequence);
  EXPECT_EQ(a.rows.position, b.rows.position);
  const auto rows = [&](const char* name, const std::vector<float>& x, const std::vector<float>& y) {
    ASSERT_EQ(x.size(), y.size()) << name;
    EXPECT_LE(test::relative_error(x, y), tolerance) << name;
  };
  rows("k", a.rows.k, b.rows.k);
  rows("v", a.rows.v, b.rows.v);
  rows("u", a.rows.u, b.rows.u);
  rows("w", a.rows.w, b.rows.w);
  rows("x", a.rows.x, b.rows.x);
}

class DeviceParts : public ::testing::TestWithParam<const char*> {};

// Sums, samples and the second pass of rows that families make: grouped heads, windows, sinks, caps.
TEST_P(DeviceParts, SumsOfTheCpu) {
  auto model = open_model(test::golden(std::string("families/") + GetParam()), Precision::Float32);
  const std::vector<int64_t> lengths{130, 512, 1};
  std::vector<std::vector<int32_t>> sequences;
  for (const int64_t n : lengths) sequences.push_back(ids(n, n, 96));
  for (const double share : {1.0, 0.4}) {
    Decoder decoder(*model, sequences, {1, true});
    while (!decoder.done()) {
      const LayerShape* shape = nullptr;
      for (const LayerShape& s : model->config().attention) {
        if (s.layer == decoder.layer()) shape = &s;
      }
      if (!shape) {
        decoder.run_layer({});
        continue;
      }
      LayerSinkOptions options;
      options.windows = {4, 8};
      options.score_queries = share;
      options.rows = std::make_shared<const SampledPositions>(choose_rows(0, lengths, 60));
      HostSink host(*shape, lengths, {0, 1, 2}, 0, decoder.weights().output_metrics(), options);
      DeviceSink device(*shape, lengths, {0, 1, 2}, 0, decoder.weights().output_metrics(), options);
      const OutputMetrics metrics = decoder.weights().output_metrics();
      decoder.run_layer([&](int64_t i, const AttentionRows& rows) {
        host.take(i, rows);
        const DeviceRows tensors = tensors_of(rows, *metrics);
        AttentionRows there{};
        there.shape = rows.shape;
        there.tokens = rows.tokens;
        there.device = &tensors;
        device.take(i, there);
      });
      expect_close(device.finish(), host.finish(), 2e-5);
    }
  }
}

// o and lse of q, k and v by blocks of queries.
TEST_P(DeviceParts, AttentionOfTheCpu) {
  auto model = open_model(test::golden(std::string("families/") + GetParam()), Precision::Float32);
  Decoder decoder(*model, {ids(150, 1, 96)}, {1, true});
  while (!decoder.done()) {
    const OutputMetrics metrics = decoder.weights().output_metrics();
    decoder.run_layer([&](int64_t, const AttentionRows& rows) {
      const DeviceRows r = tensors_of(rows, *metrics);
      const AttentionOutput out = on_device::causal_attention(r.q, r.k, r.v, *rows.shape);
      EXPECT_LE((out.o - r.o).norm().item<float>(), 1e-5 * r.o.norm().item<float>());
      EXPECT_LE((out.lse - r.lse).abs().max().item<float>(), 1e-4);
    });
  }
}
INSTANTIATE_TEST_SUITE_P(Families, DeviceParts,
                         ::testing::Values("llama", "qwen3", "gemma2", "gpt_oss", "minimax_m2", "qwen3_5"),
                         [](const auto& info) { return std::string(info.param); });

TEST(DeviceParts, RowsAreNormedAndTurnedAsOnTheCpu) {
  for (const bool neighbours : {false, true}) {
    for (const int rotary : {16, 24}) {
      RopeConfig config;
      config.dim = rotary;
      config.neighbours = neighbours;
      const RopeTable rope(config, 40);
      const at::Tensor projected = at::randn({9, 3 * 24 + 7});
      const at::Tensor norm = at::rand({24}) + 0.5;
      at::Tensor expected = at::empty({9, 3, 24});
      const at::Tensor normed =
          rms_norm(projected.narrow(1, 7, 72).contiguous().view({27, 24}), norm, 1e-6).view({9, 72});
      rope.apply(normed, 0, 3, 24, 5, expected.mutable_data_ptr<float>());
      const auto got = on_device::positioned(projected, {{7, 3, 24, norm, &rope}}, 1e-6, 5);
      EXPECT_LE((got[0] - expected).abs().max().item<float>(), 1e-5) << neighbours << " " << rotary;
    }
  }
}

// Whole runs on a GPU.
class OnAGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      device = torch_device("cuda");
    } catch (const std::runtime_error& error) {
      GTEST_SKIP() << error.what();
    }
    test::ToyOptions toy;
    toy.head_dim = 64;
    test::write_gguf(dir / "toy.gguf", test::toy_model(toy));
    const int vocabulary = open_model(dir / "toy.gguf", Precision::Float32)->config().vocabulary;
    for (int s = 0; s < 5; ++s) set.calibration.push_back(ids(90 + 300 * s, s, vocabulary));
    set.probes.push_back(ids(70, 9, vocabulary));
    options.windows = {8, 16};
    options.rows = 50;
    options.perplexity = true;
  }
  std::filesystem::path run(const std::string& name, const DumpOptions& how, at::Device on) {
    const auto model = open_model(dir / "toy.gguf", how.precision, on);
    const auto path = shard_path(dir / name, how.shard);
    const DumpResult result =
        dump(*model, set, describe(*model, nullptr, "as given", set, how), how, path, {});
    if (result.perplexity) perplexity = *result.perplexity;
    return path;
  }
  void expect_same(const std::filesystem::path& a, const std::filesystem::path& b, double tolerance) {
    const StatisticsReader x(a), y(b);
    for (const LayerShape& shape : y.header().layers) {
      LayerStatistics p = x.layer(shape.layer), q = y.layer(shape.layer);
      p.rows = x.rows(shape.layer);
      q.rows = y.rows(shape.layer);
      expect_close(p, q, tolerance);
      EXPECT_LE(test::relative_error(x.probe(shape.layer, 0).q, y.probe(shape.layer, 0).q), tolerance);
    }
  }

  test::TempDir dir;
  at::Device device = at::kCPU;
  SequenceSet set;
  DumpOptions options;
  double perplexity = 0;
};

TEST_F(OnAGpu, StatisticsOfTheCpu) {
  for (const double share : {1.0, 0.3}) {
    options.score_queries = share;
    options.restart = true;
    options.precision = Precision::Float32;
    const auto exact = run("cpu.h5", options, at::kCPU);
    const double expected = perplexity;
    expect_same(run("gpu.h5", options, device), exact, 1e-4);
    EXPECT_NEAR(perplexity, expected, 1e-4 * expected);
    for (const Precision precision : {Precision::BFloat16, Precision::Float16}) {
      options.precision = precision;
      const auto rounded = run("cpu16.h5", options, at::kCPU);
      expect_same(run("gpu16.h5", options, device), rounded, precision == Precision::BFloat16 ? 3e-2 : 6e-3);
    }
  }
}

// The kernels against LibTorch's operations, on the rows of one run.
TEST_F(OnAGpu, KernelsAndOperationsAgree) {
  if (!has_kernels(device)) GTEST_SKIP() << "this build has no CUDA kernels";
  const auto model = open_model(dir / "toy.gguf", Precision::BFloat16, device);
  Decoder decoder(*model, set.calibration, {});
  int64_t seen = 0;
  while (!decoder.done()) {
    decoder.run_layer([&](int64_t, const AttentionRows& rows) {
      const LayerShape& s = *rows.shape;
      TensorSumsInput input{s, *rows.device, options.windows, true, {}};
      for (const bool some : {false, true}) {
        if (some) input.queries = at::arange(3, rows.tokens, 5, rows.device->lse.options().dtype(at::kInt));
        ASSERT_TRUE(kernels_fit(input));
        const TensorSums a = kernel_sums(input), b = tensor_sums(input);
        const auto offsets = sum_offsets(s);
        for (size_t i = 0; i < kSumCount; ++i) {
          const int64_t n = offsets[i + 1] - offsets[i];
          const at::Tensor x = a.sums.narrow(0, offsets[i], n), y = b.sums.narrow(0, offsets[i], n);
          EXPECT_LE((x - y).norm().item<double>(), 2e-3 * y.norm().item<double>()) << sum_table()[i].name;
        }
        EXPECT_LE((a.x - b.x).norm().item<double>(), 1e-2 * b.x.norm().item<double>());
        EXPECT_LE((a.u - b.u).norm().item<double>(), 2e-3 * b.u.norm().item<double>());
      }
      ++seen;
    });
  }
  EXPECT_EQ(seen, 15);
}

TEST_F(OnAGpu, TheSameBytesAgainAndFromWorkers) {
  options.precision = Precision::BFloat16;
  options.perplexity = false;
  options.deterministic = true;
  const auto whole = run("whole.h5", options, device);
  const std::string bytes = test::read(whole);
  EXPECT_TRUE(test::read(run("again.h5", options, device)) == bytes);
  std::vector<std::filesystem::path> shards;
  for (int i = 0; i < 2; ++i) {
    options.shard = {i, 2};
    shards.push_back(run("shards.h5", options, device));
  }
  write_whole(StatisticsReader(shards), dir / "joined.h5");
  EXPECT_TRUE(test::read(dir / "joined.h5") == bytes);
}

TEST_F(OnAGpu, BoundsOnTheProcessAreOfTheCpu) {
  options.memory = int64_t{8} << 30;
  EXPECT_THROW(run("stats.h5", options, device), std::invalid_argument);
}

// What cannot run says why.
TEST(Device, NamesThatAreNone) {
  EXPECT_EQ(torch_device("cpu"), at::Device(at::kCPU));
  for (const char* text : {"gpu", "cuda:", "cuda:-1", "cuda:1x", "CUDA"})
    EXPECT_THROW(torch_device(text), std::invalid_argument) << text;
}

}  // namespace
}  // namespace oscar
