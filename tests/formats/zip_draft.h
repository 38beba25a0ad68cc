// A zip as another program may write it: members deflated or stored, without padding, and lies on request.
#pragma once
#include <zlib.h>

#include <utility>
#include <vector>

#include "tests/formats/mutant.h"

namespace oscar::test {

struct Zip {
  std::vector<std::pair<std::string, std::string>> members;
  bool deflate = true;
  bool zip64 = false;  // every size and offset of the directory is in an extra field
  uint16_t flags = 0, method_lie = 0;
  uint32_t size_lie = 0, crc_lie = 0, offset_lie = 0;

  std::string bytes() const {
    std::string out, directory;
    for (const auto& [name, content] : members) {
      const std::string data = deflate ? deflated(content) : content;
      const auto size = static_cast<uint32_t>(content.size()) + size_lie,
                 at = static_cast<uint32_t>(out.size()) + offset_lie,
                 length = static_cast<uint32_t>(data.size());
      const auto crc =
          static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size())) ^
          crc_lie;
      const auto head =
          packed(flags, static_cast<uint16_t>((deflate ? 8 : 0) + method_lie), uint32_t{0}, crc);
      const auto name_size = static_cast<uint16_t>(name.size());
      const auto field = [&](uint32_t value) { return zip64 ? ~uint32_t{0} : value; };
      const auto extra =
          zip64 ? packed(uint16_t{1}, uint16_t{24}, uint64_t{size}, uint64_t{length}, uint64_t{at})
                : std::string();
      directory += "PK\1\2" + packed(uint16_t{20}, uint16_t{20}) + head +
                   packed(field(length), field(size), name_size, static_cast<uint16_t>(extra.size()),
                          uint16_t{0}, uint16_t{0}, uint16_t{0}, uint32_t{0}, field(at)) +
                   name + extra;
      out +=
          "PK\3\4" + packed(uint16_t{20}) + head + packed(length, size, name_size, uint16_t{0}) + name + data;
    }
    const auto count = static_cast<uint16_t>(members.size());
    const auto begin = out.size(), end = begin + directory.size();
    out += directory;
    if (zip64) {
      out += "PK\6\6" + packed(uint64_t{44}, uint16_t{45}, uint16_t{45}, uint64_t{0}, uint64_t{count},
                               uint64_t{count}, uint64_t{directory.size()}, uint64_t{begin});
      out += "PK\6\7" + packed(uint32_t{0}, uint64_t{end}, uint32_t{1});
    }
    const auto shown = zip64 ? uint16_t{0xffff} : count;
    return out + "PK\5\6" +
           packed(uint16_t{0}, uint16_t{0}, shown, shown,
                  zip64 ? ~uint32_t{0} : static_cast<uint32_t>(directory.size()),
                  zip64 ? ~uint32_t{0} : static_cast<uint32_t>(begin), uint16_t{0});
  }
  static std::string deflated(const std::string& content) {
    z_stream stream{};
    deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 9, Z_DEFAULT_STRATEGY);
    std::string out(deflateBound(&stream, content.size()), '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
    stream.avail_in = static_cast<uInt>(content.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    ::deflate(&stream, Z_FINISH);
    out.resize(stream.total_out);
    deflateEnd(&stream);
    return out;
  }
};

}  // namespace oscar::test
