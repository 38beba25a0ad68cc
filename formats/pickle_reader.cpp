#include <algorithm>
#include <bit>
#include <deque>
#include <unordered_map>
#include <unordered_set>

#include "formats/pickle_objects.h"

namespace oscar {

namespace {

using namespace pickle;

constexpr size_t kMaxStack = size_t{1} << 20;
constexpr size_t kMaxName = 256;  // bytes of a line of a global
constexpr size_t kMaxKey = 256;   // bytes of a storage's key

class Machine {
 public:
  Machine(ByteReader in, const LoadStorage& load, Budget& budget)
      : in_(std::move(in)), load_(load), budget_(budget) {}

  PtValue run() {
    if (in_.read<uint8_t>("the pickle protocol") != 0x80) throw fail("expected a pickle of protocol 2 to 5");
    const auto protocol = in_.read<uint8_t>("the pickle protocol");
    if (protocol < 2 || protocol > 5) throw fail(fmt::format("pickle protocol {} is not 2 to 5", protocol));
    for (;;) {
      at_ = in_.offset();
      const auto opcode = in_.read<uint8_t>("a pickle opcode");
      if (opcode == '.') break;
      step(opcode);
    }
    const auto result = pop();
    if (!stack_.empty()) throw fail("the pickle ends with values left over");
    if (in_.remaining()) throw fail("bytes follow the end of the pickle");
    return to_value(result, in_, budget_);
  }

 private:
  std::runtime_error fail(std::string_view why) const { return in_.fail_at(at_, why); }
  void take(uint64_t bytes) { budget_.take(bytes, in_, "the pickle"); }

