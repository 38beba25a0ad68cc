// What must not be left behind when a signal ends the process.
#pragma once
#include <filesystem>

namespace oscar {

// A file, or a directory of files, that remove_temporaries() unlinks until forget_temporary(). Of more than
// 64 at a time the later ones are not known to it.
void remember_temporary(const std::filesystem::path& path);
void forget_temporary(const std::filesystem::path& path);
// Unlinks all of them that this process has remembered. Async-signal-safe: for a handler that then ends the
// process.
void remove_temporaries();

}  // namespace oscar
