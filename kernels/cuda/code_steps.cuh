// The steps of a rounded affine code, found once a group instead of dividing every element.
//
// code(x) = trunc(fl(fl(fl(x / scale) + zero) + 0.5)) never falls as x grows, so it is how many of three
// floats are at most x. Each is found exactly: every rounding is undone by the midpoint below which it goes
// the other way, and a midpoint between two floats is a double, as is its product with a float. Plain
// functions, so that the CPU can test them.
#pragma once
#include <cstdint>
#include <cstring>

namespace oscar::cuda {

#define OSCAR_BOTH __host__ __device__ __forceinline__

// |zero| below this and a finite scale from above the least range: what first_of_code() is exact for. Then,
// too, the largest element of a group has code 3 and the least code 0, so that clipped elements need no
// clipping.
inline constexpr float kMaxZero = 0x1p20f;

OSCAR_BOTH uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
OSCAR_BOTH float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
// The neighbours of a float that is not 0.
OSCAR_BOTH float next_up(float x) {
  return float_of(bits_of(x) + (x > 0 ? 1u : ~0u));
}
OSCAR_BOTH float next_down(float x) {
  return float_of(bits_of(x) + (x > 0 ? ~0u : 1u));
}

// The least float that is at least d (above d when it is not `inclusive`).
OSCAR_BOTH float first_float(double d, bool inclusive) {
  const float x = static_cast<float>(d);
  const double found = x;
  return (inclusive ? found < d : found <= d) ? next_up(x) : x;
}
// The least x with fl(x / scale) >= w; a tie goes to the even of its neighbours.
OSCAR_BOTH float first_of_quotient(float w, float scale) {
  const double middle = 0.5 * (static_cast<double>(w) + static_cast<double>(next_down(w)));
  return first_float(middle * static_cast<double>(scale), (bits_of(w) & 1u) == 0);
}
// The least x whose code is at least k, k = 1, 2, 3.
OSCAR_BOTH float first_of_code(int k, float scale, float zero) {
  // fl(y + 0.5) >= k from y = 0.5 - 2^-25, 1.5, 2.5 on; what rounds to that y begins half a step below. Only
  // the first of these has an odd neighbour above, which a tie does not reach.
  const double middle = k == 1 ? 0.5 - 0x3p-26 : k == 2 ? 1.5 - 0x1p-24 : 2.5 - 0x1p-23;
  return first_of_quotient(first_float(middle - static_cast<double>(zero), k != 1), scale);
}
// The least d with fl(d / sigma) >= threshold, sigma > 0. Negative quotients that underflow are not below 0.
OSCAR_BOTH float first_of_ratio(float threshold, float sigma) {
  if (threshold == 0) return first_float(-0x1p-150 * static_cast<double>(sigma), true);
  return first_of_quotient(threshold, sigma);
}
// The least bfloat16 that is at least x.
OSCAR_BOTH float bf16_at_least(float x) {
  const uint32_t bits = bits_of(x);
  return float_of((x > 0 ? bits + 0xffffu : bits) & 0xffff0000u);
}

#undef OSCAR_BOTH

}  // namespace oscar::cuda