  // ---- stack and memo
  void push(Item item) {
    if (stack_.size() >= kMaxStack) throw fail("the pickle's stack grows without bound");
    budget_.grow(stack_, 1, in_, "the pickle's stack");
    stack_.push_back(item);
  }
  Object* make(decltype(Object::content) content) {
    take(sizeof(Object) + 16);  // with its share of the deque's own
    return &objects_.emplace_back(Object{at_, std::move(content)});
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
  // What lies above the topmost mark, until drop_mark.
  std::span<const Item> above_mark() {
    const auto mark = std::find_if(stack_.rbegin(), stack_.rend(),
                                   [](const Item& item) { return std::holds_alternative<Mark>(item); });
    if (mark == stack_.rend()) throw fail("the pickle's mark is missing");
    return {mark.base(), stack_.end()};
  }
  void drop_mark(size_t above) { stack_.resize(stack_.size() - above - 1); }
  std::vector<Item> pop_to_mark() {
    const auto items = above_mark();
    take(items.size() * sizeof(Item));
    std::vector<Item> result(items.begin(), items.end());
    drop_mark(items.size());
    return result;
  }
  Tuple pop_tuple(size_t n) {
    take(n * sizeof(Item));
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
    take(80);  // a node of the map and its share of the buckets
    memo_[index] = top();
  }
  void recall(uint32_t index) {
    const auto entry = memo_.find(index);
    if (entry == memo_.end()) throw fail(fmt::format("the pickle recalls {}, which it never put", index));
    push(entry->second);
  }

  void append(const Item& container, std::span<const Item> items) {
    auto& list = need<List>(container, "a list").items;
    budget_.grow(list, items.size(), in_, "the pickle");
    list.insert(list.end(), items.begin(), items.end());
  }
  void set_items(const Item& container, std::span<const Item> items) {
    auto& dict = need<Dict>(container, "a dict").items;
    if (items.size() % 2) throw fail("a dict is given a key without a value");
    budget_.grow(dict, items.size(), in_, "the pickle");
    dict.insert(dict.end(), items.begin(), items.end());
  }
  // The container lies below the mark, its new items above.
  template <typename Add>
  void add_above_mark(Add add) {
    const auto items = above_mark();
    if (items.size() + 2 > stack_.size()) throw fail("the pickle takes from an empty stack");
    add(stack_[stack_.size() - items.size() - 2], items);
    drop_mark(items.size());
  }

  // ---- opcodes
  void text(uint64_t length) {
    const auto bytes = in_.text(length, "a str");
    budget_.take_text(bytes.size(), in_, "the pickle");
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
  std::string_view line() {
    auto rest = in_;
    const auto text = rest.text(std::min<size_t>(rest.remaining(), kMaxName + 1), "");
    const auto end = text.find('\n');
    if (end == text.npos && text.size() > kMaxName)
      throw fail(fmt::format("a global's name is longer than {} bytes", kMaxName));
    const auto name = in_.text(end == text.npos ? text.size() + 1 : end, "a global's name");
    in_.take(1, "a global's name");
    return name;
  }
  // Known globals are those that data needs; any other would be code.
  void global(std::string_view module, std::string_view name) {
    static const std::unordered_set<std::string_view> known = {"torch._utils _rebuild_tensor_v2",
                                                               "torch._utils _rebuild_tensor_v3",
                                                               "torch._utils _rebuild_parameter",
                                                               "collections OrderedDict",
                                                               "torch Size",
                                                               "torch.storage UntypedStorage",
                                                               "torch UntypedStorage"};
    auto full = fmt::format("{} {}", module.substr(0, kMaxName), name.substr(0, kMaxName));
    if (!known.contains(full) &&
        !(module == "torch" && (find_torch_storage(name) || find_torch_dtype(name)))) {
      throw fail(fmt::format(
          "the file refers to '{}.{}', which is not data: only dicts, lists, tuples, texts, numbers and "
          "tensors are read. Save the values as plain tensors",
          shown(module), shown(name)));
    }
    budget_.take_text(full.size(), in_, "the pickle");
    push(make(Global{std::move(full)}));
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
    if (!untyped && !row) throw fail(fmt::format("'{}' is not a storage type", shown(type)));
    const auto count = need_int(parts[4]);
    if (count < 0) throw fail(fmt::format("a storage of {} elements", count));
    const auto& key = need<std::string>(parts[2], "a storage's key");
    if (key.size() > kMaxKey) throw fail(fmt::format("a storage's key of {} bytes", key.size()));
    budget_.take_text(key.size(), in_, "the pickle");
    push(make(Storage{key, row, count}));
  }

  Shape integers(const Item& item) const {
    const auto& items = need<Tuple>(item, "a tuple of ints").items;
    if (items.size() > 64) throw fail(fmt::format("not a tensor: {} dimensions", items.size()));
    Shape values(items.size());
    std::ranges::transform(items, values.begin(), [&](const Item& entry) { return need_int(entry); });
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
    const auto where = fmt::format("{}: offset {}: storage '{}'", in_.file(), at_, shown(storage.key));
    const auto content = load_(storage.key, static_cast<uint64_t>(*bytes), where);
    auto shape = integers(arguments[2]);
    take(shape.size() * sizeof(int64_t));
    return make(rebuild_tensor(content, type->dtype, need_int(arguments[1]), std::move(shape),
                               integers(arguments[3]), in_, budget_));
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
      throw fail(fmt::format("'{}' is not a function that is known here", shown(name)));
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
        return drop_mark(above_mark().size());
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
        return push(make(Tuple{pop_to_mark()}));
      case ']':
        return push(make(List{}));
      case 'l':
        return push(make(List{pop_to_mark()}));
      case '}':
        return push(make(Dict{}));
      case 'a': {
        const auto item = pop_value();
        return append(top(), {&item, 1});
      }
      case 'e':
        return add_above_mark([&](const Item& list, auto items) { append(list, items); });
      case 's': {
        const Item value = pop_value(), pair[] = {pop_value(), value};
        return set_items(top(), pair);
      }
      case 'u':
        return add_above_mark([&](const Item& dict, auto items) { set_items(dict, items); });
      case 'd': {
        const Item dict = make(Dict{});
        const auto items = above_mark();
        set_items(dict, items);
        drop_mark(items.size());
        return push(dict);
      }
      case 'c': {
        const auto module = line(), name = line();
        return global(module, name);
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

  ByteReader in_;
  const LoadStorage& load_;
  Budget& budget_;
  size_t at_ = 0;               // of the opcode at work
  std::deque<Object> objects_;  // owns; addresses are stable
  std::vector<Item> stack_;
  std::unordered_map<uint32_t, Item> memo_;
};

}  // namespace

PtValue read_pickle(ByteReader in, const LoadStorage& load, Budget& budget) {
  return Machine(std::move(in), load, budget).run();
}

}  // namespace oscar
