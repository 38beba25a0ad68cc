// Where attention losses are measured: the CPU, or a CUDA device of this machine.
#pragma once
#include <string>

#include "kernels/diagnose.h"

namespace oscar {

struct ComputeDevice {
  int cuda = -1;     // number of the device; < 0: the CPU
  std::string name;  // of the report: "CPU avx2", "NVIDIA H200"
};

// The number of the device in "cuda" (0) or "cuda:N", -1 for "cpu"; std::invalid_argument for other text.
int cuda_number(const std::string& text);
// The device of such a text. std::runtime_error says why a
// device cannot be used: a build without CUDA, no driver, no such device, one too old.
ComputeDevice compute_device(const std::string& text);

// kernels/diagnose.h there. std::runtime_error when the device fails, or has no kernel for the head dims.
void diagnose_on(const ComputeDevice& device, const DiagnoseProblem& problem, const DiagnoseResult& result);

}  // namespace oscar
