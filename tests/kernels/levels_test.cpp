#include "kernels/cpu.h"
#include "tests/kernels/each_level.h"

namespace oscar::test {
namespace {

TEST(Levels, TheHighestOfTheMachineUnlessNamed) {
  std::string_view highest;
  for (const KernelTable* level : kernel_levels()) {
    if (!level->supported()) continue;
    EXPECT_EQ(&choose_level(level->name), level);
    highest = level->name;
  }
  EXPECT_EQ(choose_level("").name, highest);
  EXPECT_EQ(kernel_levels().front()->name, "generic");
}

TEST(Levels, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  try {
    choose_level("sse9");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("'sse9'"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("generic"), std::string::npos) << error.what();
  }
}

TEST(Levels, ALevelAboveTheMachineIsAnError) {
  for (const KernelTable* level : kernel_levels()) {
    if (level->supported()) continue;
    EXPECT_THROW(choose_level(level->name), std::invalid_argument) << level->name;
  }
}

}  // namespace
}  // namespace oscar::test
