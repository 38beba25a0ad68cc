#include "tests/bench/torch_attention.h"

namespace oscar::test {

struct TorchAttention::Tensors {};
TorchAttention::TorchAttention(int, int, int, int, bool, bool) {}
TorchAttention::~TorchAttention() = default;
void TorchAttention::run() const {}
bool TorchAttention::present() {
  return false;
}

}  // namespace oscar::test
