#include "parallel/expert_dispatch.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.hpp"

namespace maestro::parallel {

ExpertOrder order_by_expert(std::span<const std::int32_t> choice, int k, Range experts) {
    ExpertOrder order;
    const auto count = static_cast<std::size_t>(experts.size());
    order.begin.assign(count + 1, 0);
    const auto is_here = [&](std::int32_t expert) { return expert >= experts.begin && expert < experts.end; };
    for (const std::int32_t expert : choice)
        if (is_here(expert)) ++order.begin[static_cast<std::size_t>(expert - experts.begin) + 1];
    std::partial_sum(order.begin.begin(), order.begin.end(), order.begin.begin());
    order.row.resize(static_cast<std::size_t>(order.begin.back()));
    order.slot.resize(order.row.size());
    order.position.assign(choice.size(), -1);
    std::vector<std::int64_t> next(order.begin.begin(), order.begin.end() - 1);
    for (std::size_t slot = 0; slot < choice.size(); ++slot) {
        if (!is_here(choice[slot])) continue;
        const std::int64_t at = next[static_cast<std::size_t>(choice[slot] - experts.begin)]++;
        order.row[static_cast<std::size_t>(at)] = static_cast<std::int32_t>(slot) / k;
        order.slot[static_cast<std::size_t>(at)] = static_cast<std::int32_t>(slot);
        order.position[slot] = static_cast<std::int32_t>(at);
    }
    return order;
}

double ExpertGroup::share_of_rows() const {
    const int of_rank = experts / degrees.ep;
    double none = 1;  // C(E - of_rank, k) / C(E, k)
    for (int i = 0; i < of_rank; ++i)
        none *= static_cast<double>(std::max(experts - choices - i, 0)) / (experts - i);
    return 1 - none;
}

ExpertLimits expert_limits(const ExpertGroup& group, std::int64_t rows) {
    const auto with_margin = [](double mean) {
        return static_cast<std::int64_t>(std::ceil(1.25 * mean + 4 * std::sqrt(mean)));
    };
    const auto all = static_cast<double>(rows);
    const std::int64_t most = std::min(group.choices, group.experts / group.degrees.ep);  // of one row
    ExpertLimits limits;
    limits.rows = std::clamp(with_margin(all * group.share_of_rows()), std::int64_t{1},
                             std::max(rows, std::int64_t{1}));
    limits.choices = std::clamp(with_margin(all * group.choices / group.degrees.ep), most,
                                std::max(limits.rows * most, most));
    return limits;
}

std::vector<ExpertRound> plan_expert_rounds(const ExpertGroup& group, std::span<const std::int64_t> rows,
                                            std::span<const std::int32_t> choice,
                                            const ExpertLimits& limits) {
    const auto k = static_cast<std::size_t>(group.choices);
    const auto ranks = static_cast<std::size_t>(group.degrees.ranks());
    const int ep = group.degrees.ep, etp = group.degrees.etp, each = group.experts / ep;
    const auto here = static_cast<std::size_t>(group.rank);
    MAESTRO_CHECK(
        rows.size() == ranks && choice.size() == k * static_cast<std::size_t>(std::accumulate(
                                                         rows.begin(), rows.end(), std::int64_t{0})),
        "{} choices of the rows of {} ranks", choice.size(), rows.size());
    /// What one of the ep parts of the experts receives: the round that is being filled, and what is in it.
    struct Filling {
        std::size_t round = 0;
        std::int64_t rows = 0, choices = 0;
    };
    std::vector<Filling> filling(static_cast<std::size_t>(ep));
    std::vector<ExpertRound> rounds;
    // By round and part of the experts: the rows that this rank sends.
    std::vector<std::vector<std::vector<std::int32_t>>> sent;
    const auto need_round = [&](std::size_t round) {
        if (round < rounds.size()) return;
        ExpertRound& added = rounds.emplace_back();
        added.send_rows.assign(ranks, 0);
        added.receive_rows.assign(ranks, 0);
        sent.emplace_back(static_cast<std::size_t>(ep));
    };
    need_round(0);
    std::vector<std::int64_t> chosen(static_cast<std::size_t>(ep));
    std::size_t row = 0;
    for (std::size_t source = 0; source < ranks; ++source)
        for (std::int64_t local = 0; local < rows[source]; ++local, ++row) {
            std::fill(chosen.begin(), chosen.end(), 0);
            for (std::size_t j = 0; j < k; ++j) {
                const std::int32_t expert = choice[row * k + j];
                MAESTRO_CHECK(expert >= 0 && expert < group.experts, "expert {} of {}", expert,
                              group.experts);
                ++chosen[static_cast<std::size_t>(expert / each)];
            }
            for (std::size_t part = 0; part < chosen.size(); ++part) {
                if (chosen[part] == 0) continue;
                Filling& f = filling[part];
                if (f.rows + 1 > limits.rows || f.choices + chosen[part] > limits.choices)
                    f = {f.round + 1, 0, 0};
                ++f.rows;
                f.choices += chosen[part];
                need_round(f.round);
                ExpertRound& round = rounds[f.round];
                if (source == here) sent[f.round][part].push_back(static_cast<std::int32_t>(local));
                if (part == here / static_cast<std::size_t>(etp)) {
                    ++round.receive_rows[source];
                    round.received.push_back(static_cast<std::int32_t>(row));
                }
            }
        }
    for (std::size_t i = 0; i < rounds.size(); ++i) {
        ExpertRound& round = rounds[i];
        round.place.assign(static_cast<std::size_t>(rows[here]) * ranks, -1);
        for (std::size_t to = 0; to < ranks; ++to) {
            const std::vector<std::int32_t>& list = sent[i][to / static_cast<std::size_t>(etp)];
            round.send_rows[to] = static_cast<std::int64_t>(list.size());
            for (const std::int32_t r : list) {
                round.place[static_cast<std::size_t>(r) * ranks + to] =
                    static_cast<std::int32_t>(round.sent.size());
                round.sent.push_back(r);
            }
        }
    }
    return rounds;
}

}  // namespace maestro::parallel
