// Arrays of float32 that may be larger than memory: the hidden states of every sequence, the k and v of a
// layer.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

namespace oscar {

class Spill {
 public:
  // A piece of so many floats each, not initialised. With an empty `folder` they are in memory; otherwise in
  // one file there that has no name, is mapped, and goes away with the process however it ends. Its blocks
  // are taken now, so a full disk is std::runtime_error here and not a fault when a page is written.
  Spill(const std::vector<int64_t>& sizes, const std::filesystem::path& folder);
  ~Spill();
  Spill(const Spill&) = delete;
  Spill& operator=(const Spill&) = delete;

  size_t count() const { return pieces_.size(); }
  float* piece(size_t i) { return pieces_[i]; }
  const float* piece(size_t i) const { return pieces_[i]; }
  // The piece keeps its values and leaves memory until it is read again; nothing happens to one that is in
  // memory. For one thread a piece, after which pointers stay valid.
  void put_away(size_t i) const;
  bool in_file() const { return map_ != nullptr; }

 private:
  std::vector<float*> pieces_;
  std::vector<size_t> bytes_;  // of each, whole pages in a file
  std::vector<std::unique_ptr<float[]>> memory_;
  void* map_ = nullptr;
  size_t mapped_ = 0;
};

}  // namespace oscar
