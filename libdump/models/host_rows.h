// AttentionRows on the CPU, wherever they came from.
#pragma once
#include <ATen/ATen.h>

#include "libdump/models/model.h"
#include "libdump/torch_device.h"

namespace oscar {

// The rows themselves, or copies in float32 of a GPU's, which live as long as this does.
class HostRows : public AttentionRows {
 public:
  explicit HostRows(const AttentionRows& rows) : AttentionRows(rows) {
    if (!rows.device) return;
    q = copy(rows.device->q);
    k = copy(rows.device->k);
    v = copy(rows.device->v);
    o = copy(rows.device->o);
    lse = copy(rows.device->lse);
    hidden = copy(rows.device->hidden);
    hidden_width = rows.device->hidden.size(1);
    device = nullptr;
  }

 private:
  const float* copy(const at::Tensor& there) {
    held_.push_back(to_cpu(there.to(at::kFloat).contiguous()));
    return held_.back().const_data_ptr<float>();
  }
  std::vector<at::Tensor> held_;
};

}  // namespace oscar
