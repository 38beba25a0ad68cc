#include "formats/pt.h"

#include <unordered_map>

#include "formats/atomic_write.h"
#include "formats/bytes.h"
#include "formats/pickle.h"
#include "formats/sha256.h"
#include "formats/zip.h"

namespace oscar {

PtDict::PtDict() = default;
PtDict::PtDict(const PtDict&) = default;
PtDict::PtDict(PtDict&&) noexcept = default;
PtDict& PtDict::operator=(const PtDict&) = default;
PtDict& PtDict::operator=(PtDict&&) noexcept = default;
PtDict::~PtDict() = default;

const PtValue* PtDict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (const auto* text = std::get_if<std::string>(&name.value); text && *text == key) return &value;
  }
  return nullptr;
}
const PtValue* PtDict::find(int64_t key) const {
  for (const auto& [name, value] : items) {
    if (const auto* number = std::get_if<int64_t>(&name.value); number && *number == key) return &value;
  }
  return nullptr;
}
template <typename Key>
static void assign(PtDict& dict, const PtValue* old, Key key, PtValue value) {
  if (old) {
    const_cast<PtValue&>(*old) = std::move(value);  // an element of `dict`, which is not const
  } else {
    auto& entry = dict.items.emplace_back();
    entry.first.value = std::move(key);
    entry.second = std::move(value);
  }
}
void PtDict::set(std::string key, PtValue value) {
  const auto* old = find(key);
  assign(*this, old, std::move(key), std::move(value));
}
void PtDict::set(int64_t key, PtValue value) {
  assign(*this, find(key), key, std::move(value));
}

std::string_view PtValue::kind() const {
  constexpr std::string_view kinds[] = {"None",   "bool", "int",   "float", "str",
                                        "tensor", "list", "tuple", "dict"};
  static_assert(std::size(kinds) == std::variant_size_v<decltype(value)>);
  return kinds[value.index()];
}
template <typename T>
static const T& content(const PtValue& value, const std::string& where, std::string_view expected) {
  if (const auto* found = std::get_if<T>(&value.value)) return *found;
  throw failure("{}: expected {}, found {}", where, expected, value.kind());
}
const PtDict& PtValue::dict(const std::string& where) const {
  return content<PtDict>(*this, where, "a dict");
}
const Tensor& PtValue::tensor(const std::string& where) const {
  return content<Tensor>(*this, where, "a tensor");
}
const std::string& PtValue::text(const std::string& where) const {
  return content<std::string>(*this, where, "a str");
}
int64_t PtValue::integer(const std::string& where) const {
  return content<int64_t>(*this, where, "an int");
}

namespace {

constexpr std::string_view kPickleName = "/data.pkl";

void refuse_legacy(const MappedFile& file) {
  // Before torch 1.6 the file was a run of pickles, the first of them this magic number.
  constexpr std::string_view kMagic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
  ByteReader in(file.bytes(), file.path().string());
  if (in.remaining() >= kMagic.size() && in.text(kMagic.size(), "") == kMagic) {
    throw in.fail_at(
        0, "the torch format of before 1.6, which is not a zip: load and save it again with a newer torch");
  }
  if (file.bytes().empty()) throw in.fail("the file is empty: expected a zip");
}

// The top folder of the archive, which holds everything.
std::string archive_of(const ZipReader& zip, const std::string& file) {
  std::string archive;
  for (const auto& member : zip.members()) {
    if (!member.name.ends_with(kPickleName) ||
        member.name.find('/') != member.name.size() - kPickleName.size())
      continue;
    if (!archive.empty()) {
      throw failure("{}: offset {}: a second pickle, '{}', after that in '{}'", file, member.header,
                    shown(member.name), shown(archive));
    }
    archive = member.name.substr(0, member.name.size() - kPickleName.size());
  }
  if (archive.empty())
    throw failure("{}: offset {}: a zip without <name>/data.pkl: not a file that torch.save made", file,
                  zip.directory());
  return archive;
}

void refuse_big_endian(const ZipReader& zip, const std::string& archive, const std::string& file,
                       Budget& budget) {
  const auto* member = zip.find(archive + "/byteorder");
  if (!member) return;  // files of torch before 2.1
  const auto order = zip.read(*member, budget);
  const std::string_view text(reinterpret_cast<const char*>(order.bytes.data()), order.bytes.size());
  if (text == "big") {
    throw failure("{}: offset {}: saved on a big-endian machine: save it on a little-endian one", file,
                  member->header);
  }
  if (text != "little") {
    throw failure("{}: offset {}: byte order '{}' is neither little nor big", file, member->header,
                  shown(text));
  }
}

}  // namespace

PtValue read_pt(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  const auto name = path.string();
  refuse_legacy(*file);
  auto budget = Budget::of_file(file->bytes().size());
  const ZipReader zip(file, budget);
  const auto archive = archive_of(zip, name);
  refuse_big_endian(zip, archive, name, budget);

  std::unordered_map<std::string, ZipContent> loaded;
  const LoadStorage load = [&](const std::string& key, uint64_t size, const std::string& where) {
    auto known = loaded.find(key);
    if (known == loaded.end()) {
      const auto* member = zip.find(fmt::format("{}/data/{}", archive, key));
      if (!member) throw failure("{} is missing: the file is incomplete", where);
      constexpr size_t kNode = sizeof(decltype(loaded)::value_type) + 4 * sizeof(void*);
      budget.take(kNode + key.size() + 1, ByteReader(file->bytes(), name), "a storage");
      known = loaded.emplace(key, zip.read(*member, budget)).first;
    }
    if (known->second.bytes.size() != size)
      throw failure("{}: expected {} bytes, found {}", where, size, known->second.bytes.size());
    return known->second;
  };
  const auto pickle = zip.read(*zip.find(archive + std::string(kPickleName)), budget);
  return read_pickle(ByteReader(pickle.bytes, name + ": data.pkl"), load, budget);
}

void write_pt(const std::filesystem::path& path, const PtValue& value, const std::string& archive_name) {
  if (archive_name.empty() || archive_name.find('/') != archive_name.npos) {
    throw invalid("'{}' cannot be the top folder of a .pt file", archive_name);
  }
  std::vector<std::span<const std::byte>> storages;
  const auto pickle = write_pickle(value, storages);
  ZipWriter zip;
  const auto add = [&](const std::string& name, auto content) {
    zip.add(archive_name + "/" + name, content);
  };
  Sha256 digest;
  digest.update(pickle);
  add("data.pkl", std::string_view(pickle));
  add(".format_version", std::string_view("1"));
  add(".storage_alignment", std::string_view("64"));
  add("byteorder", std::string_view("little"));
  for (size_t i = 0; i < storages.size(); ++i) {
    digest.update(storages[i]);
    add(fmt::format("data/{}", i), storages[i]);
  }
  add("version", std::string_view("3\n"));
  // torch puts two 64-bit hashes here, in 40 decimal digits; only that content decides is kept.
  const auto hash = digest.hex();
  const auto half = [&](size_t at) { return std::stoull(hash.substr(at, 16), nullptr, 16); };
  add(".data/serialization_id", std::string_view(fmt::format("{:020d}{:020d}", half(0), half(16))));
  write_file(path, zip.finish());
}

}  // namespace oscar
