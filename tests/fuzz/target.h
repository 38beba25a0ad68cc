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
// A named one, which a parser finds by its directory; made once and removed at exit.
void write_input(const std::filesystem::path& path, const uint8_t* data, size_t size);

// Runs `read`, which may succeed or refuse with std::runtime_error "…offset N: reason". Ends the process on
// any other exception, on a message without offset or reason, and when more than 4 x `size` + 64 MiB are
// allocated at a time.
void watch(size_t size, const std::function<void()>& read);

// Reads every byte of a tensor, the first ones as floats.
void touch(const Tensor& tensor);
void touch(const PtValue& value);
void touch(std::span<const std::byte> bytes);

}  // namespace oscar::fuzz
