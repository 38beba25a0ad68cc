#include "formats/hdf5.h"

#include <hdf5.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "formats/error.h"
#include "formats/mapped_file.h"

namespace oscar {

namespace {

constexpr size_t kChunkedFrom = 4096;  // bytes; smaller datasets stay contiguous and without checksum
constexpr size_t kChunkBytes = size_t{512} << 10;

// The library is not built thread-safe everywhere, and its error stack is one per process then.
std::recursive_mutex& library() {
  static std::recursive_mutex mutex;
  static const bool ready = [] {
    H5dont_atexit();  // a file that could not be flushed would be tried again at exit, long after its error
                      // was reported
    H5open();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // errors become exceptions, not text on stderr
    H5PLset_loading_state(0);                     // no filter plugins: reading a file never runs foreign code
    return true;
  }();
  (void)ready;
  return mutex;
}
using Lock = std::lock_guard<std::recursive_mutex>;

// HDF5's own words for the last error: the innermost description, or the system's message quoted in it.
std::string reason() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
        auto& kept = *static_cast<std::string*>(out);
        if (kept.empty() && error->desc) kept = error->desc;
        return 0;
      },
      &text);
  H5Eclear2(H5E_DEFAULT);
  constexpr std::string_view kQuoted = "error message = '";
  if (const auto begin = text.find(kQuoted); begin != text.npos) {
    const auto end = text.find('\'', begin + kQuoted.size());
    text = text.substr(begin + kQuoted.size(), end - begin - kQuoted.size());
  }
  return text.empty() ? "HDF5 gave no reason" : text;
}

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

// A float type HDF5 has no name for: sign, exponent and mantissa packed from the top bit down.
Id small_float(const Place& place, size_t bits, size_t exponent, size_t bias) {
  auto type = place.id(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, "copy a type");
  const size_t mantissa = bits - 1 - exponent;
  place.check(H5Tset_fields(type, bits - 1, mantissa, exponent, 0, mantissa), "define a float type");
  place.check(H5Tset_size(type, bits / 8), "define a float type");
  place.check(H5Tset_ebias(type, bias), "define a float type");
  return type;
}

// The type as which a dtype is stored; also the one it is read as, so bytes are never converted.
Id stored_type(const Place& place, DType dtype) {
  const auto copy = [&](hid_t type) { return place.id(H5Tcopy(type), H5Tclose, "copy a type"); };
  switch (dtype) {
    case DType::F64:
      return copy(H5T_IEEE_F64LE);
    case DType::F32:
      return copy(H5T_IEEE_F32LE);
    case DType::F16:
      return small_float(place, 16, 5, 15);
    case DType::BF16:
      return small_float(place, 16, 8, 127);
    case DType::F8_E4M3:
      return small_float(place, 8, 4, 7);
    case DType::F8_E5M2:
      return small_float(place, 8, 5, 15);
    case DType::I64:
      return copy(H5T_STD_I64LE);
    case DType::I32:
      return copy(H5T_STD_I32LE);
    case DType::I16:
      return copy(H5T_STD_I16LE);
    case DType::I8:
      return copy(H5T_STD_I8LE);
    case DType::U64:
      return copy(H5T_STD_U64LE);
    case DType::U32:
      return copy(H5T_STD_U32LE);
    case DType::U16:
      return copy(H5T_STD_U16LE);
    case DType::U8:
      return copy(H5T_STD_U8LE);
    case DType::Bool:
      break;
  }
  // As h5py stores NumPy's bool.
  auto type = place.id(H5Tenum_create(H5T_STD_I8LE), H5Tclose, "define a bool type");
  for (const int8_t value : {0, 1}) {
    place.check(H5Tenum_insert(type, value ? "TRUE" : "FALSE", &value), "define a bool type");
  }
  return type;
}

DType dtype_of(const Place& place, hid_t type) {
  for (const auto& row : dtype_table()) {
    if (place.check(H5Tequal(type, stored_type(place, row.dtype)), "compare types") > 0) return row.dtype;
  }
  throw failure("{}: {}: the type is not a little-endian float, integer or bool of a size known here",
                place.file, place.object);
}

