#include <algorithm>
#include <cstring>

#include "formats/hdf5.h"
#include "formats/hdf5_handles.h"
#include "formats/mapped_file.h"

namespace oscar {

using namespace h5;

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
  const auto bytes = byte_count(shape, dtype);
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
  std::vector<std::byte> bytes(static_cast<size_t>(*byte_count(shape, dtype)));
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
