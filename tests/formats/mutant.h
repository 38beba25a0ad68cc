// Bytes put together and spoilt, without a test framework: for tests and for fuzzing.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>

namespace oscar::test {

// Little-endian bytes of the values, one after the other; texts as they are.
inline void put(std::string& out, std::string_view text) {
  out += text;
}
template <typename T>
requires std::is_arithmetic_v<T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <typename... Parts>
std::string packed(Parts... parts) {
  std::string out;
  (put(out, parts), ...);
  return out;
}

// A copy of `good` with a few bytes, lengths or stretches changed.
inline std::string mutant(const std::string& good, std::mt19937_64& random) {
  std::string bad = good;
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % std::max<size_t>(n, 1)); };
  for (size_t changes = 1 + below(4); changes-- > 0 && !bad.empty();) {
    const size_t at = below(bad.size());
    constexpr uint64_t edges[] = {
        0, 1, 0x7f, 0x80, 0xff, 0xffff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, ~uint64_t{0}};
    const uint64_t edge = edges[below(std::size(edges))];
    switch (below(6)) {
      case 0:
        bad[at] = static_cast<char>(random());
        break;
      case 1:
        bad[at] = static_cast<char>(bad[at] ^ (1 << below(8)));
        break;
      case 2:
        std::memcpy(bad.data() + at, &edge, std::min<size_t>(4, bad.size() - at));
        break;
      case 3:
        std::memcpy(bad.data() + at, &edge, std::min<size_t>(8, bad.size() - at));
        break;
      case 4:
        bad.erase(at, 1 + below(16));
        break;
      case 5:
        bad.insert(at, bad.substr(below(bad.size()), 1 + below(16)));
        break;
    }
  }
  return bad;
}

// The beginning of one and the end of the other.
inline std::string spliced(const std::string& a, const std::string& b, std::mt19937_64& random) {
  const auto cut = [&](const std::string& text) { return static_cast<size_t>(random() % (text.size() + 1)); };
  return a.substr(0, cut(a)) + b.substr(cut(b));
}

}  // namespace oscar::test