// Chunks of about kChunkBytes, as equal as possible so that the last one wastes little.
std::vector<hsize_t> chunk_shape(const Shape& shape, size_t element) {
  std::vector<hsize_t> chunk(shape.begin(), shape.end());
  for (size_t i = 0; i < chunk.size(); ++i) {
    hsize_t rest = element;
    for (size_t j = i + 1; j < chunk.size(); ++j) rest *= chunk[j];
    const hsize_t most = std::max<hsize_t>(1, kChunkBytes / rest);
    if (chunk[i] <= most) break;
    const hsize_t pieces = (chunk[i] + most - 1) / most;
    chunk[i] = (chunk[i] + pieces - 1) / pieces;
  }
  return chunk;
}

Id text_type(const Place& place) {
  auto type = place.id(H5Tcopy(H5T_C_S1), H5Tclose, "copy a type");
  place.check(H5Tset_size(type, H5T_VARIABLE), "define a string type");
  place.check(H5Tset_cset(type, H5T_CSET_UTF8), "define a string type");
  return type;
}

// Links into other files are refused: a statistics file is one file.
Id access(const Place& place) {
  auto list = place.id(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose, "make a property list");
  const auto refuse = [](const char*, const char*, const char*, const char*, unsigned*, hid_t,
                         void*) -> herr_t { return -1; };
  place.check(H5Pset_elink_cb(list, refuse, nullptr), "make a property list");
  return list;
}

bool exists_in(const Place& place, hid_t file, const std::string& path) {
  // H5Lexists fails when something on the way is missing or no group, so each is asked for in turn.
  for (size_t end = 0; end != path.npos;) {
    end = path.find('/', end + 1);
    const auto prefix = path.substr(0, end);
    if (prefix.empty() || prefix == "/") continue;
    if (place.check(H5Lexists(file, prefix.c_str(), H5P_DEFAULT), "look up") == 0) return false;
    const Id object(H5Oopen(file, prefix.c_str(), access(place)), H5Oclose);
    if (object < 0) H5Eclear2(H5E_DEFAULT);  // a link to nowhere, or into another file
    if (object < 0 || (end != path.npos && H5Iget_type(object) != H5I_GROUP)) return false;
  }
  return true;
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------
// writing

struct Hdf5Writer::Handle {
  Id file;
  std::string path;
  Place at(const std::string& object) const { return {path, object}; }
};

Hdf5Writer::Hdf5Writer(const std::filesystem::path& path) {
  const Lock lock(library());
  const Place place{path.string(), ""};
  auto creation = place.id(H5Pcreate(H5P_FILE_CREATE), H5Pclose, "make a property list");
  place.check(H5Pset_obj_track_times(creation, false), "make a property list");
  auto opening = place.id(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "make a property list");
  // Version 1.8 headers carry checksums and no times; strong closing leaves no object of a failed file open.
  place.check(H5Pset_libver_bounds(opening, H5F_LIBVER_V18, H5F_LIBVER_V18), "make a property list");
  place.check(H5Pset_fclose_degree(opening, H5F_CLOSE_STRONG), "make a property list");
  auto file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, opening);
  file_ = std::make_unique<Handle>(place.id(file, H5Fclose, "cannot create"), path.string());
}

Hdf5Writer::~Hdf5Writer() {
  const Lock lock(library());
  file_.reset();
}

void Hdf5Writer::dataset(const std::string& path, const Tensor& tensor) {
  const Lock lock(library());
  check_size(tensor);
  if (!file_) throw std::logic_error("Hdf5Writer::dataset after close");
  const auto place = file_->at(path);
  auto links = place.id(H5Pcreate(H5P_LINK_CREATE), H5Pclose, "make a property list");
  place.check(H5Pset_create_intermediate_group(links, 1), "make a property list");
  auto creation = place.id(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "make a property list");
  place.check(H5Pset_obj_track_times(creation, false), "make a property list");
  if (tensor.bytes.size() >= kChunkedFrom) {
    const auto chunk = chunk_shape(tensor.shape, info(tensor.dtype).size);
    place.check(H5Pset_chunk(creation, static_cast<int>(chunk.size()), chunk.data()), "set chunks");
    place.check(H5Pset_fletcher32(creation), "set the checksum");
  }
  const std::vector<hsize_t> extents(tensor.shape.begin(), tensor.shape.end());
  auto space =
      place.id(extents.empty() ? H5Screate(H5S_SCALAR)
                               : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
               H5Sclose, "make a dataspace");
  const auto type = stored_type(place, tensor.dtype);
  auto data = place.id(H5Dcreate2(file_->file, path.c_str(), type, space, links, creation, H5P_DEFAULT),
                       H5Dclose, "cannot create the dataset");
  if (!tensor.bytes.empty()) {
    place.check(H5Dwrite(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.bytes.data()),
                "cannot write the dataset");
  }
  place.check(data.close(), "cannot write the dataset");
}

