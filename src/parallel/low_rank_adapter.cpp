#include "parallel/low_rank_adapter.hpp"

#include "ops/linear.hpp"
#include "ops/low_rank.hpp"

namespace maestro::parallel {

FrozenParameters frozen_with(const Lora& lora, const FrozenParameters& frozen) {
    return lora.enabled() ? frozen.and_all_but({"lora_A", "lora_B"}) : frozen;
}

std::optional<LowRankAdapter> LowRankAdapter::column_parallel(ParameterStore& store,
                                                              const std::string& prefix, const Lora& lora,
                                                              std::int64_t inputs,
                                                              std::span<const AdapterTarget> targets,
                                                              bool trained) {
    std::vector<Range> outputs;            // on this rank
    std::vector<ParameterRows> held_rows;  // of B
    std::int64_t columns = 0, rows = 0;
    for (const AdapterTarget& target : targets) {
        std::int64_t held = 0;
        for (const ParameterRows& block : target.held) held += block.rows.size();
        if (lora.has(target.name)) {
            outputs.push_back({columns, columns + held});
            for (const ParameterRows& block : target.held)
                held_rows.push_back({{rows + block.rows.begin, rows + block.rows.end}, block.replicated});
            rows += target.rows;
        }
        columns += held;
    }
    if (outputs.empty()) return {};
    const auto count = static_cast<std::int64_t>(outputs.size());
    const Parameter& a =
        store.declare(prefix + ".lora_A.weight", {count * lora.rank, inputs}, Init::kaiming_uniform, trained);
    const Parameter& b = store.declare(prefix + ".lora_B.weight", {rows, lora.rank}, Init::zeros, trained,
                                       held_rows, {0, lora.rank});
    return LowRankAdapter(store.backend(), a, b, std::move(outputs), lora);
}

std::optional<LowRankAdapter> LowRankAdapter::row_parallel(ParameterStore& store, const std::string& prefix,
                                                           const Lora& lora, std::string_view target,
                                                           std::int64_t outputs, std::int64_t inputs,
                                                           Range part, bool trained) {
    if (!lora.has(target)) return {};
    const Parameter& a = store.declare(prefix + ".lora_A.weight", {lora.rank, inputs}, Init::kaiming_uniform,
                                       trained, {{{0, lora.rank}}}, part);
    const Parameter& b = store.declare(prefix + ".lora_B.weight", {outputs, lora.rank}, Init::zeros, trained);
    return LowRankAdapter(store.backend(), a, b, {{0, outputs}}, lora);
}

template <class Body>
void LowRankAdapter::for_each_matrix(Body&& body) const {
    std::int64_t row = 0;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
        body(i, Range{row, row + outputs_[i].size()});
        row += outputs_[i].size();
    }
}

Tensor LowRankAdapter::allocate_inner(std::int64_t rows, backend::Arena& arena) const {
    return arena.allocate(a_->weight.dtype, {rows, static_cast<std::int64_t>(outputs_.size()) * rank_});
}

void LowRankAdapter::forward(const Tensor& input, const Tensor& output, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    const Tensor inner = allocate_inner(input.dim(0), scratch);
    ops::low_rank_inner(*backend_, input, a_->weight, scale_, inner);
    for_each_matrix([&](std::size_t i, Range rows) {
        ops::low_rank_add(*backend_, {inner, static_cast<std::int64_t>(i) * rank_},
                          b_->weight.slice(rows.begin, rows.end), {output, outputs_[i].begin});
    });
}

void LowRankAdapter::backward_input(const Tensor& d_output, const Tensor& d_input,
                                    const Tensor& d_inner) const {
    for_each_matrix([&](std::size_t i, Range rows) {
        ops::low_rank_backward_inner(*backend_, {d_output, outputs_[i].begin},
                                     b_->weight.slice(rows.begin, rows.end), scale_,
                                     {d_inner, static_cast<std::int64_t>(i) * rank_});
    });
    ops::linear_backward_input(*backend_, d_inner, a_->weight, d_input, true);
}

void LowRankAdapter::backward_weights(const Tensor& d_output, const Tensor& input, const Tensor& d_inner,
                                      const Tensor& inner) const {
    ops::low_rank_inner(*backend_, input, a_->weight, scale_, inner);
    for_each_matrix([&](std::size_t i, Range rows) {
        ops::low_rank_backward_weight(*backend_, {d_output, outputs_[i].begin},
                                      {inner, static_cast<std::int64_t>(i) * rank_},
                                      b_->gradient.slice(rows.begin, rows.end));
    });
    ops::linear_backward_weight(*backend_, d_inner, input, a_->gradient);
}

}  // namespace maestro::parallel
