#include "formats/pickle.h"

#include "tests/formats/malformed.h"

namespace oscar {
namespace {

using namespace std::string_literals;

// Runs opcodes behind a protocol header. Storage "0" is the 12 floats 0 to 11.
PtValue run(const std::string& opcodes, uint64_t budget_bytes = 64 << 20, char protocol = 2) {
  const auto bytes = test::packed('\x80', protocol) + opcodes;
  static const auto storage = [] {
    std::vector<float> values(12);
    for (size_t i = 0; i < 12; ++i) values[i] = static_cast<float>(i);
    return make_tensor<float>({12}, values);
  }();
  const LoadStorage load = [](const std::string& key, uint64_t size, const std::string& where) {
    if (key != "0" || size != 48) throw failure("{} has not {} bytes", where, size);
    return ZipContent{storage.bytes, storage.owner};
  };
  Budget budget(budget_bytes);
  return read_pickle(ByteReader(std::as_bytes(std::span(bytes)), "test"), load, budget);
}
std::string text(const std::string& value) {
  return test::packed('X', static_cast<uint32_t>(value.size()), std::string_view(value));
}
std::string integer(int32_t value) {
  return test::packed('J', value);
}
std::string tuple(const std::vector<int32_t>& values) {
  std::string out = "(";
  for (const auto value : values) out += integer(value);
  return out + "t";
}
const std::string kStorage =
    "(" + text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + integer(12) + "tQ";
std::string tensor(int32_t offset, const std::vector<int32_t>& shape, const std::vector<int32_t>& strides,
                   const std::string& storage = kStorage) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + integer(offset) + tuple(shape) + tuple(strides) +
         "\x89"
         "ccollections\nOrderedDict\n)RtR";
}

TEST(Pickle, StridesBecomeContiguous) {
  EXPECT_EQ(run(tensor(0, {3, 4}, {4, 1}) + ".").tensor("").floats()[11], 11);
  EXPECT_EQ(run(tensor(0, {4, 3}, {1, 4}) + ".").tensor("").floats(),
            (std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  EXPECT_EQ(run(tensor(1, {2, 2}, {6, 2}) + ".").tensor("").floats(), (std::vector<float>{1, 3, 7, 9}));
  EXPECT_EQ(run(tensor(5, {3}, {0}) + ".").tensor("").floats(), (std::vector<float>{5, 5, 5}));
  EXPECT_EQ(run(tensor(11, {}, {}) + ".").tensor("").floats(), (std::vector<float>{11}));
  EXPECT_EQ(run(tensor(12, {0, 4}, {4, 1}) + ".").tensor("").shape, (Shape{0, 4}));
  EXPECT_EQ(run(tensor(4, {1, 4}, {100, 1}) + ".").tensor("").floats()[3], 7);
}
TEST(Pickle, TensorLies) {
  EXPECT_REFUSED(run(tensor(0, {13}, {1}) + "."), "reaches outside its storage of 12 elements");
  EXPECT_REFUSED(run(tensor(12, {1}, {1}) + "."), "reaches outside");
  EXPECT_REFUSED(run(tensor(-1, {1}, {1}) + "."), "not a tensor");
  EXPECT_REFUSED(run(tensor(0, {-1}, {1}) + "."), "not a tensor");
  EXPECT_REFUSED(run(tensor(0, {2}, {-1}) + "."), "not a tensor");
  EXPECT_REFUSED(run(tensor(0, {2}, {1, 1}) + "."), "not a tensor");
  EXPECT_REFUSED(run(tensor(0, {2, 2}, {0x7fffffff, 0x7fffffff}) + "."), "reaches outside");
  EXPECT_REFUSED(run(tensor(0, {0x7fffffff}, {0}) + "."), "refused");
  EXPECT_REFUSED(run(tensor(0, std::vector<int32_t>(65, 1), std::vector<int32_t>(65, 1)) + "."),
                 "not a tensor");
  EXPECT_REFUSED(run(tensor(0, {1}, {1}, integer(5)) + "."), "expected a storage, found an int");
  const auto storage = [](const std::string& type, const std::string& key, int32_t count) {
    return tensor(
               0, {1}, {1},
               std::string("(") + text("storage") + type + text(key) + text("cpu") + integer(count) + "tQ") +
           ".";
  };
  EXPECT_REFUSED(run(storage("ctorch\nFloatStorage\n", "1", 12)), "storage '1'");
  EXPECT_REFUSED(run(storage("ctorch\nFloatStorage\n", "0", 13)), "52 bytes");
  EXPECT_REFUSED(run(storage("ctorch\nFloatStorage\n", "0", -1)), "-1 elements");
  EXPECT_REFUSED(run(storage("ctorch\nfloat32\n", "0", 12)), "not a storage type");
  EXPECT_REFUSED(run(storage("ctorch.storage\nUntypedStorage\n", "0", 48)), "no dtype");
  EXPECT_REFUSED(run(storage("ctorch\nQUInt8Storage\n", "0", 12)), "torch.QUInt8Storage");
}
TEST(Pickle, StridedCopiesTogetherStayInTheBudget) {
  std::string list = "](";
  for (int i = 0; i < 100; ++i) list += tensor(0, {1000}, {0});
  EXPECT_REFUSED(run(list + "e.", 399999), "refused");
  EXPECT_EQ(std::get<PtList>(run(list + "e.", 800000).value).items.size(), 100u);
}
// A recalled object is an item of 16 bytes to the machine and a value of its own in the result.
TEST(Pickle, WhatExpandsStaysInTheBudget) {
  const auto refused = [](const std::string& opcodes) {
    EXPECT_REFUSED(run(opcodes, 100000), "refused");
    EXPECT_NO_THROW(run(opcodes, 4000000));
  };
  std::string recalled = text(std::string(1000, 'x')) + "q"s + '\0' + "0](";
  for (int i = 0; i < 200; ++i) recalled += "h"s + '\0';
  refused(recalled + "e.");
  refused("](" + std::string(10000, 'N') + "e.");
  refused("]" + std::string(10000, ']') + std::string(10000, '0') + ".");
  refused("(" + std::string(10000, 'N') + "1].");
  std::string memo = "]";
  for (uint32_t i = 0; i < 2000; ++i) memo += test::packed('r', i);
  refused(memo + ".");
  const std::string shape = tuple(std::vector<int32_t>(64, 1)) + "q"s + '\0' + "0";
  std::string tensors = shape + "](";
  for (int i = 0; i < 200; ++i) {
    tensors += "ctorch._utils\n_rebuild_tensor_v2\n(" + kStorage + "K"s + '\0' + "h"s + '\0' + "h"s + '\0' +
               "\x89"
               "ccollections\nOrderedDict\n)RtR";
  }
  refused(tensors + "e.");
}
TEST(Pickle, FaultsNameTheOffsetOfTheOpcode) {
  EXPECT_REFUSED(run("K\1K\2a."), "test: offset 6: expected a list");
  EXPECT_REFUSED(run(tensor(0, {13}, {1}) + "."), "offset ");
  EXPECT_REFUSED(run("}(K\1NK\1Nu."), "test: offset 2: key 1 appears twice");
}
TEST(Pickle, NothingButDataIsKnown) {
  EXPECT_REFUSED(run("cposix\nsystem\n"s + text("true") + "\x85R."), "'posix.system', which is not data");
  EXPECT_REFUSED(run(text("builtins") + text("eval") + "\x93."), "'builtins.eval'");
  EXPECT_REFUSED(run("ctorch\nload\n."), "'torch.load'");
  EXPECT_REFUSED(run("cevil\x1b[31m\nname\n."), "'evil?[31m.name'");
  EXPECT_REFUSED(run("c" + std::string(300, 'x') + "\n."), "longer than 256");
  EXPECT_REFUSED(run("ctorch\nfloat32\n)R."), "not a function");
  EXPECT_REFUSED(run("ctorch\nfloat32\n."), "used as a value");
  EXPECT_REFUSED(run(kStorage + "."), "used as a value");
  EXPECT_REFUSED(run("ccollections\nOrderedDict\n(K\1tR."), "built from arguments");
  for (const auto opcode : {"i", "o", "\x81", "\x92", "\x82", "I", "S", "V", "P", "B", "C", "\x8f", "\x96"}) {
    EXPECT_REFUSED(run("("s + opcode + "."), "is not one that plain data needs");
  }
}
TEST(Pickle, OtherProtocols) {
  EXPECT_EQ(run("K\7.", 64 << 20, 5).integer(""), 7);
  EXPECT_EQ(run("\x95"s + test::packed(uint64_t{9}) + "\x8c\2hi\x94.", 64 << 20, 4).text(""), "hi");
  EXPECT_EQ(run("\x8d"s + test::packed(uint64_t{2}) + "hi.", 64 << 20, 4).text(""), "hi");
  EXPECT_EQ(run("ccollections\nOrderedDict\n)R" + text("a") + "K\1s}b.").dict("").find("a")->integer(""), 1);
  EXPECT_REFUSED(run("K\7.", 64 << 20, 6), "protocol 6");
  EXPECT_REFUSED(run("K\7.", 64 << 20, 1), "protocol 1");
}
TEST(Pickle, MemoKeepsIdentity) {
  // The inner list is put into the memo empty, filled later, and recalled.
  const auto value = run("](]q\1K\5ah\1e.");
  const auto& items = std::get<PtList>(value.value).items;
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(std::get<PtList>(items[1].value).items.at(0).integer(""), 5);
}
TEST(Pickle, MachineLies) {
  EXPECT_REFUSED(run("."), "empty stack");
  EXPECT_REFUSED(run("K\1K\2."), "left over");
  EXPECT_REFUSED(run("K\1.N"), "bytes follow");
  EXPECT_REFUSED(run("(."), "mark as a value");
  EXPECT_REFUSED(run("t."), "mark is missing");
  EXPECT_REFUSED(run("h\5."), "recalls 5");
  EXPECT_REFUSED(run("K\1K\2a."), "expected a list, found an int");
  EXPECT_REFUSED(run("}(K\1u."), "without a value");
  EXPECT_REFUSED(run("}(K\1NK\1Nu."), "key 1 appears twice");
  EXPECT_REFUSED(run("}(" + text("a") + "N" + text("a") + "Nu."), "key 'a' appears twice");
  EXPECT_REFUSED(run("}(]Nu."), "cannot be the key");
  EXPECT_REFUSED(run("\x8a\x09"s + std::string(9, '\x01') + "."), "too large");
  EXPECT_REFUSED(run("X\xff\xff\xff\xff"
                     "abc."),
                 "needs 4294967295 bytes");
  EXPECT_EQ(run("\x8a\1\xff."s).integer(""), -1);
  EXPECT_EQ(run("\x8a\0."s).integer(""), 0);
}
TEST(Pickle, ListsThatHoldThemselvesAreRefused) {
  EXPECT_REFUSED(run("]q\1h\1a."), "nested deeper");
}
TEST(Pickle, DeepNestingIsRefused) {
  EXPECT_REFUSED(run(std::string(100000, ']') + std::string(99999, 'a') + "."), "nested deeper");
}
TEST(Pickle, DoublingThroughTheMemoIsRefused) {
  // Each list holds the one before it twice: forty of them would be 2^40 values.
  std::string opcodes = "K\1";
  for (char i = 0; i < 40; ++i) opcodes += "q"s + i + "0](h"s + i + "h"s + i + "e"s;
  EXPECT_REFUSED(run(opcodes + "."), "refused");
}
TEST(Pickle, AStackThatOnlyGrowsIsRefused) {
  EXPECT_REFUSED(run(std::string(3000000, 'N')), "grows without bound");
}
TEST(Pickle, WriterRefusesWhatReaderWould) {
  PtValue value{int64_t{1}};
  for (int i = 0; i < 200; ++i) value = PtValue{PtList{{value}}};
  std::vector<std::span<const std::byte>> storages;
  EXPECT_COMPLAINT(write_pickle(value, storages), "nests at most");
}
TEST(Pickle, Mutants) {
  const auto good = "}q\0("s + text("a") + "q\1" + tensor(0, {3, 4}, {4, 1}) + "q\2" + text("b") +
                    "(K\1M\2\1\x85t" + text("c") + "h\2" + text("d") +
                    "](G?\xf0\0\0\0\0\0\0\x8a\5\1\2\3\4\5NeK\7"s + text("e") + "su.";
  std::mt19937_64 random(11);
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    try {
      run(test::mutant(good, random));
    } catch (const std::runtime_error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace oscar
