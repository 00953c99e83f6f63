// Experts that several ranks share: rows travel to them and back in rounds.
#include <algorithm>
#include <numeric>

#include "model/expert_block.hpp"
#include "ops/elementwise.hpp"

namespace maestro::model {

/// A round of the exchange whose rows are on the ranks of their experts. Its tensors live until it ends.
struct ExpertBlock::Dispatched {
    parallel::ExpertExchange::Round round;
    Tensor weights;  ///< [M, k], A: of the received rows
    Sorted order;
};

ExpertBlock::Dispatched ExpertBlock::dispatch_round(const ExpertBlockActivations& a, std::size_t number,
                                                    std::span<const std::int64_t> rows,
                                                    backend::Arena& scratch) const {
    const parallel::ExpertRound& round = a.host->rounds[number];
    Dispatched dispatched{
        .round = exchange_.describe(round, a.input.dim(0), scratch), .weights = {}, .order = {}};
    dispatched.weights = exchange_.dispatch(a.weight, dispatched.round, scratch);
    const Range experts = group_.experts_of(group_.rank);
    backend_.count(backend::HostWork{.choices = static_cast<double>(round.rows * group_.choices)});
    parallel::ExpertOrder found;
    if (backend_.computes()) {
        found = parallel::order_by_expert(round.choices, group_.choices, experts);
    } else {
        for (std::int64_t e = 0; e <= experts.size(); ++e)
            found.begin.push_back(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) *
                                  group_.choices * e / group_.experts);
    }
    const std::int64_t n = found.begin.back();
    Sorted& order = dispatched.order;
    order.begin = std::move(found.begin);
    // The arrays of the host are gone before they are read.
    order.row = scratch.allocate(DType::i32, {n});
    order.slot = scratch.allocate(DType::i32, {n});
    order.position = scratch.allocate(DType::i32, {round.rows, group_.choices});
    backend_.upload(found.row.data(), order.row);
    backend_.upload(found.slot.data(), order.slot);
    backend_.upload(found.position.data(), order.position);
    return dispatched;
}

void ExpertBlock::reserve_margin(const Dispatched& dispatched, std::span<const std::int64_t> rows,
                                 bool backward, backend::Arena& scratch) const {
    if (backend_.computes()) return;
    const parallel::ExpertLimits limits = parallel::expert_limits(group_, rows);
    const std::int64_t places = group_.most_receivers(), k = group_.choices;
    const auto type = static_cast<std::int64_t>(size_of(type_)),
               wide = static_cast<std::int64_t>(size_of(accumulate_));
    // What dispatch_round(), dispatch(), combine() and run() or run_backward() allocate for a row sent or
    // forwarded, a row received, a choice, and a row that the first of two hops brings.
    const std::int64_t of_sent = spec_.width * type + 4 + k * wide,
                       of_received = (backward ? 3 : 2) * spec_.width * type + k * (4 + 2 * wide) + 4,
                       of_choice = (backward ? 2 * spec_.width + 6 * mlp_ : spec_.width + 3 * mlp_) * type +
                                   2 * wide + 8,
                       of_landed = of_sent + 4 * (places + 1);
    const auto beyond = [](std::int64_t most, std::int64_t assumed) {
        return std::max<std::int64_t>(most - assumed, 0);
    };
    const parallel::ExpertExchange::Round& round = dispatched.round;
    const std::int64_t local = round.first.place.dim(0);
    std::int64_t bytes = beyond(local * places, round.first.buffer.dim(0)) * of_sent +
                         beyond(limits.rows, round.received()) * of_received +
                         beyond(limits.choices, dispatched.order.row.size()) * of_choice;
    if (round.round->second)
        bytes += beyond(limits.rows + limits.crossing, round.landed.dim(0)) * of_landed +
                 beyond(limits.forwarded, round.second.buffer.dim(0)) * of_sent;
    constexpr std::int64_t kPadding = 48 * 64;  // up to 48 tensors, each of whose sizes is rounded up
    scratch.allocate(DType::u8, {bytes + kPadding});
}

void ExpertBlock::forward_in_rounds(const ExpertBlockActivations& a, const Tensor& output,
                                    std::span<const std::int64_t> rows, backend::Arena& scratch) const {
    a.host->rounds = exchange_.plan(a.choice, rows, scratch);
    for (std::size_t i = 0; i < a.host->rounds.size(); ++i) {
        const backend::ArenaScope scope(scratch);
        const Dispatched dispatched = dispatch_round(a, i, rows, scratch);
        reserve_margin(dispatched, rows, false, scratch);
        const std::int64_t n = dispatched.order.row.size();
        const Tensor x = exchange_.dispatch(a.normed, dispatched.round, scratch),
                     sum = scratch.allocate(type_, {x.dim(0), spec_.width}),
                     hidden = scratch.allocate(type_, {n, 2 * mlp_}),
                     activated = scratch.allocate(type_, {n, mlp_});
        {
            const backend::Backend::FullestExperts fullest(backend_);
            run(x, dispatched.weights, dispatched.order, hidden, activated, sum, false, scratch);
        }
        exchange_.combine(sum, dispatched.round, output, scratch);
    }
}

void ExpertBlock::backward_in_rounds(const ExpertBlockActivations& a, const Tensor& normed,
                                     const Tensor& d_stream, std::span<const std::int64_t> rows,
                                     const Tensor& d_normed, const Tensor& d_weight,
                                     backend::Arena& scratch) const {
    for (std::size_t i = 0; i < a.host->rounds.size(); ++i) {
        const backend::ArenaScope scope(scratch);
        const Dispatched dispatched = dispatch_round(a, i, rows, scratch);
        reserve_margin(dispatched, rows, true, scratch);
        const Tensor x = exchange_.dispatch(normed, dispatched.round, scratch),
                     d_sum = exchange_.dispatch(d_stream, dispatched.round, scratch),
                     dx = scratch.allocate(type_, {x.dim(0), spec_.width}),
                     d_weights = scratch.allocate(accumulate_, {x.dim(0), group_.choices});
        ops::zero(backend_, d_weights);  // of the experts of other ranks
        {
            const backend::Backend::FullestExperts fullest(backend_);
            run_backward(x, dispatched.weights, dispatched.order, {}, {}, d_sum, dx, d_weights, scratch);
        }
        exchange_.combine(dx, dispatched.round, d_normed, scratch);
        exchange_.combine(d_weights, dispatched.round, d_weight, scratch);
    }
}

}  // namespace maestro::model
