#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "formats/pickle.h"

namespace oscar {

namespace {

class Writer {
 public:
  explicit Writer(std::vector<std::span<const std::byte>>& storages) : storages_(storages) {}

  std::string run(const PtValue& value) {
    out_ = "\x80\x02";
    put(value, 0);
    out_ += '.';
    return std::move(out_);
  }

 private:
  static constexpr size_t kBatch = 1000;  // items per SETITEMS or APPENDS, as Python's pickler does it

  template <typename T>
  void raw(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void memoize() {
    if (memo_ < 256) {
      out_ += 'q';
      raw(static_cast<uint8_t>(memo_));
    } else {
      out_ += 'r';
      raw(memo_);
    }
    ++memo_;
  }
  void recall(uint32_t index) {
    if (index < 256) {
      out_ += 'h';
      raw(static_cast<uint8_t>(index));
    } else {
      out_ += 'j';
      raw(index);
    }
  }
  // Writes once what `write` writes, and refers to it from then on.
  template <typename Write>
  void once(std::unordered_map<std::string, uint32_t>& known, const std::string& key, Write write) {
    const auto [entry, fresh] = known.emplace(key, memo_);
    if (!fresh) return recall(entry->second);
    write();
    memoize();
  }

  void global(const std::string& module_and_name) {  // "torch FloatStorage"
    once(globals_, module_and_name, [&] {
      auto text = 'c' + module_and_name + '\n';
      std::ranges::replace(text, ' ', '\n');
      out_ += text;
    });
  }
  void put(const PtNone&, int) { out_ += 'N'; }
  void put(const bool& value, int) { out_ += value ? '\x88' : '\x89'; }
  void put(const int64_t& value, int) {
    if (value >= 0 && value < 0x100) {
      out_ += 'K';
      raw(static_cast<uint8_t>(value));
    } else if (value >= 0 && value < 0x10000) {
      out_ += 'M';
      raw(static_cast<uint16_t>(value));
    } else if (value == static_cast<int32_t>(value)) {
      out_ += 'J';
      raw(static_cast<int32_t>(value));
    } else {
      size_t n = 8;  // the fewest bytes that keep the sign
      while (n > 1 && (value >> (8 * n - 9) == 0 || value >> (8 * n - 9) == -1)) --n;
      out_ += '\x8a';
      raw(static_cast<uint8_t>(n));
      out_.append(reinterpret_cast<const char*>(&value), n);
    }
  }
  void put(const double& value, int) {
    out_ += 'G';
    raw(__builtin_bswap64(std::bit_cast<uint64_t>(value)));
  }
  void put(const std::string& text, int) {
    if (text.size() > 0xffffffff) throw invalid("a text of {} bytes is too long for a .pt file", text.size());
    once(texts_, text, [&] {
      out_ += 'X';
      raw(static_cast<uint32_t>(text.size()));
      out_ += text;
    });
  }
  template <typename Items, typename PutItem>
  void batches(const Items& items, char one, char many, PutItem put_item) {
    for (size_t begin = 0; begin < items.size(); begin += kBatch) {
      const size_t end = std::min(items.size(), begin + kBatch);
      if (end - begin > 1) out_ += '(';
      for (size_t i = begin; i < end; ++i) put_item(items[i]);
      out_ += end - begin > 1 ? many : one;
    }
  }
  void put(const PtList& list, int depth) {
    out_ += ']';
    memoize();
    batches(list.items, 'a', 'e', [&](const PtValue& item) { put(item, depth); });
  }
  void put(const PtDict& dict, int depth) {
    out_ += '}';
    memoize();
    batches(dict.items, 's', 'u', [&](const auto& item) {
      put(item.first, depth);
      put(item.second, depth);
    });
  }
  void put(const PtTuple& tuple, int depth) {
    const auto n = tuple.items.size();
    if (n > 3) out_ += '(';
    for (const auto& item : tuple.items) put(item, depth);
    end_tuple(n);
  }
  void end_tuple(size_t n) {
    out_ += n == 0 ? ')' : n == 1 ? '\x85' : n == 2 ? '\x86' : n == 3 ? '\x87' : 't';
    if (n > 0) memoize();
  }
  void integers(const Shape& values) {
    if (values.size() > 3) out_ += '(';
    for (const auto value : values) put(value, 0);
    end_tuple(values.size());
  }

  size_t storage_of(const Tensor& tensor) {
    const auto fresh = [&] {
      storages_.push_back(tensor.bytes);
      return storages_.size() - 1;
    };
    if (tensor.bytes.empty()) return fresh();
    const auto key = std::tuple(tensor.bytes.data(), tensor.bytes.size(), tensor.dtype);
    if (const auto known = shared_.find(key); known != shared_.end()) return known->second;
    return shared_[key] = fresh();
  }
  // torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks), or _v3 with the
  // dtype at the end for those that have no storage class.
  void put(const Tensor& tensor, int) {
    check_size(tensor);
    const auto& type = info(tensor.dtype);
    const bool named = !type.torch.empty();
    if (!named && type.torch_name.empty())
      throw invalid("a .pt file cannot hold {}: torch has no such dtype", type.name);
    global(named ? "torch._utils _rebuild_tensor_v2" : "torch._utils _rebuild_tensor_v3");
    out_ += "((";
    put(std::string("storage"), 0);
    global(named ? fmt::format("torch {}", type.torch) : "torch.storage UntypedStorage");
    const auto key = fmt::to_string(storage_of(tensor));
    out_ += 'X';  // not through the memo of texts: torch makes a new str for each
    raw(static_cast<uint32_t>(key.size()));
    out_ += key;
    memoize();
    put(std::string("cpu"), 0);
    put(named ? tensor.count() : static_cast<int64_t>(tensor.bytes.size()), 0);
    end_tuple(5);
    out_ += 'Q';
    put(int64_t{0}, 0);
    integers(tensor.shape);
    Shape strides(tensor.shape.size());
    int64_t stride = 1;
    for (size_t i = strides.size(); i-- > 0; stride *= std::max<int64_t>(tensor.shape[i], 1))
      strides[i] = stride;
    integers(strides);
    put(false, 0);
    global("collections OrderedDict");
    out_ += ")R";
    memoize();
    if (!named) global(fmt::format("torch {}", type.torch_name));
    end_tuple(6);
    out_ += 'R';
    memoize();
  }

  void put(const PtValue& value, int depth) {
    if (depth > kPickleDepth) throw invalid("a .pt file nests at most {} containers", kPickleDepth);
    std::visit([&](const auto& content) { put(content, depth + 1); }, value.value);
  }

  std::string out_;
  uint32_t memo_ = 0;
  std::unordered_map<std::string, uint32_t> texts_, globals_;
  std::map<std::tuple<const std::byte*, size_t, DType>, size_t> shared_;
  std::vector<std::span<const std::byte>>& storages_;
};

}  // namespace

std::string write_pickle(const PtValue& value, std::vector<std::span<const std::byte>>& storages) {
  return Writer(storages).run(value);
}

}  // namespace oscar
