// Instead of libdump/token_runner.cpp and libdump/codeword_search.cpp in a build without LibTorch.
#include "formats/error.h"
#include "libcalib/codeword_search.h"
#include "libcalib/compute_device.h"
#include "libcalib/token_runner.h"

namespace oscar {

std::unique_ptr<TokenRunner> open_token_runner(const StatisticsReader&, const std::vector<int>&, int64_t,
                                               const std::filesystem::path&, const std::string&, int) {
  throw invalid(
      "--end-to-end: this oscar-verify was built without LibTorch (OSCAR_WITH_TORCH=OFF): it cannot run a "
      "model");
}

std::unique_ptr<CodewordSearch> open_codeword_search(const std::string& device) {
  if (cuda_number(device) < 0) return nullptr;
  throw failure(
      "device {}: this build is without LibTorch (OSCAR_WITH_TORCH=OFF), which trains codebooks there",
      device);
}

}  // namespace oscar
