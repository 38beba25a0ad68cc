#include "libdump/torch_device.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "formats/error.h"
#include "kernels/device.h"
#include "libcalib/compute_device.h"

namespace oscar {
namespace {

// Before LibTorch is asked anything about CUDA: it remembers what it was without the library.
void load_cuda() {
  static const std::string problem = [] {
    for (const char* library : {"libc10_cuda.so", "libtorch_cuda.so"}) {
      if (!dlopen(library, RTLD_NOW | RTLD_GLOBAL)) return std::string(dlerror());
    }
    return std::string();
  }();
  if (!problem.empty())
    throw failure(
        "this LibTorch has no CUDA, or its CUDA libraries are not all there ({}): point OSCAR_TORCH_DIR at "
        "one that has, or LD_LIBRARY_PATH at its libraries",
        problem);
}

c10::Stream stream_for(at::Device device, SideStream::Work work) {
  static std::mutex mutex;
  static std::map<std::pair<int, SideStream::Work>, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const auto key = std::pair{static_cast<int>(device.index()), work};
  const auto found = streams.find(key);
  if (found != streams.end()) return found->second;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return streams.emplace(key, guard.getStreamFromGlobalPool(device, false)).first->second;
}

}  // namespace

at::Device torch_device(const std::string& text) {
  const int number = cuda_number(text);
  if (number < 0) return at::kCPU;
  try {
    load_cuda();
    if (!at::globalContext().hasCUDA()) throw failure("no driver, or no device");
    const int count = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
    if (number >= count)
      throw failure("no such device: there {} {}, from cuda:0 on", count == 1 ? "is" : "are", count);
    at::globalContext().lazyInitDevice(at::kCUDA);
  } catch (const std::exception& error) {
    throw failure("device {}: {}", text, error.what());
  }
  return {at::kCUDA, static_cast<c10::DeviceIndex>(number)};
}

int64_t free_memory(at::Device device) {
  return static_cast<int64_t>(at::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first);
}

const std::string& kernels_missing(at::Device device) {
  static std::mutex mutex;
  static std::map<int, std::string> known;  // the question takes the driver a millisecond
  const std::lock_guard lock(mutex);
  const auto [found, asked] = known.try_emplace(device.index());
  cuda::DeviceInfo info;
  if (!asked) return found->second;
  if (const Status status = cuda::device_info(device.index(), &info); !status.ok()) found->second = status.what;
  return found->second;
}

bool has_kernels(at::Device device) {
  return device.is_cuda() && kernels_missing(device).empty();
}

void* stream_of(at::Device device) {
  if (const Status status = cuda::set_device(device.index()); !status.ok()) throw failure("{}", status.what);
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStreamNativeHandle(guard.getStream(device));
}

void wait_for(at::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

struct SideStream::State {
  State(at::Device device, Work work) : stream(stream_for(device, work)) {
    guard.reset_stream(stream);
  }
  c10::Stream stream;
  c10::OptionalStreamGuard guard;
};

SideStream::SideStream(at::Device device, Work work)
    : state_(device.is_cpu() ? nullptr : std::make_unique<State>(device, work)) {}

SideStream::~SideStream() {
  if (state_) c10::impl::VirtualGuardImpl(state_->stream.device_type()).synchronizeStream(state_->stream);
}

struct GpuTime::State {
  explicit State(at::Device on) : device(on) {}
  c10::Event mark() const {
    c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // with a time
    event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    return event;
  }
  at::Device device;
  std::vector<std::pair<c10::Event, std::optional<c10::Event>>> marks;
  std::optional<c10::Event> last;  // end of what was settled
};

GpuTime::GpuTime(at::Device device) : state_(device.is_cpu() ? nullptr : std::make_unique<State>(device)) {}
GpuTime::~GpuTime() = default;

void GpuTime::begin() {
  if (state_) state_->marks.emplace_back(state_->mark(), std::nullopt);
}
void GpuTime::end() {
  if (state_) state_->marks.back().second.emplace(state_->mark());
}

void GpuTime::settle() {
  if (!state_) return;
  for (auto& [begin, end] : state_->marks) {
    if (state_->last) idle_ += state_->last->elapsedTime(begin) / 1000;
    busy_ += begin.elapsedTime(end.value()) / 1000;
    state_->last = std::move(end);
  }
  state_->marks.clear();
}

at::Tensor to_device(const at::Tensor& tensor, at::Device device) {
  if (device.is_cpu() || !tensor.is_cpu()) return tensor;
  const at::Tensor locked =
      tensor.is_pinned() ? tensor
                         : at::empty(tensor.sizes(), tensor.options().pinned_memory(true)).copy_(tensor);
  return locked.to(device, /*non_blocking=*/true);
}

at::Tensor to_cpu(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  at::Tensor locked = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
  locked.copy_(tensor, /*non_blocking=*/true);
  wait_for(tensor.device());
  return locked;
}

}  // namespace oscar
