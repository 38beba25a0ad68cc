// Method specifications: text to options and back, refusals, and that every option does something.
#include <map>
#include <set>
#include <sstream>

#include "tests/calib/method_support.h"

namespace oscar::test {
namespace {

std::string name_of(const std::string& specification) {
  return parse_method(specification).name;
}
std::string refusal(const std::string& specification) {
  return message_of<std::invalid_argument>([&] { parse_method(specification); });
}
std::vector<std::string> words(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> all;
  for (std::string word; stream >> word;) all.push_back(word);
  return all;
}
const std::map<std::string, const AlgorithmInfo*>& algorithms() {  // those that a method uses
  static const auto all = [] {
    std::map<std::string, const AlgorithmInfo*> found;
    for (const auto& method : method_table()) {
      for (const auto* algorithm : {method.k, method.v}) found[std::string(algorithm->name)] = algorithm;
    }
    return found;
  }();
  return all;
}

TEST(Specification, MethodsAreTheirOwnNames) {
  for (const auto& method : method_table()) {
    const std::string name(method.name);
    EXPECT_EQ(name_of(name), name);
    EXPECT_EQ(name_of(name + "/" + name), name);
  }
}

TEST(Specification, DefaultsAreOptionsThatTheAlgorithmHonours) {
  for (const auto& method : method_table()) {
    for (const auto& [algorithm, defaults] :
         {std::pair{method.k, method.defaults_k}, {method.v, method.defaults_v}}) {
      const auto honoured = words(algorithm->options);
      std::stringstream stream{std::string(defaults)};
      for (std::string part; std::getline(stream, part, ':');) {
        const auto option = part.substr(0, part.find('='));
        EXPECT_TRUE(std::ranges::find(honoured, option) != honoured.end()) << method.name << ' ' << option;
      }
    }
  }
}

TEST(Specification, EveryOptionIsHonouredAndEveryHonouredOptionExists) {
  std::set<std::string> honoured, known;
  for (const auto& [name, algorithm] : algorithms()) {
    const auto list = words(algorithm->options);
    EXPECT_EQ(std::set<std::string>(list.begin(), list.end()).size(), list.size()) << name;
    honoured.insert(list.begin(), list.end());
  }
  for (const auto& option : option_table()) {
    known.insert(std::string(option.name));
    EXPECT_FALSE(option.meaning.empty());
  }
  EXPECT_EQ(honoured, known);
}

TEST(Specification, CanonicalForm) {
  const std::vector<std::pair<const char*, const char*>> cases{
      // Table order, and only what differs from the method.
      {"oscar:clip=0.9:granularity=head", "oscar:granularity=head:clip=0.9"},
      {"oscar:granularity=layer:composition=r_h_pbr", "oscar"},
      {"oscar:clip=0.90", "oscar:clip=0.9"},
      {"oscar:clip=9e-1", "oscar:clip=0.9"},
      {"awvq:shape=4x8:seed=0", "awvq"},
      // 0.96 is the default of K, 0.92 that of V.
      {"oscar:clip=0.96", "oscar:clip=0.96"},
      {"oscar:clip=0.96/oscar:clip=0.96", "oscar:clip=0.96"},
      {"oscar:clip=0.96/oscar", "oscar"},
      {"oscar/oscar:clip=0.96", "oscar:clip=0.96"},
      {"oscar:clip=0.92/oscar", "oscar:clip=0.92"},
      {"oscar:clip=0.9/oscar", "oscar:clip=0.9/oscar"},
      // Options that one side takes.
      {"nova:clip=0.92:shape=4x10", "nova:shape=4x10"},
      {"nova:shape=4x10:clip=0.9", "nova:clip=0.9:shape=4x10"},
      {"nova:shape=4x10/nova:clip=0.9", "nova:clip=0.9:shape=4x10"},
      {"turboquant:qjl=1:seed=3", "turboquant:seed=3:qjl=1"},
      // Two halves.
      {"awvq:shape=4x10/awvq:shape=4x6", "awvq:shape=4x10/awvq:shape=4x6"},
      {"awvq:shape=4x10/awvq:shape=4x10", "awvq:shape=4x10"},
      {"awvq:norm=1/oscar", "awvq:norm=1/oscar"},
      {"budget:shapes=4x8+8x8", "budget:shapes=4x8+8x8"},
      {"budget:shapes=64x8+32x8+16x8+8x8+4x8+2x8", "budget"},
      {"oscar:target=ktk/oscar:target=vtv", "oscar:target=ktk/oscar:target=vtv"},
      {"oscar:target=", "oscar:target="}};
  for (const auto& [text, canonical] : cases) EXPECT_EQ(name_of(text), canonical) << text;
}

TEST(Specification, TheCanonicalNameMeansTheSame) {
  for (const char* text :
       {"oscar:clip=0.96", "oscar:clip=0.1:seed=1", "nova:shape=4x10:clip=0.123456789012345",
        "oscar/oscar:clip=0.96", "awvq:shape=8x8:norm=1:stored=fp16", "budget:bits=1.5:shapes=4x8+8x8",
        "turboquant:qjl=1:bits=3", "awsq:bits=2.5/oscar-dc:centre=top", "oscar:target=", "kivi/awvq",
        "oscar-dc:granularity=layer:codec=sglang-lloyd-max", "awvq:seed=18446744073709551615"}) {
    Method once;
    try {
      once = parse_method(text);
    } catch (const std::invalid_argument&) {  // oscar takes no seed
      EXPECT_NE(std::string(text).find("seed=1"), std::string::npos) << text;
      continue;
    }
    const Method again = parse_method(once.name);
    EXPECT_EQ(again.name, once.name) << text;
    EXPECT_EQ(honoured_options(again.k), honoured_options(once.k)) << text;
    EXPECT_EQ(honoured_options(again.v), honoured_options(once.v)) << text;
    EXPECT_EQ(again.k.method, once.k.method);
    EXPECT_EQ(again.v.method, once.v.method);
  }
}

TEST(Specification, HalvesGoToTheirSides) {
  const Method method = parse_method("awvq:shape=4x10/awvq:shape=4x6:norm=1");
  EXPECT_EQ(method.k.options.shape, (Shape2{4, 10}));
  EXPECT_EQ(method.v.options.shape, (Shape2{4, 6}));
  EXPECT_FALSE(method.k.options.norm);
  EXPECT_TRUE(method.v.options.norm);
  // What one side takes is not forced on the other.
  const Method nova = parse_method("nova:shape=8x8:clip=0.5");
  EXPECT_EQ(nova.k.options.shape, (Shape2{8, 8}));
  EXPECT_EQ(nova.v.options.clip, 0.5);
  EXPECT_EQ(nova.k.options.clip, 0);
}

TEST(Specification, RefusalsSayWhatIsTaken) {
  const std::vector<std::pair<const char*, const char*>> cases{
      {"", "unknown method ''"},
      {"magic", "unknown method 'magic'; known: budget, awvq"},
      {"oscar/magic", "unknown method 'magic'"},
      {"oscar/oscar/oscar", "expected METHOD, or METHOD-OF-K/METHOD-OF-V"},
      {"oscar:clip", "method 'oscar': expected option=value, found 'clip'"},
      {"oscar:", "method 'oscar': expected option=value, found ''"},
      {"oscar:frobnicate=1", "unknown method option 'frobnicate'; known: target"},
      {"oscar:shape=4x8", "method 'oscar' takes no option 'shape'; it takes: target composition"},
      {"nova/nova:shape=4x8", "method 'nova' takes no option 'shape'; it takes: target"},
      {"turboquant/turboquant:qjl=1", "takes no option 'qjl'; it takes: bits seed"},
      {"saw-int4:clip=0.9", "takes no option 'clip'"},
      {"oscar:clip=1.5", "method option clip: expected a number from 0 to 1, found '1.5'"},
      {"oscar:clip=-0.1", "found '-0.1'"},
      {"oscar:clip=nan", "found 'nan'"},
      {"oscar:clip=inf", "found 'inf'"},
      {"oscar:clip=0.9x", "found '0.9x'"},
      {"oscar:clip=", "found ''"},
      {"oscar:groups=0", "expected a number from 1, found '0'"},
      {"oscar:groups=1.5", "found '1.5'"},
      {"oscar:granularity=model", "expected layer, head, found 'model'"},
      {"oscar:composition=h_h", "unknown composition 'h_h'"},
      {"oscar:target=zzz", "unknown target 'zzz'"},
      {"oscar:codec=int1", "unknown codec 'int1'"},
      {"oscar:centre=middle", "expected none, mean, weighted, top, found 'middle'"},
      {"awvq:shape=4", "expected GxB, 1 to 64 channels and 1 to 12 bits, such as 4x8, found '4'"},
      {"awvq:shape=0x8", "found '0x8'"},
      {"awvq:shape=4x13", "found '4x13'"},
      {"awvq:shape=65x8", "found '65x8'"},
      {"awvq:shape=4x8x", "found '4x8x'"},
      {"awvq:shape=-4x8", "found '-4x8'"},
      {"awvq:norm=yes", "expected 0, 1, found 'yes'"},
      {"awvq:stored=int4", "expected int8, fp16, e4m3, e5m2"},
      {"awvq:partition=odd", "expected snake, volume, contiguous, anti"},
      {"awvq:importance=much", "expected none, attention, output"},
      {"awvq:iterations=0", "expected a number from 1"},
      {"awvq:restarts=0", "expected a number from 1"},
      {"awvq:rows=-1", "expected a number from 0"},
      {"awvq:rows=99999999999999999999", "expected a number from 0"},
      {"budget:bits=17", "expected a number from 0 to 16"},
      {"budget:shapes=", "expected GxB"},
      {"budget:shapes=4x8+", "expected GxB"}};
  for (const auto& [text, part] : cases)
    EXPECT_NE(refusal(text).find(part), std::string::npos) << text << ": " << refusal(text);
}

TEST(Specification, FitsRefuseWhatOnlyTheyCanSee) {
  const std::vector<std::pair<const char*, const char*>> cases{
      {"oscar:target=sst", "target 'sst' is of v; targets of k: qqt"},
      {"oscar/oscar:target=qqt", "target 'qqt' is of k; targets of v: vtv"},
      {"oscar:centre=top", "centre=top is for oscar-dc"},
      {"hadamard:composition=plain", "'hadamard' is H alone"},
      {"hadamard:granularity=head", "'hadamard' is one H"},
      {"awvq:shape=5x8", "codes of 5 channels do not divide the head dim 32"},
      {"budget:shapes=64x8", "none of the shapes divides the head dim 32"},
      {"awsq:bits=4.5", "bits=4.5: awsq gives a channel 0 to 4 bits"},
      {"turboquant:bits=2.5", "bits=2.5: expected 1 to 8, whole"},
      {"kvquant-nuq:bits=9", "bits=9: expected 1 to 8, whole"},
      {"oscar-dc:groups=3", "3 groups do not divide the head dim 32"},
      {"turboquant:bits=0", "bits=0"},
      {"budget:bits=0.1", "bits=0.1: the least that these codes can take is 0.25 bits a channel"}};
  for (const auto& [text, part] : cases) {
    const auto said = message_of<std::invalid_argument>([&, text = text] { fitted(text); });
    EXPECT_NE(said.find(part), std::string::npos) << text << ": " << said;
  }
}

}  // namespace
}  // namespace oscar::test
