// Experts that several ranks share: rows travel to them and back in rounds.
#include <algorithm>
#include <numeric>

#include "backend/host_access.hpp"
#include "model/expert_block.hpp"
#include "ops/elementwise.hpp"
#include "ops/expert_rows.hpp"
#include "ops/rows.hpp"

namespace maestro::model {

/// Tensors of a round that live until it ends.
struct ExpertBlock::Arrived {
    /// See parallel::ExpertHop.
    struct Hop {
        const parallel::ExpertHop* counts;
        Tensor sent, place;  ///< i32
        Tensor buffer;       ///< [sent, C], for rows on their way
    };
    const parallel::ExpertRound* round;
    Hop first, second;        ///< across nodes alone there is a second one
    Tensor kept, kept_place;  ///< i32, likewise: see parallel::ExpertRound
    Tensor landed;            ///< [rows that the first hop brings, C], likewise
    Sorted order;
    Tensor weights;  ///< [M, k], A: of the received rows
    std::int64_t received() const { return round->rows; }
};

Tensor ExpertBlock::indices(const std::vector<std::int32_t>& values, std::int64_t count,
                            backend::Arena& arena) const {
    if (backend_.computes()) return backend::to_device(backend_, values, arena);
    return backend_.shares_memory() ? Tensor(nullptr, DType::i32, {count})
                                    : arena.allocate(DType::i32, {count});
}

ExpertBlock::Arrived ExpertBlock::arrive(const ExpertBlockActivations& a, std::size_t number,
                                         std::span<const std::int64_t> rows, backend::Arena& scratch) const {
    const parallel::ExpertRound& round = a.host->rounds[number];
    const std::int64_t k = group_.choices, places = group_.most_receivers(), received = round.rows;
    const auto describe = [&](const parallel::ExpertHop& hop, std::int64_t rows_before) {
        const std::int64_t sent = hop.rows_sent();
        return Arrived::Hop{
            .counts = &hop,
            .sent = indices(hop.sent, sent, scratch),
            .place = indices(hop.place, rows_before * places, scratch).reshape({rows_before, places}),
            .buffer = scratch.allocate(type_, {sent, spec_.width})};
    };
    Arrived arrived{.round = &round,
                    .first = describe(round.first, a.input.dim(0)),
                    .second = {},
                    .kept = {},
                    .kept_place = {},
                    .landed = {},
                    .order = {},
                    .weights = {}};
    if (round.second) {
        const std::int64_t landed = round.first.rows_received();
        arrived.second = describe(*round.second, landed);
        arrived.kept = indices(round.kept, received - round.second->rows_received(), scratch);
        arrived.kept_place = indices(round.kept_place, landed, scratch).reshape({landed, 1});
        arrived.landed = scratch.allocate(type_, {landed, spec_.width});
    }
    arrived.weights = send(a.weight, arrived, scratch);
    const Range experts = group_.experts_of(group_.rank);
    parallel::ExpertOrder found;
    if (backend_.computes()) {
        found = parallel::order_by_expert(round.choices, group_.choices, experts);
    } else {
        for (std::int64_t e = 0; e <= experts.size(); ++e)
            found.begin.push_back(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) * k * e /
                                  group_.experts);
    }
    const std::int64_t n = found.begin.back();
    Sorted& order = arrived.order;
    order.begin = std::move(found.begin);
    // The arrays of the host are gone before they are read.
    order.row = scratch.allocate(DType::i32, {n});
    order.slot = scratch.allocate(DType::i32, {n});
    order.position = scratch.allocate(DType::i32, {received, k});
    backend_.upload(found.row.data(), order.row);
    backend_.upload(found.slot.data(), order.slot);
    backend_.upload(found.position.data(), order.position);
    return arrived;
}

void ExpertBlock::reserve_margin(const Arrived& arrived, std::span<const std::int64_t> rows, bool backward,
                                 backend::Arena& scratch) const {
    if (backend_.computes()) return;
    const parallel::ExpertLimits limits = parallel::expert_limits(group_, rows);
    const std::int64_t places = group_.most_receivers(), k = group_.choices;
    const auto type = static_cast<std::int64_t>(size_of(type_)),
               wide = static_cast<std::int64_t>(size_of(accumulate_));
    // What arrive(), send(), send_back() and run() or run_backward() allocate for a row sent or forwarded, a
    // row received, a choice, and a row that the first of two hops brings.
    const std::int64_t of_sent = spec_.width * type + 4 + k * wide,
                       of_received = (backward ? 3 : 2) * spec_.width * type + k * (4 + 2 * wide) + 4,
                       of_choice = (backward ? 2 * spec_.width + 6 * mlp_ : spec_.width + 3 * mlp_) * type +
                                   2 * wide + 8,
                       of_landed = of_sent + 4 * (places + 1);
    const auto beyond = [](std::int64_t most, std::int64_t assumed) {
        return std::max<std::int64_t>(most - assumed, 0);
    };
    const std::int64_t local = arrived.first.place.dim(0);
    std::int64_t bytes = beyond(local * places, arrived.first.buffer.dim(0)) * of_sent +
                         beyond(limits.rows, arrived.received()) * of_received +
                         beyond(limits.choices, arrived.order.row.size()) * of_choice;
    if (arrived.round->second)
        bytes += beyond(limits.rows + limits.crossing, arrived.landed.dim(0)) * of_landed +
                 beyond(limits.forwarded, arrived.second.buffer.dim(0)) * of_sent;
    constexpr std::int64_t kPadding = 48 * 64;  // up to 48 tensors, each of whose sizes is rounded up
    scratch.allocate(DType::u8, {bytes + kPadding});
}

