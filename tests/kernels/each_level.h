// Every SIMD level that this machine can run, by name in the failure message.
#pragma once
#include "kernels/levels.h"
#include "tests/support/support.h"

namespace oscar::test {

template <typename Check>
void each_level(Check check) {
  for (const KernelTable* level : kernel_levels()) {
    if (!level->supported()) continue;
    SCOPED_TRACE(std::string(level->name));
    check(*level);
  }
}

}  // namespace oscar::test
