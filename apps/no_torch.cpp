// Instead of libdump/token_runner.cpp in a build without LibTorch.
#include "formats/error.h"
#include "libcalib/token_runner.h"

namespace oscar {

std::unique_ptr<TokenRunner> open_token_runner(const StatisticsReader&, const std::vector<int>&, int64_t,
                                               const std::filesystem::path&, const std::string&, int) {
  throw invalid(
      "--end-to-end: this oscar-verify was built without LibTorch (OSCAR_WITH_TORCH=OFF): it cannot run a "
      "model");
}

}  // namespace oscar
