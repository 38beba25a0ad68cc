// tokenizer.json and what it makes of a text. The same bytes are its tokenizer_config.json: neither minds the keys
// of the other.
#include "libdump/tokenizer/tokenizer.h"
#include "tests/fuzz/json_mutant.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace oscar;
  static const fuzz::Folder folder;
  fuzz::write_input(folder.path / "tokenizer.json", data, size);
  static const bool linked =
      (std::filesystem::create_symlink(folder.path / "tokenizer.json", folder.path / "tokenizer_config.json"),
       true);
  fuzz::watch(
      size,
      [&] {
        const auto tokenizer = tokenizer_from_json(folder.path / "tokenizer.json");
        // Short: a pattern may well be one that backtracks without end.
        for (const char* text : {"", "ab  a1\n", "\u2581e\u0301\U0001f600<s>"}) {
          for (const bool special : {true, false}) tokenizer->decode(tokenizer->encode(text, special));
        }
        tokenizer->digest();
      },
      fuzz::Refusals::WithReason);
  return linked ? 0 : 1;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return oscar::fuzz::json_mutant(data, size, max_size, seed);
}