// The object an attribute belongs to; a group is made where nothing is.
static Id attribute_owner(const Place& place, hid_t file) {
  if (!exists_in(place, file, place.object)) {
    auto links = place.id(H5Pcreate(H5P_LINK_CREATE), H5Pclose, "make a property list");
    place.check(H5Pset_create_intermediate_group(links, 1), "make a property list");
    return place.id(H5Gcreate2(file, place.object.c_str(), links, H5P_DEFAULT, H5P_DEFAULT), H5Gclose,
                    "cannot create the group");
  }
  return place.id(H5Oopen(file, place.object.c_str(), access(place)), H5Oclose, "cannot open the object");
}

static void write_attribute(const Place& place, hid_t file, const std::string& name, hid_t type,
                            const void* value) {
  const auto what = fmt::format("cannot write the attribute '{}'", name);
  auto owner = attribute_owner(place, file);
  auto space = place.id(H5Screate(H5S_SCALAR), H5Sclose, "make a dataspace");
  auto attribute =
      place.id(H5Acreate2(owner, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose, what);
  place.check(H5Awrite(attribute, type, value), what);
  place.check(attribute.close(), what);
  place.check(owner.close(), what);
}

void Hdf5Writer::attribute(const std::string& object, const std::string& name, const std::string& text) {
  const Lock lock(library());
  if (!file_) throw std::logic_error("Hdf5Writer::attribute after close");
  const auto place = file_->at(object);
  if (text.find('\0') != text.npos) {
    throw invalid("{}: {}: attribute '{}': HDF5 strings cannot hold a zero byte", place.file, object, name);
  }
  const char* value = text.c_str();
  write_attribute(place, file_->file, name, text_type(place), &value);
}
void Hdf5Writer::attribute(const std::string& object, const std::string& name, int64_t value) {
  const Lock lock(library());
  if (!file_) throw std::logic_error("Hdf5Writer::attribute after close");
  write_attribute(file_->at(object), file_->file, name, H5T_STD_I64LE, &value);
}
void Hdf5Writer::attribute(const std::string& object, const std::string& name, double value) {
  const Lock lock(library());
  if (!file_) throw std::logic_error("Hdf5Writer::attribute after close");
  write_attribute(file_->at(object), file_->file, name, H5T_IEEE_F64LE, &value);
}

void Hdf5Writer::close() {
  const Lock lock(library());
  if (!file_) return;
  const auto handle = std::move(file_);
  const auto place = handle->at("");
  place.check(H5Fflush(handle->file, H5F_SCOPE_LOCAL), "cannot write");
  place.check(handle->file.close(), "cannot close");
}

// ----------------------------------------------------------------------------------------------------------
// reading

struct Hdf5Reader::Handle {
  Id file;
  std::string path;
  uint64_t size;  // of the file
  Place at(const std::string& object) const { return {path, object}; }

  Id open_dataset(const std::string& object) const {
    return at(object).id(H5Dopen2(file, object.c_str(), access(at(object))), H5Dclose,
                         "cannot open the dataset");
  }
};

Hdf5Reader::Hdf5Reader(const std::filesystem::path& path) : path_(path) {
  const auto size = MappedFile::open(path)->bytes().size();  // its errors for what is missing or no file
  const Lock lock(library());
  const Place place{path.string(), ""};
  auto opening = place.id(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "make a property list");
  place.check(H5Pset_fclose_degree(opening, H5F_CLOSE_STRONG), "make a property list");
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, opening);
  if (file < 0) {
    const auto why = reason();
    if (why.find("Resource temporarily unavailable") != why.npos) {
      throw failure(
          "{}: another process is writing this HDF5 file; wait for it to finish. If none is, or the file "
          "system "
          "cannot lock, set HDF5_USE_FILE_LOCKING=FALSE",
          path.string());
    }
    if (why.find("lock") != why.npos || why.find("Function not implemented") != why.npos ||
        why.find("No locks") != why.npos) {
      throw failure("{}: the file system cannot lock this HDF5 file ({}): set HDF5_USE_FILE_LOCKING=FALSE",
                    path.string(), why);
    }
    throw failure("{}: is not a whole HDF5 file: {}", path.string(), why);
  }
  file_ = std::make_unique<Handle>(Id(file, H5Fclose), path.string(), size);
}

