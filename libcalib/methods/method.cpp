#include "libcalib/methods/method.h"

#include "libcalib/names.h"

namespace oscar {
namespace {

constexpr MethodInfo kMethods[] = {
#define OSCAR_METHOD(name, target_k, target_v, composition, summary) \
  {name, target_k, target_v, composition, summary},
#include "libcalib/methods/methods.def"
#undef OSCAR_METHOD
};

}  // namespace

std::span<const MethodInfo> method_table() {
  return kMethods;
}
const MethodInfo& find_method(std::string_view name) {
  return find_by_name(method_table(), name, "method");
}

}  // namespace oscar
