// Product vector codes, which other codecs build on.
#pragma once
#include "libcalib/codecs/codec.h"

namespace oscar::vector_codes {

// std::invalid_argument, in the name of `codec`, unless options.codebook is one for rows of `dim`.
void check_options(std::string_view codec, int64_t n, int dim, const CodecOptions& options);
std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options);
void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded);

}  // namespace oscar::vector_codes