Hdf5Reader::~Hdf5Reader() {
  const Lock lock(library());
  file_.reset();
}

bool Hdf5Reader::exists(const std::string& path) const {
  const Lock lock(library());
  return exists_in(file_->at(path), file_->file, path);
}

std::vector<std::string> Hdf5Reader::children(const std::string& group) const {
  const Lock lock(library());
  const auto place = file_->at(group);
  auto opened =
      place.id(H5Gopen2(file_->file, group.c_str(), access(place)), H5Gclose, "cannot open the group");
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
    static_cast<std::vector<std::string>*>(out)->emplace_back(name);
    return 0;
  };
  place.check(H5Literate(opened, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, collect, &names),
              "cannot list the group");
  std::ranges::sort(names);
  return names;
}

static Shape shape_of(const Place& place, hid_t space) {
  const int rank = place.check(H5Sget_simple_extent_ndims(space), "cannot read the shape");
  std::vector<hsize_t> extents(static_cast<size_t>(rank));
  place.check(H5Sget_simple_extent_dims(space, extents.data(), nullptr), "cannot read the shape");
  return {extents.begin(), extents.end()};
}

Shape Hdf5Reader::shape(const std::string& path) const {
  const Lock lock(library());
  const auto place = file_->at(path);
  const auto data = file_->open_dataset(path);
  return shape_of(place, place.id(H5Dget_space(data), H5Sclose, "cannot read the shape"));
}

// Throws unless the file can hold what the shape claims: HDF5 itself would hand out zeros for what was never
// written.
static void check_stored(const Place& place, hid_t data, const Shape& shape, DType dtype,
                         uint64_t file_size) {
  const auto creation = place.id(H5Dget_create_plist(data), H5Pclose, "cannot read the layout");
  const auto layout = place.check(H5Pget_layout(creation), "cannot read the layout");
  if (layout == H5D_VIRTUAL || (layout == H5D_CONTIGUOUS &&
                                place.check(H5Pget_external_count(creation), "cannot read the layout") > 0)) {
    throw failure("{}: {}: the data is in other files", place.file, place.object);
  }
  const auto bytes = byte_count(shape, info(dtype).size);
  const uint64_t stored = std::min<uint64_t>(H5Dget_storage_size(data), file_size);
  constexpr uint64_t kMostDeflated = 1032;  // times, by deflate
  const bool packed = place.check(H5Pget_nfilters(creation), "cannot read the filters") > 0;
  if (!bytes || static_cast<uint64_t>(*bytes) / (packed ? kMostDeflated : 1) > stored) {
    throw failure(
        "{}: {}: {} {} is more than the {} bytes stored for it: the file was not written to its end",
        place.file, place.object, info(dtype).name, to_string(shape), stored);
  }
}

// The whole dataset, or its rows [first, first + count).
static Tensor read_dataset(const Place& place, hid_t data, uint64_t file_size,
                           const std::pair<int64_t, int64_t>* rows) {
  const auto type = place.id(H5Dget_type(data), H5Tclose, "cannot read the type");
  const auto dtype = dtype_of(place, type);
  auto space = place.id(H5Dget_space(data), H5Sclose, "cannot read the shape");
  auto shape = shape_of(place, space);
  check_stored(place, data, shape, dtype, file_size);
  if (rows) {
    const auto [first, count] = *rows;
    if (shape.empty() || first < 0 || count < 0 || first > shape[0] || count > shape[0] - first) {
      throw invalid("{}: {}: rows {} to {} of {} were asked for", place.file, place.object, first,
                    first + count, to_string(shape));
    }
    std::vector<hsize_t> start(shape.size(), 0);
    start[0] = static_cast<hsize_t>(first);
    shape[0] = count;
    const std::vector<hsize_t> extents(shape.begin(), shape.end());
    if (element_count(shape) > 0) {
      place.check(H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, extents.data(), nullptr),
                  "cannot select rows");
    }
  }
  std::vector<std::byte> bytes(static_cast<size_t>(*byte_count(shape, info(dtype).size)));
  if (!bytes.empty()) {
    const std::vector<hsize_t> extents(shape.begin(), shape.end());
    auto memory = place.id(extents.empty()
                               ? H5Screate(H5S_SCALAR)
                               : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                           H5Sclose, "make a dataspace");
    place.check(H5Dread(data, type, memory, space, H5P_DEFAULT, bytes.data()),
                "cannot read the dataset: the file is truncated or corrupt");
  }
  return make_tensor(dtype, std::move(shape), std::move(bytes));
}

