#include <algorithm>

#include "formats/hdf5.h"
#include "formats/hdf5_handles.h"

namespace oscar {

using namespace h5;

namespace {

constexpr size_t kChunkedFrom = 4096;  // bytes; smaller datasets stay contiguous and without checksum
constexpr size_t kChunkBytes = size_t{512} << 10;

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

}  // namespace

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

// `path` and the groups above it, where they are not there yet. One by one: groups that HDF5 makes on the way to another
// object take their times from the clock, whatever the property lists of that object say.
static void make_groups(const Place& place, hid_t file, const std::string& path) {
  auto creation = place.id(H5Pcreate(H5P_GROUP_CREATE), H5Pclose, "make a property list");
  place.check(H5Pset_obj_track_times(creation, false), "make a property list");
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const auto group = path.substr(0, end);
    if (!group.empty() && group != "/" && !exists_in(place, file, group)) {
      place.id(H5Gcreate2(file, group.c_str(), H5P_DEFAULT, creation, H5P_DEFAULT), H5Gclose, "cannot create the group");
    }
    if (end == path.npos) return;
  }
}

void Hdf5Writer::dataset(const std::string& path, const Tensor& tensor) {
  const Lock lock(library());
  check_size(tensor);
  if (!file_) throw std::logic_error("Hdf5Writer::dataset after close");
  const auto place = file_->at(path);
  if (const auto slash = path.rfind('/'); slash != path.npos) make_groups(place, file_->file, path.substr(0, slash));
  auto creation = place.id(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "make a property list");
  place.check(H5Pset_obj_track_times(creation, false), "make a property list");
  if (tensor.bytes.size() >= kChunkedFrom) {
    const auto chunk = chunk_shape(tensor.shape, info(tensor.dtype).size());
    place.check(H5Pset_chunk(creation, static_cast<int>(chunk.size()), chunk.data()), "set chunks");
    place.check(H5Pset_fletcher32(creation), "set the checksum");
  }
  const std::vector<hsize_t> extents(tensor.shape.begin(), tensor.shape.end());
  auto space =
      place.id(extents.empty() ? H5Screate(H5S_SCALAR)
                               : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
               H5Sclose, "make a dataspace");
  const auto type = stored_type(place, tensor.dtype);
  auto data = place.id(H5Dcreate2(file_->file, path.c_str(), type, space, H5P_DEFAULT, creation, H5P_DEFAULT),
                       H5Dclose, "cannot create the dataset");
  if (!tensor.bytes.empty()) {
    place.check(H5Dwrite(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.bytes.data()),
                "cannot write the dataset");
  }
  place.check(data.close(), "cannot write the dataset");
}

// The object an attribute belongs to; a group is made where nothing is.
static Id attribute_owner(const Place& place, hid_t file) {
  make_groups(place, file, place.object);
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

}  // namespace oscar
