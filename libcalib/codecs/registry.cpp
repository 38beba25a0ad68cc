#include <array>

#include "libcalib/codecs/codec.h"
#include "libcalib/names.h"

namespace oscar {

#define OSCAR_CODEC(name, space, storage, multiple, clips, summary)                                       \
  namespace space {                                                                                \
  std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions&); \
  void reference(const double* rows, int64_t n, int dim, const CodecOptions&, double* decoded);    \
  }
#include "libcalib/codecs/codecs.def"
#undef OSCAR_CODEC

static constexpr std::array kCodecs = {
#define OSCAR_CODEC(name, space, storage, multiple, clips, summary) \
  CodecInfo{name, storage, multiple, clips, summary, space::encode, space::reference},
#include "libcalib/codecs/codecs.def"
#undef OSCAR_CODEC
};

std::span<const CodecInfo> codec_table() {
  return kCodecs;
}

const CodecInfo& find_codec(std::string_view name) {
  return find_by_name(codec_table(), name, "codec");
}

}  // namespace oscar
