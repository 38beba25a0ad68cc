#include "formats/pt.h"

#include <unordered_map>

#include "formats/atomic_write.h"
#include "formats/bytes.h"
#include "formats/pickle.h"
#include "formats/sha256.h"
#include "formats/zip.h"

namespace oscar {

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
    throw failure(
        "{}: is in the torch format of before 1.6, which is not a zip: load and save it again with a newer "
        "torch",
        file.path().string());
  }
  if (file.bytes().empty()) throw failure("{}: is empty", file.path().string());
}

// The top folder of the archive, which holds everything.
std::string archive_of(const ZipReader& zip, const std::string& file) {
  std::string archive;
  for (const auto& member : zip.members()) {
    if (!member.name.ends_with(kPickleName) ||
        member.name.find('/') != member.name.size() - kPickleName.size())
      continue;
    if (!archive.empty()) throw failure("{}: has two pickles, in '{}' and '{}'", file, archive, member.name);
    archive = member.name.substr(0, member.name.size() - kPickleName.size());
  }
  if (archive.empty())
    throw failure("{}: is a zip without <name>/data.pkl: not a file that torch.save made", file);
  return archive;
}

void refuse_big_endian(const ZipReader& zip, const std::string& archive, const std::string& file,
                       Budget& budget) {
  const auto* member = zip.find(archive + "/byteorder");
  if (!member) return;  // files of torch before 2.1
  const auto order = zip.read(*member, budget);
  const std::string_view text(reinterpret_cast<const char*>(order.bytes.data()), order.bytes.size());
  if (text == "big")
    throw failure("{}: was saved on a big-endian machine: save it on a little-endian one", file);
  if (text != "little")
    throw failure("{}: byte order '{}' is neither little nor big", file, text.substr(0, 16));
}

}  // namespace

PtValue read_pt(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  const auto name = path.string();
  refuse_legacy(*file);
  const ZipReader zip(file);
  const auto archive = archive_of(zip, name);
  Budget budget(4 * file->bytes().size() + (uint64_t{64} << 20), name);
  refuse_big_endian(zip, archive, name, budget);

  std::unordered_map<std::string, ZipContent> loaded;
  const LoadStorage load = [&](const std::string& key, uint64_t size) {
    auto known = loaded.find(key);
    if (known == loaded.end()) {
      const auto* member = zip.find(fmt::format("{}/data/{}", archive, key));
      if (!member) throw failure("{}: storage '{}' is missing: the file is incomplete", name, key);
      known = loaded.emplace(key, zip.read(*member, budget)).first;
    }
    if (known->second.bytes.size() != size) {
      throw failure("{}: storage '{}': expected {} bytes, found {}", name, key, size,
                    known->second.bytes.size());
    }
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
