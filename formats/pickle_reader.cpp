#include <algorithm>
#include <bit>
#include <deque>
#include <unordered_map>
#include <unordered_set>

#include "formats/pickle.h"

namespace oscar {

namespace {

// What the machine works on. Containers are shared objects until the end, because a pickle fills them after
// it has put them into its memo; they become values once, when the machine stops.
struct Object;
struct Mark {};
using Item = std::variant<PtNone, bool, int64_t, double, Object*, Mark>;

struct Global {
  std::string name;  // "torch._utils _rebuild_tensor_v2"
};
struct Storage {
  std::string key;
  const DTypeInfo* type;  // nullptr: untyped, counted in bytes
  int64_t count;
};
struct List {
  std::vector<Item> items;
};
struct Tuple {
  std::vector<Item> items;
};
struct Dict {
  std::vector<Item> items;
};  // key, value, key, value, …

struct Object {
  std::variant<std::string, List, Tuple, Dict, Global, Storage, Tensor> content;
};

constexpr uint64_t kMaxValues = uint64_t{256} << 20;  // bytes of memory that everything but tensors may take
constexpr size_t kMaxStack = size_t{1} << 20;
constexpr size_t kMaxShown = 80;  // characters of a foreign name in a message

std::string_view kind_of(const Item& item) {
  constexpr std::string_view kinds[] = {"None", "a bool", "an int", "a float"};
  constexpr std::string_view objects[] = {"a str",    "a list",    "a tuple", "a dict",
                                          "a global", "a storage", "a tensor"};
  if (std::holds_alternative<Mark>(item)) return "a mark";
  if (const auto* object = std::get_if<Object*>(&item)) return objects[(*object)->content.index()];
  return kinds[item.index()];
}

class Machine {
 public:
  Machine(ByteReader in, const LoadStorage& load, Budget& budget)
      : in_(std::move(in)), load_(load), budget_(budget), values_(kMaxValues, in_.file()) {}

  PtValue run() {
    if (in_.read<uint8_t>("the pickle protocol") != 0x80) throw fail("expected a pickle of protocol 2 to 5");
    const auto protocol = in_.read<uint8_t>("the pickle protocol");
    if (protocol < 2 || protocol > 5) throw fail(fmt::format("pickle protocol {} is not 2 to 5", protocol));
    for (;;) {
      const auto opcode = in_.read<uint8_t>("a pickle opcode");
      if (opcode == '.') break;
      step(opcode);
    }
    const auto result = pop();
    if (!stack_.empty()) throw fail("the pickle ends with values left over");
    if (in_.remaining()) throw fail("bytes follow the end of the pickle");
    return value(result, 0);
  }

 private:
  std::runtime_error fail(std::string_view why) const { return in_.fail(why); }

  // ---- stack and memo
  void push(Item item) {
    if (stack_.size() >= kMaxStack) throw fail("the pickle's stack grows without bound");
    stack_.push_back(item);
  }
  Object* make(decltype(Object::content) content) {
    values_.take(sizeof(Object), "the pickle");
    return &objects_.emplace_back(Object{std::move(content)});
  }
  Item pop() {
    if (stack_.empty()) throw fail("the pickle takes from an empty stack");
    const auto item = stack_.back();
    stack_.pop_back();
    return item;
  }
  Item pop_value() {
    const auto item = pop();
    if (std::holds_alternative<Mark>(item)) throw fail("the pickle uses a mark as a value");
    return item;
  }
  std::vector<Item> pop_to_mark() {
    const auto mark = std::find_if(stack_.rbegin(), stack_.rend(),
                                   [](const Item& item) { return std::holds_alternative<Mark>(item); });
    if (mark == stack_.rend()) throw fail("the pickle's mark is missing");
    std::vector<Item> items(mark.base(), stack_.end());
    stack_.erase(mark.base() - 1, stack_.end());
    return items;
  }
  Tuple pop_tuple(size_t n) {
    Tuple tuple{std::vector<Item>(n)};
    for (size_t i = n; i-- > 0;) tuple.items[i] = pop_value();
    return tuple;
  }
  template <typename T>
  T* as(const Item& item) const {
    const auto* object = std::get_if<Object*>(&item);
    return object ? std::get_if<T>(&(*object)->content) : nullptr;
  }
  template <typename T>
  T& need(const Item& item, std::string_view expected) const {
    if (auto* content = as<T>(item)) return *content;
    throw fail(fmt::format("expected {}, found {}", expected, kind_of(item)));
  }
  int64_t need_int(const Item& item) const {
    if (const auto* number = std::get_if<int64_t>(&item)) return *number;
    throw fail(fmt::format("expected an int, found {}", kind_of(item)));
  }
  Item& top() {
    if (stack_.empty()) throw fail("the pickle takes from an empty stack");
    return stack_.back();
  }
  void remember(uint32_t index) {
    if (std::holds_alternative<Mark>(top())) throw fail("the pickle remembers a mark");
    values_.take(64, "the pickle's memo");
    memo_[index] = top();
  }
  void recall(uint32_t index) {
    const auto entry = memo_.find(index);
    if (entry == memo_.end()) throw fail(fmt::format("the pickle recalls {}, which it never put", index));
    push(entry->second);
  }

