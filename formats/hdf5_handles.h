// Internal to formats/hdf5_*.cpp: owned HDF5 handles, and errors that name file, object and reason.
#pragma once
#include <hdf5.h>

#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "formats/error.h"
#include "formats/tensor.h"

namespace oscar::h5 {

// The library is not built thread-safe everywhere, and its error stack is one per process then: hold a Lock around every call.
std::recursive_mutex& library();
using Lock = std::lock_guard<std::recursive_mutex>;

// HDF5's own words for the last error: the innermost description, or the system's message quoted in it.
std::string reason();

class Id {
 public:
  using Closer = herr_t (*)(hid_t);
  Id(hid_t id, Closer closer) : id_(id), closer_(closer) {}
  ~Id() {
    if (id_ >= 0) closer_(id_);
  }
  Id(Id&& other) noexcept : id_(std::exchange(other.id_, -1)), closer_(other.closer_) {}
  Id& operator=(Id&&) = delete;
  operator hid_t() const { return id_; }
  herr_t close() { return closer_(std::exchange(id_, -1)); }

 private:
  hid_t id_;
  Closer closer_;
};

struct Place {  // of an operation, for its error message
  std::string file, object;
  [[noreturn]] void fail(std::string_view what) const {
    throw failure("{}{}{}: {}: {}", file, object.empty() ? "" : ": ", object, what, reason());
  }
  Id id(hid_t id, Id::Closer closer, std::string_view what) const {
    if (id < 0) fail(what);
    return {id, closer};
  }
  template <typename T>
  T check(T result, std::string_view what) const {
    if (result < 0) fail(what);
    return result;
  }
};

// The type as which a dtype is stored; also the one it is read as, so bytes are never converted.
Id stored_type(const Place& place, DType dtype);
DType dtype_of(const Place& place, hid_t type);
Id text_type(const Place& place);
// Links into other files are refused: a statistics file is one file.
Id access(const Place& place);
bool exists_in(const Place& place, hid_t file, const std::string& path);

}  // namespace oscar::h5
