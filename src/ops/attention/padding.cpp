#include "ops/attention/padding.hpp"

#include "kernels/attention_padding.hpp"
#include "kernels/columns.hpp"
#include "kernels/elementwise.hpp"

namespace maestro::ops {

using backend::AttentionArray;

AttentionPadding::AttentionPadding(const AttentionTensors& t, std::int64_t dim, std::int64_t rows,
                                   backend::Arena& scratch)
    : tensors_(t),
      query_width_(t.lse.columns() * dim),
      key_width_(t.k.columns()),
      inputs_(scratch.allocate(DType::bf16, {rows * (3 * query_width_ + 2 * key_width_)})),
      results_(scratch.allocate(DType::bf16, {rows * (query_width_ + 2 * key_width_)})),
      statistics_(scratch.allocate(DType::f32, {rows * t.lse.columns()})) {}

namespace {

/// Divides a flat tensor into matrices, one after another.
class Divider {
public:
    explicit Divider(const Tensor& all) : all_(all) {}
    Tensor next(std::int64_t rows, std::int64_t columns) {
        const std::int64_t begin = used_;
        used_ += rows * columns;
        return all_.slice(begin, used_).reshape({rows, columns});
    }

private:
    const Tensor& all_;
    std::int64_t used_ = 0;
};

}  // namespace

std::vector<AttentionPadding::Copy> AttentionPadding::inputs(std::int64_t rows) const {
    Divider parts(inputs_);
    return {{AttentionArray::q, tensors_.q, parts.next(rows, query_width_), false},
            {AttentionArray::out, tensors_.out, parts.next(rows, query_width_), false},
            {AttentionArray::dout, tensors_.dout, parts.next(rows, query_width_), false},
            {AttentionArray::k, tensors_.k, parts.next(rows, key_width_), true},
            {AttentionArray::values, tensors_.values, parts.next(rows, key_width_), true}};
}

std::vector<AttentionPadding::Copy> AttentionPadding::results(std::int64_t rows) const {
    Divider parts(results_);
    return {{AttentionArray::dq, tensors_.dq, parts.next(rows, query_width_), false},
            {AttentionArray::dk, tensors_.dk, parts.next(rows, key_width_), true},
            {AttentionArray::dvalues, tensors_.dvalues, parts.next(rows, key_width_), true}};
}

void AttentionPadding::copy_inputs(Stream stream, const backend::AttentionClass& c, const PaddedRows& queries,
                                   const PaddedRows& keys, backend::AttentionArrays& arrays) const {
    const std::int64_t rows = c.sequences * c.max_seqlen, width = 3 * query_width_ + 2 * key_width_;
    const Tensor statistics = statistics_.slice(0, rows * c.heads);
    const std::vector<Copy> copies = inputs(rows);
    if constexpr (backend::kCuda) {
        kernels::zero(stream, inputs_.slice(0, rows * width));
        kernels::zero(stream, statistics);
        for (const Copy& copy : copies) copy_rows(stream, copy, copy.of_keys ? keys : queries, true);
        kernels::pad_statistics(stream, tensors_.lse.slice(queries.first, queries.last), queries.row_numbers,
                                c.max_seqlen, statistics);
    }
    backend::of(arrays, AttentionArray::lse) = statistics.data;
    for (const Copy& copy : copies) backend::of(arrays, copy.which) = copy.padded.data;
    for (const Copy& copy : results(rows)) backend::of(arrays, copy.which) = copy.padded.data;
}

void AttentionPadding::copy_results(Stream stream, const backend::AttentionClass& c,
                                    const PaddedRows& queries, const PaddedRows& keys) const {
    for (const Copy& copy : results(c.sequences * c.max_seqlen))
        copy_rows(stream, copy, copy.of_keys ? keys : queries, false);
}

void AttentionPadding::copy_rows(Stream stream, const Copy& copy, const PaddedRows& rows, bool to_padded) {
    if constexpr (backend::kCuda) {  // builds without CUDA have no kernels
        const std::int64_t columns = copy.padded.columns();
        const kernels::Columns packed{
            copy.packed.slice(rows.first, rows.last), copy.packed.columns() - columns, {}},
            padded{copy.padded, 0, rows.row_numbers};
        kernels::copy_columns(stream, to_padded ? packed : padded, to_padded ? padded : packed,
                              rows.last - rows.first, columns, false);
    }
}

}  // namespace maestro::ops