  void append(Item container, const std::vector<Item>& items) {
    auto& list = need<List>(container, "a list");
    values_.take(items.size() * sizeof(Item), "the pickle");
    list.items.insert(list.items.end(), items.begin(), items.end());
  }
  void set_items(Item container, const std::vector<Item>& items) {
    auto& dict = need<Dict>(container, "a dict");
    if (items.size() % 2) throw fail("a dict is given a key without a value");
    values_.take(items.size() * sizeof(Item), "the pickle");
    dict.items.insert(dict.items.end(), items.begin(), items.end());
  }

  // ---- opcodes
  void text(uint64_t length) {
    const auto bytes = in_.text(length, "a str");
    values_.take(length, "the pickle");
    push(make(std::string(bytes)));
  }
  void big_integer(uint64_t length) {
    const auto bytes = in_.take(length, "an int");
    if (length > 8)
      throw fail(fmt::format("an int of {} bytes is too large: at most 8 are supported", length));
    uint64_t bits = 0;
    std::memcpy(&bits, bytes.data(), bytes.size());
    const int unused = 64 - 8 * static_cast<int>(length);
    push(length ? static_cast<int64_t>(bits << unused) >> unused : int64_t{0});
  }
  std::string line() {
    std::string text;
    for (;;) {
      const auto c = in_.read<char>("a global's name");
      if (c == '\n') return text;
      if (text.size() == 256) throw fail("a global's name is longer than 256 bytes");
      text += c;
    }
  }
  // Known globals are those that data needs; any other would be code.
  void global(const std::string& module, const std::string& name) {
    static const std::unordered_set<std::string_view> known = {"torch._utils _rebuild_tensor_v2",
                                                               "torch._utils _rebuild_tensor_v3",
                                                               "torch._utils _rebuild_parameter",
                                                               "collections OrderedDict",
                                                               "torch Size",
                                                               "torch.storage UntypedStorage",
                                                               "torch UntypedStorage"};
    const auto full = module + ' ' + name;
    if (!known.contains(full) &&
        !(module == "torch" && (find_torch_storage(name) || find_torch_dtype(name)))) {
      throw fail(fmt::format(
          "the file refers to '{}.{}', which is not data: only dicts, lists, tuples, texts, numbers and "
          "tensors are read. Save the values as plain tensors",
          printable(module), printable(name)));
    }
    push(make(Global{full}));
  }
  static std::string printable(std::string text) {
    for (auto& c : text) {
      if (c < ' ' || c > '~') c = '?';
    }
    return text.size() > kMaxShown ? text.substr(0, kMaxShown) + "…" : text;
  }

  void persistent_id() {
    const auto id = pop_value();
    const auto& parts = need<Tuple>(id, "a storage's tuple").items;
    if (parts.size() != 5 || need<std::string>(parts[0], "the word 'storage'") != "storage") {
      throw fail("expected a storage's tuple of 5 parts");
    }
    const auto& type = need<Global>(parts[1], "a storage type").name;
    const bool untyped = type.ends_with(" UntypedStorage");
    const auto* row =
        untyped ? nullptr : find_torch_storage(std::string_view(type).substr(type.find(' ') + 1));
    if (!untyped && !row) throw fail(fmt::format("'{}' is not a storage type", type));
    const auto count = need_int(parts[4]);
    if (count < 0) throw fail(fmt::format("a storage of {} elements", count));
    push(make(Storage{need<std::string>(parts[2], "a storage's key"), row, count}));
  }