Tensor ExpertBlock::send(const Tensor& local, const Arrived& arrived, backend::Arena& scratch) const {
    const Tensor received = scratch.allocate(local.dtype, {arrived.received(), local.columns()});
    const backend::ArenaScope scope(scratch);
    const auto exchange = [&](const Tensor& rows, const Arrived::Hop& hop, const Tensor& to) {
        const Tensor sent = room_for(local, hop.buffer, scratch);
        ops::gather_rows(backend_, rows, hop.sent, sent);
        mesh_->ep().all_to_all(backend_, sent, hop.counts->send_rows, to, hop.counts->receive_rows);
    };
    if (!arrived.round->second) {
        exchange(local, arrived.first, received);
        return received;
    }
    const std::int64_t kept = arrived.kept.size();
    const Tensor landed = room_for(local, arrived.landed, scratch);
    exchange(local, arrived.first, landed);
    exchange(landed, arrived.second, received.slice(kept, received.dim(0)));
    ops::gather_rows(backend_, landed, arrived.kept, received.slice(0, kept));
    return received;
}

Tensor ExpertBlock::room_for(const Tensor& like, const Tensor& of_rows, backend::Arena& scratch) const {
    const bool rows = like.columns() == spec_.width && like.dtype == type_;
    return rows ? of_rows : scratch.allocate(like.dtype, {of_rows.dim(0), like.columns()});
}

void ExpertBlock::send_back(const Tensor& results, const Arrived& arrived, const Tensor& sum,
                            backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    /// to[...] (+)= the results that the receivers of a hop send back.
    const auto return_over = [&](const Arrived::Hop& hop, const Tensor& from, const Tensor& to) {
        const Tensor back = room_for(results, hop.buffer, scratch);
        mesh_->ep().all_to_all(backend_, from, hop.counts->receive_rows, back, hop.counts->send_rows);
        ops::sum_rows(backend_, back, hop.place, to, true);
    };
    if (!arrived.round->second) return return_over(arrived.first, results, sum);
    // What the ranks of this node return for a row of another node is summed before it crosses the border.
    const Tensor landed = room_for(results, arrived.landed, scratch);
    const std::int64_t kept = arrived.kept.size();
    ops::sum_rows(backend_, results.slice(0, kept), arrived.kept_place, landed, false);
    return_over(arrived.second, results.slice(kept, results.dim(0)), landed);
    return_over(arrived.first, landed, sum);
}

void ExpertBlock::forward_in_rounds(const ExpertBlockActivations& a, const Tensor& output,
                                    std::span<const std::int64_t> rows, backend::Arena& scratch) const {
    {
        // All ranks need the choices of all, to know who sends what.
        const backend::ArenaScope scope(scratch);
        const Tensor all_choices = scratch.allocate(
            DType::i32, {std::accumulate(rows.begin(), rows.end(), std::int64_t{0}), group_.choices});
        mesh_->ep().launch_all_gather(backend_, a.choice, all_choices, rows).wait();
        if (backend_.computes()) {
            const backend::HostCopy copy(backend_, all_choices);
            const std::span values(copy.tensor().as<std::int32_t>(),
                                   static_cast<std::size_t>(all_choices.size()));
            a.host->rounds =
                parallel::plan_expert_rounds(group_, rows, values, parallel::expert_limits(group_, rows));
        } else {
            a.host->rounds.assign(1, parallel::expected_expert_round(group_, rows));
        }
    }
    for (std::size_t i = 0; i < a.host->rounds.size(); ++i) {
        const backend::ArenaScope scope(scratch);
        const Arrived arrived = arrive(a, i, rows, scratch);
        reserve_margin(arrived, rows, false, scratch);
        const std::int64_t n = arrived.order.row.size();
        const Tensor x = send(a.normed, arrived, scratch),
                     sum = scratch.allocate(type_, {x.dim(0), spec_.width}),
                     hidden = scratch.allocate(type_, {n, 2 * mlp_}),
                     activated = scratch.allocate(type_, {n, mlp_});
        run(x, arrived.weights, arrived.order, hidden, activated, sum, false, scratch);
        send_back(sum, arrived, output, scratch);
    }
}

void ExpertBlock::backward_in_rounds(const ExpertBlockActivations& a, const Tensor& normed,
                                     const Tensor& d_stream, std::span<const std::int64_t> rows,
                                     const Tensor& d_normed, const Tensor& d_weight,
                                     backend::Arena& scratch) const {
    for (std::size_t i = 0; i < a.host->rounds.size(); ++i) {
        const backend::ArenaScope scope(scratch);
        const Arrived arrived = arrive(a, i, rows, scratch);
        reserve_margin(arrived, rows, true, scratch);
        const Tensor x = send(normed, arrived, scratch), d_sum = send(d_stream, arrived, scratch),
                     dx = scratch.allocate(type_, {x.dim(0), spec_.width}),
                     d_weights = scratch.allocate(accumulate_, {x.dim(0), group_.choices});
        ops::zero(backend_, d_weights);  // of the experts of other ranks
        run_backward(x, arrived.weights, arrived.order, {}, {}, d_sum, dx, d_weights, scratch);
        send_back(dx, arrived, d_normed, scratch);
        send_back(d_weights, arrived, d_weight, scratch);
    }
}

}  // namespace maestro::model
