// A thin owner of HDF5 handles: datasets of our dtypes, attributes, groups by path. Knows bytes, not meaning.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/tensor.h"

namespace oscar {

// Writes into an AtomicFile's path or any new path. Times are not tracked and creation order is the caller's,
// so the same calls give the same bytes. Datasets of 4 KiB and more are chunked with the fletcher32 checksum;
// none is compressed.
class Hdf5Writer {
 public:
  explicit Hdf5Writer(const std::filesystem::path& path);  // truncates
  ~Hdf5Writer();
  // BF16 is stored as a 16-bit float of 8 exponent bits (h5py reads it as float32). Groups on the way are
  // made.
  void dataset(const std::string& path, const Tensor& tensor);
  void attribute(const std::string& object, const std::string& name, const std::string& text);
  void attribute(const std::string& object, const std::string& name, int64_t value);
  void attribute(const std::string& object, const std::string& name, double value);
  void close();  // flushes; errors (a full disk) are std::runtime_error here, swallowed in the destructor

 private:
  struct Handle;
  std::unique_ptr<Handle> file_;
};

class Hdf5Reader {
 public:
  // Missing: std::invalid_argument. Not HDF5, truncated, or locked by another process: std::runtime_error
  // that says so.
  explicit Hdf5Reader(const std::filesystem::path& path);
  ~Hdf5Reader();
  bool exists(const std::string& path) const;
  std::vector<std::string> children(const std::string& group) const;  // sorted
  Shape shape(const std::string& path) const;
  Tensor dataset(const std::string& path) const;  // in its stored dtype
  // Rows [first, first + count) of the leading dimension.
  Tensor rows(const std::string& path, int64_t first, int64_t count) const;
  std::optional<std::string> text(const std::string& object, const std::string& name) const;
  std::optional<int64_t> integer(const std::string& object, const std::string& name) const;
  std::optional<double> number(const std::string& object, const std::string& name) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  struct Handle;
  std::filesystem::path path_;
  std::unique_ptr<Handle> file_;
};

}  // namespace oscar