  Shape integers(const Item& item) const {
    Shape values;
    for (const auto& entry : need<Tuple>(item, "a tuple of ints").items) values.push_back(need_int(entry));
    return values;
  }
  Item tensor(const std::vector<Item>& arguments, bool with_dtype) {
    if (arguments.size() < (with_dtype ? 7u : 6u)) throw fail("a tensor is built from too few arguments");
    const auto& storage = need<Storage>(arguments[0], "a storage");
    const auto* type = storage.type;
    if (with_dtype) {
      const auto& name = need<Global>(arguments[6], "a dtype").name;
      type = name.starts_with("torch ") ? find_torch_dtype(std::string_view(name).substr(6)) : nullptr;
    }
    if (!type) throw fail("a tensor has no dtype known here");
    const auto bytes = byte_count({storage.count}, storage.type ? storage.type->size() : 1);
    if (!bytes) throw fail(fmt::format("a storage of {} elements", storage.count));
    const auto where =
        fmt::format("{}: offset {}: storage '{}'", in_.file(), in_.offset(), printable(storage.key));
    return make(rebuild_tensor(load_(storage.key, static_cast<uint64_t>(*bytes)), type->dtype,
                               need_int(arguments[1]), integers(arguments[2]), integers(arguments[3]), where,
                               budget_));
  }
  void reduce() {
    const auto packed = pop_value();
    const auto function = pop_value();
    const auto& arguments = need<Tuple>(packed, "a tuple of arguments").items;
    const auto& name = need<Global>(function, "a function").name;
    if (name == "collections OrderedDict") {
      if (!arguments.empty()) throw fail("an OrderedDict is built from arguments");
      push(make(Dict{}));
    } else if (name == "torch._utils _rebuild_tensor_v2" || name == "torch._utils _rebuild_tensor_v3") {
      push(tensor(arguments, name.ends_with('3')));
    } else if (name == "torch._utils _rebuild_parameter" && !arguments.empty()) {
      need<Tensor>(arguments[0], "a tensor");
      push(arguments[0]);
    } else if (name == "torch Size" && arguments.size() == 1) {
      need<Tuple>(arguments[0], "a tuple");
      push(arguments[0]);
    } else {
      throw fail(fmt::format("'{}' is not a function that is known here", printable(name)));
    }
  }

  void step(uint8_t opcode) {
    switch (opcode) {
      case '(':
        return push(Mark{});
      case '0':
        pop();
        return;
      case '1':
        pop_to_mark();
        return;
      case '2':
        return push(top());
      case 'N':
        return push(PtNone{});
      case 0x88:
        return push(true);
      case 0x89:
        return push(false);
      case 'K':
        return push(int64_t{in_.read<uint8_t>("an int")});
      case 'M':
        return push(int64_t{in_.read<uint16_t>("an int")});
      case 'J':
        return push(int64_t{in_.read<int32_t>("an int")});
      case 0x8a:
        return big_integer(in_.read<uint8_t>("an int"));
      case 0x8b:
        return big_integer(in_.read<uint32_t>("an int"));
      case 'G':
        return push(std::bit_cast<double>(__builtin_bswap64(in_.read<uint64_t>("a float"))));
      case 'X':
        return text(in_.read<uint32_t>("a str"));
      case 0x8c:
        return text(in_.read<uint8_t>("a str"));
      case 0x8d:
        return text(in_.read<uint64_t>("a str"));
      case ')':
        return push(make(Tuple{}));
      case 0x85:
        return push(make(pop_tuple(1)));
      case 0x86:
        return push(make(pop_tuple(2)));
      case 0x87:
        return push(make(pop_tuple(3)));
      case 't':
        return push(make(Tuple{counted(pop_to_mark())}));
      case ']':
        return push(make(List{}));
      case 'l':
        return push(make(List{counted(pop_to_mark())}));
      case '}':
        return push(make(Dict{}));
      case 'a': {
        const auto item = pop_value();
        return append(top(), {item});
      }
      case 'e': {
        const auto items = pop_to_mark();
        return append(top(), items);
      }
      case 's': {
        auto pair = pop_tuple(2).items;
        return set_items(top(), pair);
      }
      case 'u': {
        const auto items = pop_to_mark();
        return set_items(top(), items);
      }
      case 'd': {
        const auto items = pop_to_mark();
        push(make(Dict{}));
        return set_items(top(), items);
      }
      case 'c': {
        const auto module = line();
        return global(module, line());
      }
      case 0x93: {
        const auto name = pop_value(), module = pop_value();
        return global(need<std::string>(module, "a module name"), need<std::string>(name, "a name"));
      }
      case 'R':
        return reduce();
      case 'b':  // of an OrderedDict only: its attributes, such as a module's _metadata, are not data
        pop_value();
        need<Dict>(top(), "a dict");
        return;
      case 'Q':
        return persistent_id();
      case 'q':
        return remember(in_.read<uint8_t>("a memo index"));
      case 'r':
        return remember(in_.read<uint32_t>("a memo index"));
      case 0x94:
        return remember(static_cast<uint32_t>(memo_.size()));
      case 'h':
        return recall(in_.read<uint8_t>("a memo index"));
      case 'j':
        return recall(in_.read<uint32_t>("a memo index"));
      case 0x95:
        in_.read<uint64_t>("a frame");
        return;
      default:
        throw fail(fmt::format("pickle opcode 0x{:02x} is not one that plain data needs", opcode));
    }
  }
  std::vector<Item> counted(std::vector<Item> items) {
    values_.take(items.size() * sizeof(Item), "the pickle");
    return items;
  }

