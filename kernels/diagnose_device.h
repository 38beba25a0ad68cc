// kernels/diagnose.h on a GPU.
#pragma once
#include "kernels/diagnose.h"
#include "kernels/status.h"

namespace oscar::cuda {

// The problem and the result of diagnose(), in host memory, on the device that the calling thread has chosen
// (set_device()): the codes are decoded on the CPU and everything is copied there and back. Head dims are
// multiples of 4 up to 256. Products are float32, sums over keys of logits and of the KL double, as the
// CPU's: the matrix unit's short floats would need three products for each, and the plain ones are as fast as
// the copies. Every sum has one order.
Status diagnose(const DiagnoseProblem& problem, const DiagnoseResult& result);

}  // namespace oscar::cuda
