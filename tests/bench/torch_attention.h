// One query token's attention over exact rows, by LibTorch; present() is false in builds without it.
// stacked: the query heads of a KV head are given as rows of one head, not as heads that share it.
#pragma once
#include <memory>

namespace oscar::test {

class TorchAttention {
 public:
  TorchAttention(int kv_heads, int group, int dim, int tokens, bool bf16, bool stacked);
  ~TorchAttention();
  void run() const;
  static bool present();

 private:
  struct Tensors;
  std::unique_ptr<Tensors> tensors_;
};

}  // namespace oscar::test