Tensor Hdf5Reader::dataset(const std::string& path) const {
  const Lock lock(library());
  return read_dataset(file_->at(path), file_->open_dataset(path), file_->size, nullptr);
}
Tensor Hdf5Reader::rows(const std::string& path, int64_t first, int64_t count) const {
  const Lock lock(library());
  const std::pair rows{first, count};
  return read_dataset(file_->at(path), file_->open_dataset(path), file_->size, &rows);
}

namespace {

struct OpenAttribute {
  Id object, attribute, type;
  H5T_class_t kind;
};

// Absent, or its object is: nullopt. Arrays are refused.
std::optional<OpenAttribute> open_attribute(const Place& place, hid_t file, const std::string& name) {
  if (!exists_in(place, file, place.object)) return std::nullopt;
  const auto what = fmt::format("cannot read the attribute '{}'", name);
  auto object =
      place.id(H5Oopen(file, place.object.c_str(), access(place)), H5Oclose, "cannot open the object");
  if (place.check(H5Aexists(object, name.c_str()), what) == 0) return std::nullopt;
  auto attribute = place.id(H5Aopen(object, name.c_str(), H5P_DEFAULT), H5Aclose, what);
  auto type = place.id(H5Aget_type(attribute), H5Tclose, what);
  const auto space = place.id(H5Aget_space(attribute), H5Sclose, what);
  if (place.check(H5Sget_simple_extent_npoints(space), what) != 1) {
    throw failure("{}: {}: attribute '{}': expected one value, found an array", place.file, place.object,
                  name);
  }
  const auto kind = H5Tget_class(type);
  return OpenAttribute{std::move(object), std::move(attribute), std::move(type), kind};
}

std::runtime_error wrong_kind(const Place& place, const std::string& name, std::string_view expected) {
  return failure("{}: {}: attribute '{}' is not {}", place.file, place.object, name, expected);
}

}  // namespace

std::optional<std::string> Hdf5Reader::text(const std::string& object, const std::string& name) const {
  const Lock lock(library());
  const auto place = file_->at(object);
  const auto found = open_attribute(place, file_->file, name);
  if (!found) return std::nullopt;
  if (found->kind != H5T_STRING) throw wrong_kind(place, name, "a string");
  const auto what = fmt::format("cannot read the attribute '{}'", name);
  if (place.check(H5Tis_variable_str(found->type), what) > 0) {
    char* value = nullptr;
    place.check(H5Aread(found->attribute, found->type, &value), what);
    const std::string text = value ? value : "";
    H5free_memory(value);
    return text;
  }
  const auto size = H5Tget_size(found->type);
  if (size == 0 || size > file_->size) throw wrong_kind(place, name, "a string that fits in its file");
  std::string text(size, '\0');
  place.check(H5Aread(found->attribute, found->type, text.data()), what);
  if (H5Tget_strpad(found->type) == H5T_STR_SPACEPAD) {
    text.resize(text.find_last_not_of(' ') + 1);
  } else {
    text.resize(std::min(text.find('\0'), text.size()));
  }
  return text;
}

std::optional<int64_t> Hdf5Reader::integer(const std::string& object, const std::string& name) const {
  const Lock lock(library());
  const auto place = file_->at(object);
  const auto found = open_attribute(place, file_->file, name);
  if (!found) return std::nullopt;
  if (found->kind != H5T_INTEGER) throw wrong_kind(place, name, "an integer");
  int64_t value = 0;
  place.check(H5Aread(found->attribute, H5T_NATIVE_INT64, &value),
              fmt::format("cannot read the attribute '{}'", name));
  return value;
}
std::optional<double> Hdf5Reader::number(const std::string& object, const std::string& name) const {
  const Lock lock(library());
  const auto place = file_->at(object);
  const auto found = open_attribute(place, file_->file, name);
  if (!found) return std::nullopt;
  if (found->kind != H5T_FLOAT && found->kind != H5T_INTEGER) throw wrong_kind(place, name, "a number");
  double value = 0;
  place.check(H5Aread(found->attribute, H5T_NATIVE_DOUBLE, &value),
              fmt::format("cannot read the attribute '{}'", name));
  return value;
}

}  // namespace oscar
