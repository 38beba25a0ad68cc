#include "libcalib/compute_device.h"

#include <charconv>

#include "formats/error.h"
#include "kernels/cpu.h"
#include "kernels/device.h"
#include "kernels/diagnose_device.h"

namespace oscar {

int cuda_number(const std::string& text) {
  if (text.empty() || text == "cpu") return -1;
  int number = 0;
  if (text == "cuda") return number;
  const char* end = text.data() + text.size();
  if (!text.starts_with("cuda:") || text.size() == 5 ||
      std::from_chars(text.data() + 5, end, number).ptr != end || number < 0)
    throw invalid("device {}: expected cpu, cuda or cuda:N", text);
  return number;
}

ComputeDevice compute_device(const std::string& text) {
  const int number = cuda_number(text);
  if (number < 0) return {.cuda = -1, .name = fmt::format("CPU {}", cpu_level())};
  cuda::DeviceInfo info;
  if (const Status status = cuda::device_info(number, &info); !status.ok())
    throw failure("device {}: {}", text, status.what);
  return {.cuda = number, .name = info.name};
}

void diagnose_on(const ComputeDevice& device, const DiagnoseProblem& problem, const DiagnoseResult& result) {
  if (device.cuda < 0) return diagnose(problem, result);
  Status status = cuda::set_device(device.cuda);
  if (status.ok()) status = cuda::diagnose(problem, result);
  if (!status.ok()) throw failure("{}: {}", device.name, status.what);
}

}  // namespace oscar
