#include <array>

#include "libcalib/methods/method.h"
#include "libcalib/names.h"

namespace oscar {

#define OSCAR_ALGORITHM(name, space, needs, honoured)                                        \
  namespace space {                                                                          \
  LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options);       \
  std::string objective(Side side, const MethodOptions& options);                            \
  }                                                                                          \
  namespace algorithms {                                                                     \
  static constexpr AlgorithmInfo name{#name, needs, honoured, space::fit, space::objective}; \
  }
#include "libcalib/methods/algorithms.def"
#undef OSCAR_ALGORITHM

static constexpr std::array kMethods = {
#define OSCAR_METHOD(name, algorithm_k, defaults_k, algorithm_v, defaults_v, stores, source, summary)     \
  MethodInfo{                                                                                             \
      name,   &algorithms::algorithm_k, &algorithms::algorithm_v, defaults_k, defaults_v, stores, source, \
      summary},
#include "libcalib/methods/methods.def"
#undef OSCAR_METHOD
};

static constexpr std::array kOptions = {
#define OSCAR_METHOD_OPTION(name, field, meaning) OptionInfo{name, meaning},
#include "libcalib/methods/options.def"
#undef OSCAR_METHOD_OPTION
};

std::span<const MethodInfo> method_table() {
  return kMethods;
}
const MethodInfo& find_method(std::string_view name) {
  return find_by_name(method_table(), name, "method");
}
std::span<const OptionInfo> option_table() {
  return kOptions;
}

}  // namespace oscar
