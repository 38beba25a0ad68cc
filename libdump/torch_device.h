// Where a forward runs: the CPU, or a GPU through a LibTorch that has CUDA. Nothing is linked for it: its
// library is loaded when a GPU is first asked for.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace oscar {

// "cpu", "cuda" (device 0) or "cuda:N". std::invalid_argument for other text; std::runtime_error says why a
// device cannot be used: a LibTorch without CUDA, no driver, no such device.
at::Device torch_device(const std::string& text);

// Bytes that are free on a GPU now.
int64_t free_memory(at::Device device);
// Why the kernels of this build (kernels/*_device.h) do not run on a GPU, so that LibTorch does what they do; ""
// where they run.
const std::string& kernels_missing(at::Device device);
bool has_kernels(at::Device device);  // of the CPU: none of those
// What LibTorch launches on from this thread, for kernels/*_device.h. Makes the device the thread's own.
void* stream_of(at::Device device);
// Waits for all that was launched from this thread.
void wait_for(at::Device device);

// While it lives, this thread launches on a stream of its own; the destructor waits for what it launched. What
// it reads must be there already (wait_for()): it waits for no other stream. The CPU: nothing.
class SideStream {
 public:
  // One stream for each, since freed memory is used again by the same stream only.
  enum class Work : uint8_t { Loading, Finishing };
  SideStream(at::Device device, Work work);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// How long a GPU worked on what this thread launched, and how long it had none of that to do in between, by events
// on its stream. What one begin() and end() enclose counts as work from its first kernel to its last. The CPU: 0.
class GpuTime {
 public:
  explicit GpuTime(at::Device device);
  ~GpuTime();
  void begin();
  void end();
  void settle();  // adds up what has been enclosed; wait_for() came before
  void restart() { busy_ = idle_ = 0; }  // counts from the end of what settle() knows
  double busy() const { return busy_; }  // seconds
  double idle() const { return idle_; }

 private:
  struct State;
  std::unique_ptr<State> state_;
  double busy_ = 0, idle_ = 0;
};

// The tensor on `device`; from the CPU through page-locked memory, without waiting. Itself when it is there.
at::Tensor to_device(const at::Tensor& tensor, at::Device device);
// A copy on the CPU, by page-locked memory.
at::Tensor to_cpu(const at::Tensor& tensor);

}  // namespace oscar
