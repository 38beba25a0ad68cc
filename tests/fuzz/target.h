// What the targets share: an input becomes a file, a parser reads it under watch. Each target is one file
// with LLVMFuzzerTestOneInput; libFuzzer or driver.cpp runs it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "formats/pt.h"
#include "formats/tensor.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size,
                                   size_t max_size);  // the engine's own mutations

namespace oscar::fuzz {

// A file that holds the input until the next call: in memory, regular, nothing readable after its end.
const std::filesystem::path& input_file(const uint8_t* data, size_t size);
// A folder of this process in memory, where there is such a file system; gone at exit.
struct Folder {
  Folder();
  ~Folder();
  std::filesystem::path path;
};
// A named file, which a parser finds by its directory; opened once.
void write_input(const std::filesystem::path& path, const uint8_t* data, size_t size);

// WithOffset: std::runtime_error "…offset N: reason". WithReason: std::invalid_argument too, and no offset.
enum class Refusals : uint8_t { WithOffset, WithReason };
// Runs `read`, which may succeed or refuse. Ends the process on any other exception, on a message without offset
// or reason, and when more than 4 x `size` + 64 MiB are allocated at a time.
void watch(size_t size, const std::function<void()>& read, Refusals refusals = Refusals::WithOffset);

// Reads every byte of a tensor, the first ones as floats.
void touch(const Tensor& tensor);
void touch(const PtValue& value);
void touch(std::span<const std::byte> bytes);

}  // namespace oscar::fuzz
