// Every SIMD level that this machine can run and the wide one, by name in the failure message.
#pragma once
#include "kernels/levels.h"
#include "tests/support/support.h"

namespace oscar::test {

const KernelTable& wide_level();

template <typename Check>
void each_level(Check check) {
  std::vector<const KernelTable*> levels = {&wide_level()};
  for (const KernelTable* level : kernel_levels()) {
    if (level->supported()) levels.push_back(level);
  }
  for (const KernelTable* level : levels) {
    SCOPED_TRACE(std::string(level->name));
    check(*level);
  }
}

}  // namespace oscar::test
