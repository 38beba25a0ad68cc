#include "formats/hdf5_handles.h"

namespace oscar::h5 {

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

namespace {

// A float type HDF5 has no name for: sign, exponent and mantissa packed from the top bit down.
Id small_float(const Place& place, size_t bits, size_t exponent, size_t bias) {
  auto type = place.id(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, "copy a type");
  const size_t mantissa = bits - 1 - exponent;
  place.check(H5Tset_fields(type, bits - 1, mantissa, exponent, 0, mantissa), "define a float type");
  place.check(H5Tset_size(type, bits / 8), "define a float type");
  place.check(H5Tset_ebias(type, bias), "define a float type");
  return type;
}

}  // namespace

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
    default:
      throw invalid("{}: {}: HDF5 has no type for {}", place.file, place.object, info(dtype).name);
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
    if (row.dtype > DType::Bool) break;
    if (place.check(H5Tequal(type, stored_type(place, row.dtype)), "compare types") > 0) return row.dtype;
  }
  throw failure("{}: {}: the type is not a little-endian float, integer or bool of a size known here",
                place.file, place.object);
}

Id text_type(const Place& place) {
  auto type = place.id(H5Tcopy(H5T_C_S1), H5Tclose, "copy a type");
  place.check(H5Tset_size(type, H5T_VARIABLE), "define a string type");
  place.check(H5Tset_cset(type, H5T_CSET_UTF8), "define a string type");
  return type;
}

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

}  // namespace oscar::h5
