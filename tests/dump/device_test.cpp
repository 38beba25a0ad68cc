// A run on a GPU: its parts by LibTorch's operations, which run on the CPU too, against the CPU's own; and
// where there is a GPU, whole runs.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "libcalib/artifacts/raw_dump.h"
#include "libdump/device_layers.h"
#include "libdump/dump.h"
#include "libdump/models/host_rows.h"
#include "libdump/sinks/device_sink.h"
#include "libdump/sinks/host_sink.h"
#include "tests/dump/same_rows.h"
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

std::string_view name_of(Sum sum) {
  return sum_table()[static_cast<size_t>(sum)].name;
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

// The second pass of a GPU and that of who merges shards differ by rounding of doubles alone.
TEST(DeviceParts, SecondPassOfTheCpu) {
  LayerShape shape;
  shape.q_heads = 6;
  shape.kv_heads = 3;
  shape.dim_k = 48;
  shape.dim_v = 80;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t tokens : {1, 255, 256, 700}) {
      const at::Tensor k = at::randn({tokens, 3, 48}).to(type), v = at::randn({tokens, 3, 80}).to(type);
      const at::Tensor factor = at::randn({3, 5, 48}, at::kDouble), sigma = at::bmm(factor.transpose(1, 2), factor);
      std::vector<Matrix> forms;
      for (int64_t h = 0; h < 3; ++h)
        forms.push_back(ConstMatrixMap(sigma[h].contiguous().const_data_ptr<double>(), 48, 48));
      const at::Tensor keys = k.to(at::kFloat), values = v.to(at::kFloat);
      LayerSums sums(shape);
      sums.add_proxy(forms, keys.const_data_ptr<float>(), values.const_data_ptr<float>(), tokens);
      const at::Tensor there = proxy_sums(shape, k, v, sigma);
      const std::span<const double> all(there.const_data_ptr<double>(), static_cast<size_t>(there.numel()));
      const size_t matrices = sums.values(Sum::vv_proxy).size();
      EXPECT_LE(test::relative_error(all.first(matrices), sums.values(Sum::vv_proxy)), 1e-14) << tokens;
      EXPECT_LE(test::relative_error(all.subspan(matrices), sums.values(Sum::proxy_weight)), 1e-14) << tokens;
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

// The second pass is made on the GPU by a whole run and on the CPU by who merges; everything else is the same.
TEST_F(OnAGpu, WorkersWithoutDeterministicAreOneRun) {
  options.perplexity = false;
  options.restart = true;
  for (const Precision precision : {Precision::Float32, Precision::BFloat16, Precision::Float16}) {
    options.precision = precision;
    options.score_queries = precision == Precision::BFloat16 ? 1 : 0.4;
    options.shard = {};
    const StatisticsReader one(run("whole.h5", options, device));
    std::vector<std::filesystem::path> shards;
    for (int i = 0; i < 2; ++i) {
      options.shard = {i, 2};
      shards.push_back(run("shards.h5", options, device));
    }
    const StatisticsReader two(shards);
    for (const LayerShape& shape : one.header().layers) {
      const LayerStatistics a = two.layer(shape.layer), b = one.layer(shape.layer);
      for (const SumInfo& info : sum_table()) {
        const auto x = a.sums.values(info.sum), y = b.sums.values(info.sum);
        if (info.sum == Sum::vv_proxy || info.sum == Sum::proxy_weight)
          EXPECT_LE(test::relative_error(x, y), 1e-12) << name(precision) << " " << info.name;
        else
          EXPECT_TRUE(std::ranges::equal(x, y)) << name(precision) << " " << info.name;
      }
      EXPECT_GT(b.sums.scalar(Sum::proxy_weight, 0), 0);
      EXPECT_EQ(a.sums.tokens, b.sums.tokens);
      EXPECT_EQ(a.sums.score_queries, b.sums.score_queries);
      EXPECT_EQ(a.value_metric, b.value_metric);
      test::expect_same_rows(two.rows(shape.layer), one.rows(shape.layer), 50);
      EXPECT_EQ(two.probe(shape.layer, 0).q, one.probe(shape.layer, 0).q);
      EXPECT_EQ(two.probe(shape.layer, 0).k, one.probe(shape.layer, 0).k);
      EXPECT_EQ(two.probe(shape.layer, 0).v, one.probe(shape.layer, 0).v);
    }
  }
}

// Of hidden states that were kept, and of finished layers.
TEST_F(OnAGpu, AnInterruptedRunResumes) {
  options.precision = Precision::BFloat16;
  options.perplexity = false;
  const auto model = open_model(dir / "toy.gguf", options.precision, device);
  Decoder through(*model, set.calibration, {}), restored(*model, set.calibration, {});
  through.run_layer({});
  through.save(dir / "hidden");
  restored.restore(dir / "hidden", 1);
  while (!through.done()) through.run_layer({});
  while (!restored.done()) restored.run_layer({});
  for (size_t i = 0; i < set.calibration.size(); ++i)
    EXPECT_TRUE(to_cpu(through.hidden()[i]).equal(to_cpu(restored.hidden()[i]))) << i;

  for (const bool deterministic : {true, false}) {
    options.deterministic = deterministic;
    options.resume = false;
    options.restart = true;
    options.save_qkv = dir / fmt::format("raw-{}", deterministic);
    const std::string whole = test::read(run("whole.h5", options, device));
    const auto raw = options.save_qkv;
    options.restart = false;
    options.save_qkv = dir / fmt::format("cut-{}", deterministic);
    const Provenance provenance = describe(*model, nullptr, "as given", set, options);
    const auto stop = [](const DumpProgress& p) {
      if (p.layer == 2) throw std::runtime_error("pulled plug");
    };
    EXPECT_THROW(dump(*model, set, provenance, options, dir / "cut.h5", stop), std::runtime_error);
    EXPECT_TRUE(std::filesystem::exists(dir / "cut.h5.partial" / "layer_0001.h5"));
    options.resume = true;
    const DumpResult result = dump(*model, set, provenance, options, dir / "cut.h5", {});
    EXPECT_TRUE(test::read(dir / "cut.h5") == whole);
    EXPECT_GT(result.gpu_busy, 0);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(raw)) {
      if (!entry.is_regular_file()) continue;
      EXPECT_TRUE(test::read(entry.path()) ==
                  test::read(options.save_qkv / std::filesystem::relative(entry.path(), raw)))
          << entry.path();
    }
  }
}

TEST_F(OnAGpu, RawRowsOfTheCpu) {
  options.perplexity = false;
  for (const Precision precision : {Precision::Float32, Precision::BFloat16, Precision::Float16}) {
    options.precision = precision;
    options.restart = true;
    const double tolerance = precision == Precision::Float32 ? 1e-4 : precision == Precision::BFloat16 ? 3e-2 : 6e-3;
    const auto folder = [&](const char* where) { return dir / fmt::format("{}-{}", where, name(precision)); };
    options.save_qkv = folder("cpu");
    run("cpu.h5", options, at::kCPU);
    options.save_qkv = folder("gpu");
    const StatisticsReader statistics(run("gpu.h5", options, device));
    const RawDump cpu = open_raw_dump(folder("cpu")), gpu = open_raw_dump(folder("gpu"));
    EXPECT_EQ(gpu.dtype, dtype_of(precision));
    EXPECT_EQ(gpu.sequence_lengths, cpu.sequence_lengths);
    ASSERT_EQ(gpu.layers.size(), 3u);
    for (const int layer : gpu.layers) {
      const LayerSums a = read_raw_layer(gpu, layer).sums, b = read_raw_layer(cpu, layer).sums,
                      c = statistics.layer(layer).sums;
      for (const Sum sum : {Sum::qq, Sum::kk, Sum::vv, Sum::k_sum, Sum::v_sum, Sum::vv_proxy}) {
        EXPECT_LE(test::relative_error(a.values(sum), b.values(sum)), tolerance) << name_of(sum);
        EXPECT_LE(test::relative_error(a.values(sum), c.values(sum)), 1e-5) << "the same rows: " << name_of(sum);
      }
    }
  }
}

TEST_F(OnAGpu, BoundsOnTheProcessAreOfTheCpu) {
  options.memory = int64_t{8} << 30;
  EXPECT_THROW(run("stats.h5", options, device), std::invalid_argument);
}

// Nothing is enclosed, nothing is counted; and a GPU's work is, with what lies between.
TEST(Device, TimeOfTheCpuIsNone) {
  GpuTime time(at::kCPU);
  time.begin();
  time.end();
  time.settle();
  EXPECT_EQ(time.busy(), 0);
  EXPECT_EQ(time.idle(), 0);
}
TEST_F(OnAGpu, TimeAtWorkAndBetween) {
  GpuTime time(device);
  const at::Tensor x = at::randn({2048, 2048}, device);
  for (int i = 0; i < 3; ++i) {
    time.begin();
    for (int k = 0; k < 20; ++k) at::mm(x, x);
    time.end();
    wait_for(device);
    if (i < 2) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    if (i != 1) time.settle();
  }
  EXPECT_GT(time.busy(), 1e-3);
  EXPECT_GT(time.idle(), 0.06);
  EXPECT_LT(time.idle(), 0.5);
}

// What cannot run says why.
TEST(Device, KernelsAreMissedForAReason) {
  EXPECT_FALSE(has_kernels(at::kCPU));
  for (const auto& place : {at::Device(at::kCUDA, 0), at::Device(at::kCUDA, 63)}) {
    if (has_kernels(place)) continue;
    EXPECT_GT(kernels_missing(place).size(), 20u);
  }
  EXPECT_FALSE(has_kernels({at::kCUDA, 63}));
}

TEST(Device, NamesThatAreNone) {
  EXPECT_EQ(torch_device("cpu"), at::Device(at::kCPU));
  for (const char* text : {"gpu", "cuda:", "cuda:-1", "cuda:1x", "CUDA"})
    EXPECT_THROW(torch_device(text), std::invalid_argument) << text;
}

}  // namespace
}  // namespace oscar
