#include "libdump/weights/weight_source.h"

#include "libdump/torch_device.h"

namespace oscar {

at::Tensor WeightSource::load_on(at::Device device, const std::string& name,
                                 const std::vector<int64_t>& shape) const {
  return to_device(load(name, shape), device);
}

}  // namespace oscar
