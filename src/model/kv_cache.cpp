#include "model/kv_cache.hpp"

#include "ops/columns.hpp"
#include "ops/dispatch.hpp"
#include "ops/elementwise.hpp"

namespace maestro::model {

KvCache::KvCache(backend::Backend& backend, std::int64_t layers, std::int64_t width, DType type,
                 std::int64_t capacity, backend::Arena& arena)
    : backend_(backend),
      capacity_(capacity),
      keys_(arena.allocate(type, {layers * capacity, width})),
      values_(arena.allocate(type, {layers * capacity, width})) {}

void KvCache::write(std::int64_t layer, const Tensor& k, const Tensor& qkv) {
    const std::int64_t rows = k.dim(0), width = keys_.columns(), begin = layer * capacity_ + length_;
    MAESTRO_CHECK(length_ + rows <= capacity_ && k.columns() == width && qkv.dim(0) == rows,
                  "keys {} and values {} behind {} of {} rows of width {}", k.describe(), qkv.describe(),
                  length_, capacity_, width);
    ops::copy(backend_, k, keys_.slice(begin, begin + rows));
    ops::copy_columns(backend_, {qkv, qkv.columns() - width}, {values_.slice(begin, begin + rows)}, width);
}

void KvCache::add_rows(std::int64_t rows) {
    MAESTRO_CHECK(length_ + rows <= capacity_, "{} rows behind {} of {}", rows, length_, capacity_);
    length_ += rows;
}

void KvCache::begin_row(backend::Arena& scratch) {
    const auto keys = static_cast<std::int32_t>(length_ + 1);
    mask_ = {{0, 1}, {0, keys}, {keys}};
    tables_.reserve(backend_, 1, {1, keys, 1}, false, scratch);
}

void KvCache::attend(std::int64_t layer, const Tensor& q, const Tensor& out, const Tensor& lse,
                     backend::Arena& scratch) {
    const backend::ArenaScope scope(scratch);
    const std::int64_t begin = layer * capacity_, end = begin + length_ + 1;
    // A wide result selects the program's kernel on a GPU: the fused operation of a library would build a
    // plan for each class of lengths, which takes longer than many tokens.
    const DType wide = ops::accumulate_type(q.dtype);
    const Tensor result = wide == out.dtype ? out : scratch.allocate(wide, {out.dim(0), out.columns()});
    ops::attention(backend_, q, keys_.slice(begin, end), values_.slice(begin, end), mask_, result, lse,
                   scratch, &tables_);
    if (result.data != out.data) ops::convert(backend_, result, out);
}

}  // namespace maestro::model
