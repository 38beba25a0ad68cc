// The pickle inside a .pt file, as data: a stack machine that knows the opcodes of plain values, and no code.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "formats/budget.h"
#include "formats/pt.h"
#include "formats/zip.h"

namespace oscar {

// The bytes of the storage `key`, which the pickle says has `size` of them; `where` begins its errors.
using LoadStorage =
    std::function<ZipContent(const std::string& key, uint64_t size, const std::string& where)>;

// Protocols 2 to 5. Tensors that are contiguous share their storage; others are copied. All that is made
// takes from the budget.
PtValue read_pickle(ByteReader in, const LoadStorage& load, Budget& budget);

// Protocol 2, opcode for opcode what torch.save writes. Appends to `storages` the bytes of "data/0",
// "data/1", …; tensors over the same bytes share one. Depth is limited as in reading.
std::string write_pickle(const PtValue& value, std::vector<std::span<const std::byte>>& storages);

// A tensor of `shape` and `strides`, both in elements, at element `offset` of a storage. Throws where it
// reaches outside, at the place of `in`.
Tensor rebuild_tensor(const ZipContent& storage, DType dtype, int64_t offset, Shape shape,
                      const Shape& strides, const ByteReader& in, Budget& budget);

constexpr int kPickleDepth = 100;  // of containers in containers

}  // namespace oscar
