// One token in one page: attention returns its value as the codes hold it.
#include <cmath>
#include <cstdio>
#include <vector>

#include "kernels/decode.h"
#include "kernels/int2.h"

int main() {
  const oscar::CacheFormat format{oscar::CacheLayout::native, 64, 1, 1};
  std::vector<float> row(64), scale_zero(2), o(64), expected(64);
  for (int i = 0; i < 64; ++i) row[i] = std::sin(static_cast<float>(i));
  std::vector<uint8_t> codes(16), page(oscar::page_bytes(format));
  oscar::int2::encode({.dim = 64}, row.data(), 1, codes.data(), scale_zero.data());
  uint8_t* values = page.data() + oscar::side_bytes(format, format.k);
  oscar::int2::pack_native(true, 64, 1, codes.data(), scale_zero.data(), 0, 1, page.data());
  oscar::int2::pack_native(false, 64, 1, codes.data(), scale_zero.data(), 0, 1, values);
  oscar::int2::unpack_native(false, 64, 1, values, 0, 1, expected.data());

  const int32_t table[] = {0}, end[] = {1};
  const int64_t start[] = {0};
  oscar::DecodeInputs inputs;
  inputs.q = row.data();
  inputs.q_type = oscar::FloatType::f32;
  inputs.table = table;
  inputs.pages = page.data();
  const oscar::Status status = oscar::decode(format, {1, nullptr, end, start, nullptr, nullptr}, inputs,
                                             {o.data(), oscar::FloatType::f32, nullptr});
  if (!status.ok()) return std::puts(status.what), 2;
  for (int i = 0; i < 64; ++i) {
    if (std::fabs(o[i] - expected[i]) > 1e-6f)
      return std::printf("%d: %g, not %g\n", i, o[i], expected[i]), 1;
  }
  std::puts("attention over one coded token");
}
