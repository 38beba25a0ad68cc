// Every option that an algorithm lists changes what it makes: one that is taken and ignored is a lie.
#include <map>
#include <sstream>

#include "tests/calib/method_support.h"

namespace oscar::test {
namespace {

// Another value of an option, and what must be set so that it can be seen.
struct Change {
  std::string option, value, context;
};
// Training is short and from few words, so that it does not end in the same codebook from anywhere.
constexpr const char* kShort = "iterations=1:refine=0";

std::string other(const SideMethod& side, Side which, const std::string& option) {
  const MethodOptions& o = side.options;
  const std::map<std::string, std::string> values{
      {"target", which == Side::K ? "ktk" : "vtv"},
      {"composition", "plain"},
      {"granularity", o.granularity == Granularity::Head ? "layer" : "head"},
      {"centre", o.centre == Centre::None ? "mean" : "none"},
      {"codec", "sglang-flush"},
      {"clip", "0.5"},
      {"groups", "2"},
      {"shape", "8x4"},
      {"norm", o.norm ? "0" : "1"},
      {"partition", "contiguous"},
      {"importance", o.importance == Importance::None ? "attention" : "none"},
      {"stored", o.stored == Stored::Int8 ? "fp16" : "int8"},
      {"iterations", "1"},
      {"refine", "0"},
      {"restarts", "8"},
      {"rows", "100"},
      {"seed", "7"},
      {"bits", side.algorithm->name.starts_with("budget_int2") ? "16" : "1"},
      {"shapes", "8x4"},
      {"qjl", "1"}};
  return values.at(option);
}
std::string context(const SideMethod& side, const std::string& option) {
  const auto& options = side.algorithm->options;
  const auto takes = [&](std::string_view name) {
    return (' ' + std::string(options) + ' ').find(' ' + std::string(name) + ' ') != std::string::npos;
  };
  std::string text;
  const auto add = [&](const std::string& part) { text += ':' + part; };
  if (takes("shape") && option != "shape") add("shape=4x4");
  if (takes("shapes") && option != "shapes" && option != "bits") add("shapes=4x4");
  if (option == "restarts") add(kShort);
  if (option == "seed" && takes("restarts")) add(std::string("restarts=8:") + kShort);
  if (option == "iterations") add("refine=0");
  if (option == "refine") add("iterations=1");
  if ((option == "clip" || option == "groups") && takes("clip") && !find_codec(side.options.codec).clips)
    add("codec=sglang-prefill");
  if (option == "groups" && side.options.codec == "nova-scalar-int2") add("codec=sglang-prefill");
  if (option == "groups" && takes("clip")) add("clip=0.9");  // groups come with clipping
  if (option == "groups" && side.algorithm->name.starts_with("budget_int2")) add("bits=6");
  if (option == "target" && side.options.target.empty()) return "";  // hadamard
  return text;
}

// The bytes of one side, and what a budget predicts of it.
std::string made(const std::string& method, Side side, const std::string& options) {
  const std::string half = method + options;
  const FitResult result = fitted(side == Side::K ? half + "/naive" : "naive/" + half);
  std::string bytes = bytes_of(result.codes);
  for (const auto& item : result.plan)
    bytes += std::to_string(item.bits) + ' ' + std::to_string(1e6 * item.loss) + '\n';
  return bytes;
}

TEST(MethodOptions, EachThatAnAlgorithmListsChangesItsResult) {
  std::map<std::string, std::pair<std::string, Side>> algorithms;  // by a method that uses it
  for (const auto& method : method_table()) {
    const std::string name(method.name);
    algorithms.try_emplace(std::string(method.k->name), name, Side::K);
    algorithms.try_emplace(std::string(method.v->name) + (method.k == method.v ? " of v" : ""), name,
                           Side::V);
  }
  EXPECT_GT(algorithms.size(), 18u);
  for (const auto& [algorithm, use] : algorithms) {
    const auto& [method, side] = use;
    const Method parsed = parse_method(method);
    const SideMethod& half = side == Side::K ? parsed.k : parsed.v;
    std::istringstream options{std::string(half.algorithm->options)};
    for (std::string option; options >> option;) {
      const std::string around = context(half, option), value = other(half, side, option);
      EXPECT_NE(made(method, side, around), made(method, side, around + ':' + option + '=' + value))
          << algorithm << ": " << method << around << ':' << option << '=' << value << " changes nothing";
    }
  }
}

TEST(MethodOptions, AClipThatTheCodecDoesNotMakeIsRefused) {
  for (const char* method : {"kivi:clip=0.5", "oscar:codec=int4", "naive:codec=bf16:clip=0.9"}) {
    EXPECT_THROW(made(method, Side::K, ""), std::invalid_argument) << method;
  }
  EXPECT_NO_THROW(made("oscar:codec=int4:clip=0", Side::K, ""));
}

TEST(MethodOptions, TheSameOptionsMakeTheSameBytes) {
  for (const char* method : {"awvq", "turboquant", "kvquant-nuq"}) {
    EXPECT_EQ(made(method, Side::K, ":seed=3"), made(method, Side::K, ":seed=3")) << method;
    EXPECT_EQ(made(method, Side::V, ""), made(method, Side::V, "")) << method;
  }
}

}  // namespace
}  // namespace oscar::test
