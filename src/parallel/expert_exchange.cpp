#include "parallel/expert_exchange.hpp"

#include <numeric>

#include "backend/host_access.hpp"
#include "ops/expert_rows.hpp"
#include "ops/rows.hpp"

namespace maestro::parallel {

std::vector<ExpertRound> ExpertExchange::plan(const Tensor& choice, std::span<const std::int64_t> rows,
                                              backend::Arena& scratch) const {
    // All ranks need the choices of all, to know who sends what.
    const backend::ArenaScope scope(scratch);
    const std::int64_t all_rows = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    const Tensor all_choices = scratch.allocate(DType::i32, {all_rows, group_.choices});
    mesh_->ep().launch_all_gather(backend_, choice, all_choices, rows).wait();
    backend_.count(backend::HostWork{.rows = static_cast<double>(all_rows)});
    if (!backend_.computes()) return {expected_expert_round(group_, rows)};
    const backend::HostCopy copy(backend_, all_choices);
    const std::span values(copy.tensor().as<std::int32_t>(), static_cast<std::size_t>(all_choices.size()));
    return plan_expert_rounds(group_, rows, values, expert_limits(group_, rows));
}

ExpertExchange::Round ExpertExchange::describe(const ExpertRound& round, std::int64_t local_rows,
                                               backend::Arena& scratch) const {
    const std::int64_t places = group_.most_receivers();
    const auto describe_hop = [&](const ExpertHop& hop, std::int64_t rows_before) {
        const std::int64_t sent = hop.rows_sent();
        return Hop{.counts = &hop,
                   .sent = indices(hop.sent, sent, scratch),
                   .place = indices(hop.place, rows_before * places, scratch).reshape({rows_before, places}),
                   .buffer = scratch.allocate(type_, {sent, width_})};
    };
    Round described{.round = &round,
                    .first = describe_hop(round.first, local_rows),
                    .second = {},
                    .kept = {},
                    .kept_place = {},
                    .landed = {}};
    if (round.second) {
        const std::int64_t landed = round.first.rows_received();
        described.second = describe_hop(*round.second, landed);
        described.kept = indices(round.kept, round.rows - round.second->rows_received(), scratch);
        described.kept_place = indices(round.kept_place, landed, scratch).reshape({landed, 1});
        described.landed = scratch.allocate(type_, {landed, width_});
    }
    return described;
}

Tensor ExpertExchange::dispatch(const Tensor& local, const Round& round, backend::Arena& scratch) const {
    const Tensor received = scratch.allocate(local.dtype, {round.received(), local.columns()});
    const backend::ArenaScope scope(scratch);
    const auto exchange = [&](const Tensor& rows, const Hop& hop, const Tensor& to) {
        const Tensor sent = room_for(local, hop.buffer, scratch);
        ops::gather_rows(backend_, rows, hop.sent, sent);
        mesh_->ep().all_to_all(backend_, sent, hop.counts->send_rows, to, hop.counts->receive_rows);
    };
    if (!round.round->second) {
        exchange(local, round.first, received);
        return received;
    }
    const std::int64_t kept = round.kept.size();
    const Tensor landed = room_for(local, round.landed, scratch);
    exchange(local, round.first, landed);
    exchange(landed, round.second, received.slice(kept, received.dim(0)));
    ops::gather_rows(backend_, landed, round.kept, received.slice(0, kept));
    return received;
}

void ExpertExchange::combine(const Tensor& results, const Round& round, const Tensor& sum,
                             backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    /// to[...] (+)= the results that the receivers of a hop send back.
    const auto return_over = [&](const Hop& hop, const Tensor& from, const Tensor& to) {
        const Tensor back = room_for(results, hop.buffer, scratch);
        mesh_->ep().all_to_all(backend_, from, hop.counts->receive_rows, back, hop.counts->send_rows);
        ops::sum_rows(backend_, back, hop.place, to, true);
    };
    if (!round.round->second) return return_over(round.first, results, sum);
    // What the ranks of this node return for a row of another node is summed before it crosses the border.
    const Tensor landed = room_for(results, round.landed, scratch);
    const std::int64_t kept = round.kept.size();
    ops::sum_rows(backend_, results.slice(0, kept), round.kept_place, landed, false);
    return_over(round.second, results.slice(kept, results.dim(0)), landed);
    return_over(round.first, landed, sum);
}

Tensor ExpertExchange::indices(const std::vector<std::int32_t>& values, std::int64_t count,
                               backend::Arena& arena) const {
    if (backend_.computes()) return backend::to_device(backend_, values, arena);
    return backend_.shares_memory() ? Tensor(nullptr, DType::i32, {count})
                                    : arena.allocate(DType::i32, {count});
}

Tensor ExpertExchange::room_for(const Tensor& like, const Tensor& of_rows, backend::Arena& scratch) const {
    const bool rows = like.columns() == width_ && like.dtype == type_;
    return rows ? of_rows : scratch.allocate(like.dtype, {of_rows.dim(0), like.columns()});
}

}  // namespace maestro::parallel
