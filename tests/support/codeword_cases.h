// Rows and codewords whose nearest is hard to find in float32.
#pragma once
#include <string>
#include <vector>

namespace oscar::test {

struct CodewordCase {
  std::string name;
  std::vector<float> rows, words;  // (n, g), (count, g)
  int g;
};
// Equal words, words in a grid, words that differ in their last bits, words around rows of nearly no length; words and
// rows far larger than the others, everything large, tiny or zero.
std::vector<CodewordCase> hard_codeword_cases();

}  // namespace oscar::test
