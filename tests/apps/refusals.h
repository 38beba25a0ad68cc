// What every refusal of the programs must be like.
#pragma once
#include "tests/apps/tools.h"

namespace oscar::test {

struct Refusal {
  std::string name;
  Arguments arguments;   // added to a command that works
  int code;
  std::string says;      // the message names this
};
inline std::string refusal_name(const testing::TestParamInfo<Refusal>& info) { return info.param.name; }
inline void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

inline void expect_refusal(const Bench& bench, const Arguments& command, const Refusal& refusal) {
  const auto before = bench.files();
  const auto outcome = run(command);
  const auto tool = fs::path(command[0]).filename().string();
  EXPECT_EQ(outcome.code, refusal.code) << refusal.name << "\n" << outcome;
  EXPECT_TRUE(outcome.err.find(tool + ": ") != std::string::npos) << "the message begins with the tool: " << outcome;
  EXPECT_NE(outcome.err.find(refusal.says), std::string::npos) << "expected '" << refusal.says << "' in\n" << outcome;
  EXPECT_EQ(outcome.out, "") << outcome;
  EXPECT_EQ(bench.files(), before) << "left on disk after " << outcome;
}

}  // namespace oscar::test