  // ---- from objects to values. Shared objects are copied, so depth and memory are limited here too.
  PtValue value(const Item& item, int depth) {
    if (depth > kPickleDepth) throw fail(fmt::format("containers are nested deeper than {}", kPickleDepth));
    values_.take(sizeof(PtValue), "the pickle");
    if (const auto* object = std::get_if<Object*>(&item)) {
      return std::visit([&](const auto& content) { return convert(content, depth + 1); }, (*object)->content);
    }
    if (const auto* flag = std::get_if<bool>(&item)) return {*flag};
    if (const auto* integer = std::get_if<int64_t>(&item)) return {*integer};
    if (const auto* number = std::get_if<double>(&item)) return {*number};
    if (std::holds_alternative<Mark>(item)) throw fail("the pickle uses a mark as a value");
    return {PtNone{}};
  }
  std::vector<PtValue> values(const std::vector<Item>& items, int depth) {
    std::vector<PtValue> result;
    for (const auto& item : items) result.push_back(value(item, depth));
    return result;
  }
  PtValue convert(const std::string& text, int) {
    values_.take(text.size(), "the pickle");
    return {text};
  }
  PtValue convert(const List& list, int depth) { return {PtList{values(list.items, depth)}}; }
  PtValue convert(const Tuple& tuple, int depth) { return {PtTuple{values(tuple.items, depth)}}; }
  PtValue convert(const Tensor& tensor, int) { return {tensor}; }
  PtValue convert(const Global& global, int) {
    throw fail(fmt::format("'{}' is used as a value", printable(global.name)));
  }
  PtValue convert(const Storage& storage, int) {
    throw fail(fmt::format("storage '{}' is used as a value: save a tensor", printable(storage.key)));
  }
  PtValue convert(const Dict& dict, int depth) {
    PtDict result;
    std::unordered_set<std::string> texts;
    std::unordered_set<int64_t> integers;
    for (size_t i = 0; i < dict.items.size(); i += 2) {
      auto key = value(dict.items[i], depth);
      if (const auto* text = std::get_if<std::string>(&key.value)) {
        if (!texts.insert(*text).second)
          throw fail(fmt::format("key '{}' appears twice in a dict", printable(*text)));
      } else if (const auto* integer = std::get_if<int64_t>(&key.value)) {
        if (!integers.insert(*integer).second)
          throw fail(fmt::format("key {} appears twice in a dict", *integer));
      } else if (!hashable(key)) {
        throw fail(fmt::format("a {} cannot be the key of a dict", key.kind()));
      }
      result.items.emplace_back(std::move(key), value(dict.items[i + 1], depth));
    }
    return {std::move(result)};
  }
  static bool hashable(const PtValue& key) {
    if (const auto* tuple = std::get_if<PtTuple>(&key.value))
      return std::ranges::all_of(tuple->items, hashable);
    return !std::holds_alternative<PtList>(key.value) && !std::holds_alternative<PtDict>(key.value) &&
           !std::holds_alternative<Tensor>(key.value);
  }

  ByteReader in_;
  const LoadStorage& load_;
  Budget& budget_;
  Budget values_;
  std::deque<Object> objects_;  // owns; addresses are stable
  std::vector<Item> stack_;
  std::unordered_map<uint32_t, Item> memo_;
};

}  // namespace

PtValue read_pickle(ByteReader in, const LoadStorage& load, Budget& budget) {
  return Machine(std::move(in), load, budget).run();
}

}  // namespace oscar
