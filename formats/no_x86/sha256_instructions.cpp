// Instead of formats/x86/sha256_instructions.cpp on other CPUs.
#include "formats/sha256_blocks.h"

namespace oscar {

Sha256Blocks* sha256_instructions() {
  return nullptr;
}

}  // namespace oscar
