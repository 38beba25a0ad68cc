#include "formats/npy.h"

#include <algorithm>
#include <optional>

#include "formats/atomic_write.h"
#include "formats/bytes.h"
#include "formats/mapped_file.h"

namespace oscar {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
struct Descr {
  DType dtype;
  std::string_view name;
};
constexpr Descr kDescr[] = {
    {DType::F64, "<f8"}, {DType::F32, "<f4"}, {DType::F16, "<f2"}, {DType::I64, "<i8"},
    {DType::I32, "<i4"}, {DType::I16, "<i2"}, {DType::I8, "|i1"},  {DType::U64, "<u8"},
    {DType::U32, "<u4"}, {DType::U16, "<u2"}, {DType::U8, "|u1"},  {DType::Bool, "|b1"},
};

// The header is a Python dict literal of three known keys: {'descr': '<f4', 'fortran_order': False, 'shape':
// (3, 4), }
class HeaderParser {
 public:
  // `in` begins at the text and is for messages alone.
  HeaderParser(std::string_view text, ByteReader in) : text_(text), in_(std::move(in)) {}

  void parse() {
    expect('{');
    while (!accept('}')) {
      const auto key = quoted();
      expect(':');
      if (key == "descr" && !descr) {
        skip_space();
        if (at_ < text_.size() && text_[at_] == '[') throw fail("structured dtypes are not supported");
        descr = quoted();
      } else if (key == "fortran_order" && !fortran) {
        fortran = boolean();
      } else if (key == "shape" && !shape) {
        shape = tuple();
      } else {
        throw fail(fmt::format("unknown or repeated key '{}'", shown(key)));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) throw fail("text follows the dict");
    if (!descr || !fortran || !shape) throw fail("one of 'descr', 'fortran_order' and 'shape' is missing");
  }
  std::runtime_error fail(std::string_view why) const {
    return in_.fail_at(in_.offset() + at_, fmt::format("npy header: {}", why));
  }

  std::optional<std::string_view> descr;
  std::optional<bool> fortran;
  std::optional<Shape> shape;

 private:
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) throw fail(fmt::format("expected '{}'", c));
  }
  std::string_view quoted() {
    const char quote = accept('"') ? '"' : '\'';
    if (quote == '\'') expect('\'');
    const auto end = text_.find(quote, at_);
    if (end == text_.npos) throw fail("a string does not end");
    const auto value = text_.substr(at_, end - at_);
    at_ = end + 1;
    return value;
  }
  bool boolean() {
    skip_space();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return value;
      }
    }
    throw fail("'fortran_order' is neither True nor False");
  }
  Shape tuple() {
    Shape result;
    expect('(');
    while (!accept(')')) {
      skip_space();
      const size_t begin = at_;
      int64_t value = 0;
      for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, text_[at_] - '0', &value)) {
          throw fail("an extent is above 2^63 - 1");
        }
      }
      if (at_ == begin) throw fail("an extent is not a number");
      if (result.size() == 64) throw fail("the shape has more than 64 dimensions");
      result.push_back(value);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return result;
  }

  std::string_view text_;
  ByteReader in_;
  size_t at_ = 0;
};

DType dtype_of_descr(const HeaderParser& header) {
  const auto name = *header.descr;
  const auto row = std::ranges::find_if(kDescr, [&](const Descr& d) {
    return d.name == name ||
           (info(d.dtype).size() == 1 && d.name.substr(1) == name.substr(std::min<size_t>(1, name.size())));
  });
  if (row != std::end(kDescr)) return row->dtype;
  if (name.starts_with('>'))
    throw header.fail(fmt::format("dtype '{}' is big-endian: save it as little-endian", shown(name)));
  if (name.find('O') != name.npos)
    throw header.fail("dtype 'object' holds pickled Python objects: save numbers");
  throw header.fail(fmt::format("dtype '{}' is not supported: save floats, integers or bools", shown(name)));
}

}  // namespace

Tensor read_npy(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  ByteReader reader(file->bytes(), path.string());
  if (reader.text(kMagic.size(), "the npy magic") != kMagic)
    throw reader.fail_at(0, "is not an .npy file: no magic number");
  const auto major = reader.read<uint8_t>("the version");
  reader.read<uint8_t>("the version");
  if (major < 1 || major > 3) throw reader.fail(fmt::format("npy version {} is not 1, 2 or 3", major));
  const uint64_t length =
      major == 1 ? reader.read<uint16_t>("the header length") : reader.read<uint32_t>("the header length");
  const auto begin = reader;
  HeaderParser header(reader.text(length, "the header"), begin);
  header.parse();
  const auto dtype = dtype_of_descr(header);
  if (*header.fortran && header.shape->size() > 1) {
    throw header.fail("the array is in Fortran order: save numpy.ascontiguousarray of it");
  }
  const auto size = byte_count(*header.shape, dtype);
  if (!size || static_cast<uint64_t>(*size) != reader.remaining()) {
    throw reader.fail(fmt::format(
        "{} {} needs {} bytes, {} follow the header: the file is truncated or corrupt", info(dtype).name,
        to_string(*header.shape), size ? fmt::to_string(*size) : "too many", reader.remaining()));
  }
  return {dtype, *header.shape, reader.take(static_cast<uint64_t>(*size), "the data"), file};
}

void write_npy(const std::filesystem::path& path, const Tensor& tensor) {
  check_size(tensor);
  const auto row = std::ranges::find(kDescr, tensor.dtype, &Descr::dtype);
  if (row == std::end(kDescr))
    throw invalid("{}: NumPy has no dtype for {}", path.string(), info(tensor.dtype).name);
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", row->name,
                                   fmt::join(tensor.shape, ", "), tensor.shape.size() == 1 ? "," : "");
  constexpr size_t kPrefix = 10, kAlign = 64;  // data begins at a multiple of 64, after a newline
  header.resize((kPrefix + header.size() + 1 + kAlign - 1) / kAlign * kAlign - kPrefix - 1, ' ');
  header += '\n';
  std::string content(kMagic);
  content += {'\1', '\0', static_cast<char>(header.size() & 255), static_cast<char>(header.size() >> 8)};
  content += header;
  content.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  write_file(path, content);
}

}  // namespace oscar
