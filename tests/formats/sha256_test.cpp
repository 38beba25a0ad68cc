#include "formats/sha256.h"

#include <array>

#include "formats/sha256_blocks.h"
#include "tests/formats/malformed.h"

namespace oscar {
namespace {

std::string digest(std::string_view text) {
  return sha256_hex(std::as_bytes(std::span(text)));
}

// FIPS 180-4's examples, and the million a's.
TEST(Sha256, KnownDigests) {
  EXPECT_EQ(digest(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digest(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}
TEST(Sha256, PiecesGiveTheSameAsTheWhole) {
  const std::string text(300, 'x');
  for (size_t length = 0; length < text.size(); ++length) {
    Sha256 pieces;
    for (size_t at = 0; at < length; at += 7)
      pieces.update(std::string_view(text).substr(at, std::min<size_t>(7, length - at)));
    EXPECT_EQ(pieces.hex(), digest(std::string_view(text).substr(0, length))) << length;
  }
}
// What this CPU has instructions for is what any CPU computes.
TEST(Sha256, InstructionsAgreeWithThePlainFunction) {
  std::vector<std::byte> bytes(64 * 37);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i * 31 + i / 7);
  for (const size_t blocks : {0, 1, 2, 37}) {
    std::array<uint32_t, 8> a, b;
    for (uint32_t i = 0; i < 8; ++i) a[i] = b[i] = 0x9e3779b9u * (i + 1);
    sha256_blocks(a.data(), bytes.data(), blocks);
    sha256_blocks_plain(b.data(), bytes.data(), blocks);
    EXPECT_EQ(a, b) << blocks;
  }
}
TEST(Sha256, OfAFile) {
  test::TempDir folder;
  test::write(folder / "f", "abc");
  EXPECT_EQ(sha256_file(folder / "f"), digest("abc"));
  EXPECT_COMPLAINT(sha256_file(folder / "missing"), "missing");
}

}  // namespace
}  // namespace oscar
