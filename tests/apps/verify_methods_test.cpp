// oscar-verify with methods that it fits itself: end to end, sweeps, and runs that were interrupted.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "libcalib/artifacts/statistics_file.h"
#include "libcalib/methods/method.h"
#include "tests/apps/interrupt.h"
#include "tests/apps/refusals.h"

namespace oscar::test {
namespace {

using Json = nlohmann::json;

// The statistics of a bench once more, changed.
void rewrite(const Bench& bench, const char* name,
             const std::function<void(StatisticsHeader&, LayerStatistics&)>& change) {
  const StatisticsReader reader(bench.stats());
  StatisticsWriter writer(bench / name, DType::F32);
  auto header = reader.header();
  for (const auto& shape : reader.header().layers) {
    std::vector<Probe> probes;
    for (int p = 0; p < static_cast<int>(reader.header().probe_lengths.size()); ++p)
      probes.push_back(reader.probe(shape.layer, p));
    LayerStatistics layer = reader.layer(shape.layer);
    change(header, layer);
    writer.layer(layer, probes);
  }
  writer.finish(header);
}

// A dump that every case starts from, and another model.
const Bench& dumped() {
  static const auto bench = [] {
    auto made = std::make_unique<Bench>(ToyOptions{.layers = 2}, 5000);
    run(made->dump_command(made->stats()));
    write_gguf(*made / "other.gguf", toy_model({.seed = 2, .layers = 2}));
    // Without the token ids of their probes, as older dumps were.
    rewrite(*made, "old.h5", [](StatisticsHeader& header, LayerStatistics&) { header.probe_ids.clear(); });
    return made;
  }();
  return *bench;
}
Arguments verify(const Arguments& options) {
  return Arguments{binary("oscar-verify").string(), dumped().stats(), "--threads", "2"} + options;
}
std::vector<std::string> row_names(const Json& report) {
  std::vector<std::string> names;
  for (const auto& row : report.at("rows")) names.push_back(row.at("name"));
  return names;
}
Json json_of(const Arguments& options) {
  const auto outcome = run(verify(options + Arguments{"--json", "-", "-q"}));
  EXPECT_EQ(outcome.code, 0) << outcome;
  return outcome.code == 0 ? Json::parse(outcome.out) : Json{{"rows", Json::array()}};
}

TEST(VerifyMethods, EndToEndWithEveryOutput) {
  const Bench& bench = dumped();
  const TempDir folder;
  const auto path = [&](const char* name) { return (folder / name).string(); };
  const auto outcome =
      run(verify({"--methods", "awvq,dc=oscar-dc:clip=0.9", "--end-to-end", "--generate", "4", "--prompt",
                  "60", "--json", path("r.json"), "--report", path("r.html"), "--csv", path("r.csv")}));
  ASSERT_EQ(outcome.code, 0) << outcome;
  const Json report = Json::parse(read(folder / "r.json"));
  EXPECT_EQ(row_names(report),
            (std::vector<std::string>{"naive", "clip", "hadamard", "hadamard+clip", "awvq", "dc"}));
  EXPECT_TRUE(report.at("exact").at("perplexity").is_number());
  for (const auto& row : report.at("rows")) {
    const auto& figures = row.at("end_to_end");
    EXPECT_GT(figures.at("token_kl").get<double>(), 0) << row.at("name");
    EXPECT_GE(figures.at("perplexity").get<double>(), 1);
    EXPECT_FALSE(figures.at("buckets").empty());
    EXPECT_EQ(row.at("generation").at("count"), 4);
    EXPECT_EQ(row.at("generation").at("prompt"), 60);
  }
  EXPECT_EQ(report.at("rows")[4].at("bits_k"), 2.0);
  EXPECT_EQ(report.at("rows")[5].at("clip_k"), 0.9);
  const auto csv = read(folder / "r.csv"), html = read(folder / "r.html");
  EXPECT_NE(csv.find("\r\nawvq,"), std::string::npos) << csv.substr(0, 300);
  EXPECT_NE(html.find("awvq"), std::string::npos);
  EXPECT_NE(html.find("</html>"), std::string::npos);
  for (const auto& entry : fs::directory_iterator(folder.path()))
    EXPECT_EQ(entry.path().string().find("partial"), std::string::npos) << entry.path();
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 3);
  EXPECT_FALSE(fs::exists(bench / "r.json"));
}

TEST(VerifyMethods, All) {
  const Json report = json_of({"--methods", "all"});
  const auto names = row_names(report);
  for (const auto& method : method_table())
    EXPECT_TRUE(std::ranges::find(names, method.name) != names.end()) << method.name;
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  // Without scores some methods cannot be fitted: they are left out by name, the others are measured.
  const Bench bench({.layers = 1}, 5000);
  ASSERT_EQ(run(bench.dump_command(bench.stats()) + Arguments{"--no-scores", "--rows", "0"}).code, 0);
  const auto poor =
      tool("oscar-verify", {bench.stats(), "--methods", "all", "--no-baselines", "--json", "-"});
  ASSERT_EQ(poor.code, 0) << poor.err;
  const auto measured = row_names(Json::parse(poor.out));
  for (const auto& method : method_table()) {
    const bool fits = !(parse_method(method.name).needs() & (kScores | kRows));
    EXPECT_EQ(std::ranges::find(measured, method.name) != measured.end(), fits) << method.name;
    EXPECT_EQ(poor.err.find("note: " + std::string(method.name) + " is left out: ") == std::string::npos,
              fits)
        << method.name << poor.err;
  }
  // Named alone, such a method is an error.
  expect_refusal(bench, {binary("oscar-verify").string(), bench.stats(), "--methods", "awvq"},
                 {"", {}, 2, "oscar-dump"});
}

// What fails on odd statistics takes nothing else along, unless it was named.
TEST(VerifyMethods, AllButThoseThatFail) {
  const Bench& bench = dumped();
  const TempDir folder;
  const auto measure = [&](const char* statistics, const std::string& methods) {
    return tool("oscar-verify", {(bench / statistics).string(), "--methods", methods, "--no-baselines",
                                 "--threads", "2", "--json", "-"});
  };
  rewrite(bench, "broken.h5",
          [](StatisticsHeader&, LayerStatistics& layer) { layer.sums.values(Sum::kk)[0] = INFINITY; });
  rewrite(bench, "short.h5", [](StatisticsHeader& header, LayerStatistics& layer) {
    header.provenance.tokens = layer.sums.tokens = 100;
  });
  for (const auto& [statistics, why, code] :
       {std::tuple{"broken.h5", "the sums are not finite", 3}, {"short.h5", "expected at least 4 D", 1}}) {
    SCOPED_TRACE(statistics);
    const auto all = measure(statistics, "all");
    ASSERT_EQ(all.code, 0) << all;
    EXPECT_NE(all.err.find("note: oscar is left out: layer 0, k (qqt): "), std::string::npos) << all.err;
    EXPECT_NE(all.err.find(why), std::string::npos) << all.err;
    const auto names = row_names(Json::parse(all.out));
    for (const char* name : {"hadamard", "turboquant", "kivi", "kitty", "saw-int4", "naive"})
      EXPECT_TRUE(std::ranges::find(names, name) != names.end()) << name;
    EXPECT_TRUE(std::ranges::find(names, "oscar") == names.end());

    for (const char* named : {"oscar", "kivi,oscar", "all,oscar", "oscar,all"}) {
      const auto outcome = measure(statistics, named);
      EXPECT_EQ(outcome.code, code) << named << outcome;
      EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome;
    }
  }
  // Beside all, a method of its own is one row more.
  const auto names = row_names(json_of({"--methods", "naive,all,saw-int4", "--no-baselines"}));
  EXPECT_EQ(names.front(), "naive");
  EXPECT_EQ(names.back(), "saw-int4");
  EXPECT_EQ(names.size(), method_table().size());
}

TEST(VerifyMethods, Sweeps) {
  EXPECT_EQ(row_names(json_of({"--methods", "awvq", "--sweep", "bits"})),
            (std::vector<std::string>{"awvq:shape=16x8", "awvq:shape=8x8", "awvq:shape=4x6", "awvq:shape=4x8",
                                      "awvq:shape=4x10"}));
  const Json clips = json_of({"--methods", "o=oscar", "--sweep", "clip"});
  ASSERT_EQ(clips.at("rows").size(), 9u);
  EXPECT_EQ(clips.at("rows")[1].at("name"), "o:clip=0.8");
  EXPECT_EQ(clips.at("rows")[1].at("clip_v"), 0.8);
  const Json windows =
      json_of({"--methods", "naive", "--sweep", "windows", "--sweep-windows", "4/0,8/64", "--no-baselines"});
  EXPECT_EQ(row_names(windows), (std::vector<std::string>{"naive @ 4/0", "naive @ 8/64"}));
  EXPECT_EQ(windows.at("rows")[1].at("windows").at("recent"), 64);
  EXPECT_GT(windows.at("rows")[0].at("mean").at("output_error"),
            windows.at("rows")[1].at("mean").at("output_error"));
}

TEST(VerifyMethods, AnInterruptedRunGoesOnAndGivesTheSameBytes) {
  const TempDir folder;
  const Arguments rows{
      "--methods", "awvq,oscar-dc,nova,budget", "--end-to-end", "--generate", "2", "--prompt", "60"};
  const auto options = [&](const char* name) { return rows + Arguments{"--json", (folder / name).string()}; };
  ASSERT_EQ(run(verify(options("alone.json"))).code, 0);
  const fs::path partial = folder / "report.json.partial";
  const int code = run_until(
      verify(options("report.json")), [&] { return fs::exists(partial); }, SIGKILL);
  ASSERT_EQ(code, 128 + SIGKILL) << "the run was over before the signal came";
  ASSERT_TRUE(fs::exists(partial));
  EXPECT_FALSE(fs::exists(folder / "report.json"));
  const std::string kept = read(partial);

  // Rows that were measured otherwise are not these.
  const auto other = run(verify(
      Arguments{"--methods", "awvq", "--positions", "60:", "--json", (folder / "report.json").string()}));
  EXPECT_EQ(other.code, 0) << other;
  EXPECT_EQ(other.err.find("kept from"), std::string::npos) << other;

  write(partial, kept);
  const auto again = run(verify(options("report.json")));
  ASSERT_EQ(again.code, 0) << again;
  EXPECT_NE(again.err.find("naive: kept from the interrupted run"), std::string::npos) << again;
  EXPECT_EQ(again.err.find("budget: kept"), std::string::npos) << again;
  EXPECT_TRUE(read(folder / "report.json") == read(folder / "alone.json"));
  EXPECT_FALSE(fs::exists(partial));

  write(partial, kept);
  const auto restarted = run(verify(options("report.json") + Arguments{"--restart"}));
  EXPECT_EQ(restarted.code, 0) << restarted;
  EXPECT_EQ(restarted.err.find("kept from"), std::string::npos) << restarted;
  EXPECT_TRUE(read(folder / "report.json") == read(folder / "alone.json"));

  write(partial, kept.substr(0, kept.size() / 2));  // half a file is none
  EXPECT_EQ(run(verify(options("report.json"))).code, 0);
  EXPECT_TRUE(read(folder / "report.json") == read(folder / "alone.json"));
}

TEST(VerifyMethods, Refusals) {
  const Bench& bench = dumped();
  const std::vector<Refusal> cases{
      {"unknown method", {"--methods", "magic"}, 2, "unknown method 'magic'; known: budget"},
      {"option not taken", {"--methods", "oscar:shape=4x8"}, 2, "method 'oscar' takes no option 'shape'"},
      {"bad value", {"--methods", "oscar:clip=2"}, 2, "method option clip"},
      {"twice", {"--methods", "awvq,awvq"}, 2, "two rows are called 'awvq'"},
      {"a baseline's name", {"--methods", "naive=awvq"}, 2, "two rows are called 'naive'"},
      {"sweep of nothing", {"--sweep", "bits"}, 2, "name what to sweep with --methods"},
      {"no such option", {"--methods", "awvq", "--sweep", "clip"}, 2, "method 'awvq' has no such option"},
      {"two methods", {"--methods", "awvq/oscar", "--sweep", "bits"}, 2, "is two methods; sweep over one"},
      {"sweep", {"--sweep", "colour"}, 2, "windows"},
      {"windows",
       {"--methods", "awvq", "--sweep", "windows", "--sweep-windows", "4"},
       2,
       "expected SINK/RECENT"},
      {"generate alone", {"--generate", "4"}, 2, "need --end-to-end"},
      {"model alone", {"--model", "x.gguf"}, 2, "need --end-to-end"},
      {"probe", {"--end-to-end", "--token-probes", "0,9"}, 2, "9"},
      {"probe twice", {"--end-to-end", "--token-probes", "1,0,1"}, 2, "--token-probes: probe 1 is asked for twice"},
      {"probes", {"--end-to-end", "--token-probes", "9"}, 2, "--token-probes 9: the statistics have"},
      {"no model", {"--end-to-end", "--model", "/nowhere/x.gguf"}, 2, "/nowhere/x.gguf"},
      {"another model",
       {"--end-to-end", "--model", (bench / "other.gguf").string()},
       2,
       "name the model of the statistics"}};
  for (const auto& refusal : cases) {
    SCOPED_TRACE(refusal.name);
    expect_refusal(bench, verify(refusal.arguments), refusal);
  }
  expect_refusal(bench,
                 {binary("oscar-verify").string(), (bench / "old.h5").string(), "--end-to-end", "--model",
                  bench.model()},
                 {"old", {}, 2, "hold no token ids of their probes"});
  EXPECT_EQ(run(verify({"--methods", "awvq", "--max-kl", "1e-9"})).code, 1);
  EXPECT_EQ(run(verify({"--methods", "awvq", "--max-kl", "1000"})).code, 0);
}

TEST(FitMethods, BudgetsAndEngines) {
  const Bench& bench = dumped();
  const TempDir folder;
  const auto fit = [&](const Arguments& options, const char* name) {
    return run(Arguments{binary("oscar-fit").string(), bench.stats(), "-o", (folder / name).string()} +
               options);
  };
  const auto codes = fit({"--bits", "1.5"}, "codes");
  ASSERT_EQ(codes.code, 0) << codes;
  EXPECT_NE(codes.err.find("plan k:"), std::string::npos) << codes;
  EXPECT_TRUE(fs::exists(folder / "codes/codes.safetensors"));
  Json manifest = Json::parse(read(folder / "codes/manifest.json"));
  EXPECT_EQ(manifest.at("fit").at("method"), "budget:bits=1.5");
  double bits = 0;
  for (const auto& item : manifest.at("plan")) bits += item.at("bits").get<double>();
  EXPECT_LE(bits / static_cast<double>(manifest.at("plan").size()), 1.5 + 1e-12);
  const auto int2 = fit({"--bits", "8", "--engine", "int2"}, "int2");
  ASSERT_EQ(int2.code, 0) << int2;
  manifest = Json::parse(read(folder / "int2/manifest.json"));
  EXPECT_EQ(manifest.at("fit").at("method"), "budget-int2:bits=8");
  const auto measured = run(verify({"--rotations", (folder / "codes").string(), "--json", "-", "-q"}));
  ASSERT_EQ(measured.code, 0) << measured;
  const Json row = Json::parse(measured.out).at("rows")[4];
  EXPECT_LE(row.at("bits_k").get<double>() + row.at("bits_v").get<double>(), 3 + 1e-9);

  const std::vector<Refusal> cases{
      {"engine alone", {"--engine", "int2"}, 2, "--bits"},
      {"engine", {"--bits", "2", "--engine", "fpga"}, 2, "codebook"},
      {"bits of nothing", {"--bits", "0"}, 2, "--bits"},
      {"bits and method", {"--bits", "2", "--method", "awvq"}, 2, "awvq:bits=2"},
      {"too few", {"--bits", "0.1"}, 2, "the least that these codes can take is 0.25 bits a channel"},
      {"too few of int2", {"--bits", "2", "--engine", "int2"}, 2, "is 4 bits a channel"},
      {"option", {"--method", "oscar:shape=4x8"}, 2, "takes no option 'shape'; it takes: target"},
      {"not taken", {"--method", "awvq", "--composition", "plain"}, 2, "takes no option 'composition'"},
      {"value", {"--method", "awvq:shape=3x8"}, 2, "do not divide the head dim 32"},
      {"halves", {"--method", "a/b/c"}, 2, "METHOD-OF-K/METHOD-OF-V"}};
  for (const auto& refusal : cases) {
    SCOPED_TRACE(refusal.name);
    expect_refusal(bench,
                   Arguments{binary("oscar-fit").string(), bench.stats(), "-o", (bench / "new").string()} +
                       refusal.arguments,
                   refusal);
  }
}

}  // namespace
}  // namespace oscar::test
