#include "tests/fuzz/target.h"

#include <fcntl.h>
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <typeinfo>

// Of sanitizer/allocator_interface.h, which GCC's sanitizers have and its headers do not.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, size_t),
                                                         void (*on_free)(const volatile void*));
extern "C" size_t __sanitizer_get_allocated_size(const volatile void* pointer);

// A map ends with its file, not with its page: linked with --wrap=mmap,--wrap=munmap.
extern "C" {
void* __real_mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset);
int __real_munmap(void* address, size_t size);
void* __wrap_mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void* address, size_t size);

static size_t rest_of_page(size_t size) {
  constexpr size_t kPage = 4096;
  return (kPage - size % kPage) % kPage;
}
void* __wrap_mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) {
  void* start = __real_mmap(address, size, protection, flags, fd, offset);
  if (fd >= 0 && start != MAP_FAILED)
    ASAN_POISON_MEMORY_REGION(static_cast<char*>(start) + size, rest_of_page(size));
  return start;
}
int __wrap_munmap(void* address, size_t size) {
  ASAN_UNPOISON_MEMORY_REGION(address, size + rest_of_page(size));
  return __real_munmap(address, size);
}
const char* __asan_default_options();
const char* __asan_default_options() {
  return "handle_abort=1:detect_leaks=1:allocator_may_return_null=0";
}
}

namespace oscar::fuzz {

namespace {

[[noreturn]] void die(const char* what, const char* detail) {
  std::fprintf(stderr, "fuzz: %s: %s\n", what, detail);
  std::abort();
}

// Bytes allocated now, and how many may be; one thread.
int64_t live = 0;
int64_t ceiling = INT64_MAX;

void on_malloc(const volatile void*, size_t size) {
  live += static_cast<int64_t>(size);
  if (live <= ceiling) return;
  ceiling = INT64_MAX;  // for what dying allocates
  die("memory", "more than 4 x the size of the input + 64 MiB is allocated");
}
void on_free(const volatile void* pointer) {
  if (pointer) live -= static_cast<int64_t>(__sanitizer_get_allocated_size(pointer));
}
const int installed = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);

void check_message(const char* message, Refusals refusals) {
  if (refusals == Refusals::WithReason) {
    if (std::strlen(message) < 20) die("a rejection without a reason", message);
    return;
  }
  const char* at = std::strstr(message, "offset ");
  if (!at) die("a rejection without an offset", message);
  char* end = nullptr;
  std::strtoull(at + 7, &end, 10);
  if (end == at + 7 || *end != ':') die("a rejection without an offset", message);
  if (std::strlen(end) <= 2 + 20) die("a rejection without a reason", message);
}

void fill(int fd, const uint8_t* data, size_t size) {
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, data, size, 0) != static_cast<ssize_t>(size))
    die("cannot write the input", std::strerror(errno));
}

volatile unsigned sink;

}  // namespace

const std::filesystem::path& input_file(const uint8_t* data, size_t size) {
  static const int fd = ::memfd_create("input", MFD_CLOEXEC);
  static const std::filesystem::path path = "/proc/self/fd/" + std::to_string(fd);
  if (fd < 0) die("memfd_create", std::strerror(errno));
  fill(fd, data, size);
  return path;
}

void write_input(const std::filesystem::path& path, const uint8_t* data, size_t size) {
  static const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) die(path.c_str(), std::strerror(errno));
  fill(fd, data, size);
}

Folder::Folder() {
  const std::filesystem::path memory = "/dev/shm";
  path = (std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path()) /
         ("oscar-fuzz-" + std::to_string(::getpid()));
  std::filesystem::create_directory(path);
}
Folder::~Folder() {
  std::error_code error;
  std::filesystem::remove_all(path, error);
}

void watch(size_t size, const std::function<void()>& read, Refusals refusals) {
  if (!installed) die("the sanitizer", "takes no hooks");
  ceiling = live + 4 * static_cast<int64_t>(size) + (int64_t{64} << 20);
  try {
    read();
  } catch (const std::runtime_error& error) {
    ceiling = INT64_MAX;
    check_message(error.what(), refusals);
  } catch (const std::exception& error) {
    ceiling = INT64_MAX;
    if (refusals == Refusals::WithReason && dynamic_cast<const std::invalid_argument*>(&error))
      return check_message(error.what(), refusals);
    die(typeid(error).name(), error.what());
  }
  ceiling = INT64_MAX;
}

void touch(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  for (const auto byte : bytes) sum += static_cast<unsigned>(byte);
  sink = sum;
}
void touch(const Tensor& tensor) {
  touch(tensor.bytes);
  check_size(tensor);
  constexpr int64_t kConverted = 256;
  const auto bits = info(tensor.dtype).bits;
  if (bits == 6 || tensor.dtype == DType::C64) return;  // not converted
  float values[kConverted];
  to_float(tensor.dtype, tensor.bytes.data(), static_cast<size_t>(std::min(tensor.count(), kConverted)),
           values);
  sink = static_cast<unsigned>(values[0] > 0);
}
void touch(const PtValue& value) {
  if (const auto* tensor = std::get_if<Tensor>(&value.value)) touch(*tensor);
  if (const auto* text = std::get_if<std::string>(&value.value)) touch(std::as_bytes(std::span(*text)));
  if (const auto* list = std::get_if<PtList>(&value.value)) {
    for (const auto& item : list->items) touch(item);
  }
  if (const auto* tuple = std::get_if<PtTuple>(&value.value)) {
    for (const auto& item : tuple->items) touch(item);
  }
  if (const auto* dict = std::get_if<PtDict>(&value.value)) {
    for (const auto& [key, item] : dict->items) {
      touch(key);
      touch(item);
    }
  }
}

}  // namespace oscar::fuzz
