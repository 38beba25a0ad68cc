// The three ways a run can end badly, and the exit code each one becomes (apps/cli.cpp holds the only catch).
//
//   std::invalid_argument   2  the caller's fault: an option, a path, a model this tool does not support
//   std::runtime_error      3  the world's fault: a corrupt file, a full disk, a failed system call
//   oscar::Wanting          1  the input was read and checked, and found wanting: too few tokens, files
//   differ
//
// A message names the place (file, tensor, offset, option), what was expected, what was found and what to do.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>  // fmt::join, which moved there in fmt 10

#include <stdexcept>
#include <string>

namespace oscar {

struct Wanting : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// throw invalid("{}: expected a directory, found a file", path);
template <typename... Args>
std::invalid_argument invalid(fmt::format_string<Args...> text, Args&&... args) {
  return std::invalid_argument(fmt::format(text, std::forward<Args>(args)...));
}
template <typename... Args>
std::runtime_error failure(fmt::format_string<Args...> text, Args&&... args) {
  return std::runtime_error(fmt::format(text, std::forward<Args>(args)...));
}
template <typename... Args>
Wanting wanting(fmt::format_string<Args...> text, Args&&... args) {
  return Wanting(fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace oscar
