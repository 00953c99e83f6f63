#include "parallel/expert_dispatch.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

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

int ExpertGroup::first_receiver(int from, int to) const {
    if (!by_nodes() || nodes.of(from) == nodes.of(to)) return to;
    return nodes.proxy(nodes.of(to), from);
}

double ExpertGroup::share_of(int experts_there) const {
    double none = 1;  // C(E - there, k) / C(E, k)
    for (int i = 0; i < experts_there; ++i)
        none *= static_cast<double>(std::max(experts - choices - i, 0)) / (experts - i);
    return 1 - none;
}

double ExpertGroup::share_of_node(int node) const {
    std::set<int>
        parts;  // of the experts, of which several ranks of the node may have a part of the channels
    for (const int r : nodes.on(node)) parts.insert(r / degrees.etp);
    return share_of(static_cast<int>(parts.size()) * (experts / degrees.ep));
}

namespace {

std::int64_t sum(std::span<const std::int64_t> counts) {
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// Returns the rows of other nodes for which this rank is the proxy on its node, if all cross.
std::int64_t proxied_rows(const ExpertGroup& group, std::span<const std::int64_t> rows, int proxy) {
    std::int64_t total = 0;
    for (const int rank : group.nodes.shards_of_proxy(proxy))
        if (rank != proxy) total += rows[static_cast<std::size_t>(rank)];
    return total;
}

}  // namespace

ExpertLimits expert_limits(const ExpertGroup& group, std::span<const std::int64_t> rows) {
    const auto with_margin = [](double mean) {
        return static_cast<std::int64_t>(std::ceil(1.25 * mean + 4 * std::sqrt(mean)));
    };
    const std::int64_t total = sum(rows);
    const auto all = static_cast<double>(total);
    const std::int64_t most = std::min(group.choices, group.experts / group.degrees.ep);  // of one row
    ExpertLimits limits;
    limits.rows = std::clamp(with_margin(all * group.share_of_rows()), std::int64_t{1},
                             std::max(total, std::int64_t{1}));
    limits.choices = std::clamp(with_margin(all * group.choices / group.degrees.ep), most,
                                std::max(limits.rows * most, most));
    if (!group.by_nodes()) return limits;
    limits.crossing = limits.forwarded = 1;
    for (int proxy = 0; proxy < group.nodes.ranks(); ++proxy) {
        const int node = group.nodes.of(proxy);
        const std::int64_t proxied = proxied_rows(group, rows, proxy),
                           others = std::ssize(group.nodes.on(node)) - 1,
                           receivers = std::min<std::int64_t>(others, group.choices * group.degrees.etp);
        const auto crossing = static_cast<double>(proxied);
        limits.crossing =
            std::max(limits.crossing, std::min(proxied, with_margin(crossing * group.share_of_node(node))));
        limits.forwarded =
            std::max({limits.forwarded, receivers,
                      std::min(proxied * receivers,
                               with_margin(crossing * static_cast<double>(others) * group.share_of_rows()))});
    }
    return limits;
}

std::int64_t ExpertHop::rows_sent() const {
    return sum(send_rows);
}
std::int64_t ExpertHop::rows_received() const {
    return sum(receive_rows);
}

namespace {

/// What this rank knows of a round while rows are added to it.
struct RoundDraft {
    explicit RoundDraft(std::size_t ranks)
        : first_sent(ranks),
          second_sent(ranks),
          second_received(ranks),
          first_receive_rows(ranks, 0),
          arrived(0) {}
    /// By rank of the group.
    std::vector<std::vector<std::int32_t>> first_sent;       ///< rows of this rank
    std::vector<std::vector<std::int32_t>> second_sent;      ///< rows that the first hop brings
    std::vector<std::vector<std::int32_t>> second_received;  ///< rows of the group
    std::vector<std::int64_t> first_receive_rows;
    std::int64_t arrived;  ///< rows that the first hop brings
    std::vector<std::int32_t> kept,
        kept_rows;  ///< of these those that stay: their places, and rows of the group
};

/// Distributes rows over rounds, one after the other.
class RoundPlanner {
public:
    RoundPlanner(const ExpertGroup& group, const ExpertLimits& limits)
        : group_(group),
          limits_(limits),
          ranks_(static_cast<std::size_t>(group.degrees.ranks())),
          part_rows_(static_cast<std::size_t>(group.degrees.ep)),
          part_choices_(part_rows_.size()),
          crossing_(ranks_),
          forwarded_(ranks_),
          chosen_(part_rows_.size()),
          receivers_of_(ranks_) {
        drafts_.emplace_back(ranks_);
    }

    /// Adds a row: the `local`-th of rank `source`, and the `row`-th of the group.
    void add(int source, std::int32_t local, std::int32_t row, std::span<const std::int32_t> choices) {
        route(source, choices);
        if (!fits(source)) {
            for (auto* load : {&part_rows_, &part_choices_, &crossing_, &forwarded_})
                std::fill(load->begin(), load->end(), 0);
            drafts_.emplace_back(ranks_);
        }
        for (std::size_t part = 0; part < chosen_.size(); ++part) {
            part_rows_[part] += chosen_[part] > 0;
            part_choices_[part] += chosen_[part];
        }
        RoundDraft& draft = drafts_.back();
        for (const int first : firsts_) {
            const auto at = static_cast<std::size_t>(first);
            if (crosses(source, first)) {
                ++crossing_[at];
                forwarded_[at] += forwards(first);
            }
            if (source == group_.rank) draft.first_sent[at].push_back(local);
            if (first == group_.rank) arrive(draft, source, row);
            const std::vector<int>& receivers = receivers_of_[at];
            if (first != group_.rank &&
                std::find(receivers.begin(), receivers.end(), group_.rank) != receivers.end())
                draft.second_received[at].push_back(row);
        }
    }

    std::vector<ExpertRound> rounds(std::int64_t local_rows) const {
        std::vector<ExpertRound> rounds;
        for (const RoundDraft& draft : drafts_) {
            ExpertRound& round = rounds.emplace_back();
            round.first = hop(draft.first_sent, local_rows);
            round.first.receive_rows = draft.first_receive_rows;
            round.received = draft.kept_rows;
            if (group_.by_nodes()) {
                round.second = hop(draft.second_sent, draft.arrived);
                round.kept = draft.kept;
                round.kept_place.assign(static_cast<std::size_t>(draft.arrived), -1);
                for (std::size_t i = 0; i < draft.kept.size(); ++i)
                    round.kept_place[static_cast<std::size_t>(draft.kept[i])] = static_cast<std::int32_t>(i);
                for (const std::vector<std::int32_t>& rows : draft.second_received) {
                    round.second->receive_rows.push_back(std::ssize(rows));
                    round.received.insert(round.received.end(), rows.begin(), rows.end());
                }
            }
            round.rows = std::ssize(round.received);
        }
        return rounds;
    }

private:
    bool crosses(int source, int first) const {
        return group_.by_nodes() && group_.nodes.of(source) != group_.nodes.of(first);
    }
    /// To how many other ranks `first` forwards the present row.
    std::int64_t forwards(int first) const {
        const std::vector<int>& receivers = receivers_of_[static_cast<std::size_t>(first)];
        return std::ssize(receivers) - std::count(receivers.begin(), receivers.end(), first);
    }
    /// Finds out who gets the present row.
    void route(int source, std::span<const std::int32_t> choices) {
        for (const int first : firsts_) receivers_of_[static_cast<std::size_t>(first)].clear();
        firsts_.clear();
        std::fill(chosen_.begin(), chosen_.end(), 0);
        const int etp = group_.degrees.etp;
        for (const std::int32_t expert : choices) {
            MAESTRO_CHECK(expert >= 0 && expert < group_.experts, "expert {} of {}", expert, group_.experts);
            const int part = expert / (group_.experts / group_.degrees.ep);
            if (++chosen_[static_cast<std::size_t>(part)] > 1) continue;  // its ranks get the row already
            for (int to = part * etp; to < (part + 1) * etp; ++to) {
                const int first = group_.first_receiver(source, to);
                std::vector<int>& receivers = receivers_of_[static_cast<std::size_t>(first)];
                if (receivers.empty()) firsts_.push_back(first);
                receivers.push_back(to);
            }
        }
    }
    bool fits(int source) const {
        for (std::size_t part = 0; part < chosen_.size(); ++part)
            if (chosen_[part] > 0 && (part_rows_[part] + 1 > limits_.rows ||
                                      part_choices_[part] + chosen_[part] > limits_.choices))
                return false;
        return std::none_of(firsts_.begin(), firsts_.end(), [&](int first) {
            const auto at = static_cast<std::size_t>(first);
            return crosses(source, first) && (crossing_[at] + 1 > limits_.crossing ||
                                              forwarded_[at] + forwards(first) > limits_.forwarded);
        });
    }
    /// The present row comes here in the first hop.
    void arrive(RoundDraft& draft, int source, std::int32_t row) const {
        const auto place = static_cast<std::int32_t>(draft.arrived++);
        ++draft.first_receive_rows[static_cast<std::size_t>(source)];
        for (const int to : receivers_of_[static_cast<std::size_t>(group_.rank)])
            if (to == group_.rank) {
                draft.kept.push_back(place);
                draft.kept_rows.push_back(row);
            } else {
                draft.second_sent[static_cast<std::size_t>(to)].push_back(place);
            }
    }
    /// A hop without what this rank receives.
    ExpertHop hop(const std::vector<std::vector<std::int32_t>>& sent, std::int64_t rows) const {
        ExpertHop hop;
        hop.place.assign(static_cast<std::size_t>(rows) * ranks_, -1);
        for (std::size_t to = 0; to < ranks_; ++to) {
            hop.send_rows.push_back(std::ssize(sent[to]));
            for (const std::int32_t row : sent[to]) {
                hop.place[static_cast<std::size_t>(row) * ranks_ + to] =
                    static_cast<std::int32_t>(hop.sent.size());
                hop.sent.push_back(row);
            }
        }
        return hop;
    }

    const ExpertGroup& group_;
    const ExpertLimits& limits_;
    std::size_t ranks_;
    // Of the round that is being filled, by part of the experts or by rank.
    std::vector<std::int64_t> part_rows_, part_choices_, crossing_, forwarded_;
    // Of the present row: choices by part of the experts; to which ranks it goes first, and from each of them
    // to which.
    std::vector<std::int64_t> chosen_;
    std::vector<int> firsts_;
    std::vector<std::vector<int>> receivers_of_;
    std::vector<RoundDraft> drafts_;
};

}  // namespace

std::vector<ExpertRound> plan_expert_rounds(const ExpertGroup& group, std::span<const std::int64_t> rows,
                                            std::span<const std::int32_t> choice,
                                            const ExpertLimits& limits) {
    const auto k = static_cast<std::size_t>(group.choices);
    MAESTRO_CHECK(
        std::ssize(rows) == group.degrees.ranks() && choice.size() == k * static_cast<std::size_t>(sum(rows)),
        "{} choices of the rows of {} ranks", choice.size(), rows.size());
    RoundPlanner planner(group, limits);
    std::size_t row = 0;
    for (std::size_t source = 0; source < rows.size(); ++source)
        for (std::int64_t local = 0; local < rows[source]; ++local, ++row)
            planner.add(static_cast<int>(source), static_cast<std::int32_t>(local),
                        static_cast<std::int32_t>(row), choice.subspan(row * k, k));
    return planner.rounds(rows[static_cast<std::size_t>(group.rank)]);
}

ExpertRound expected_expert_round(const ExpertGroup& group, std::span<const std::int64_t> rows) {
    const auto expected = [](std::int64_t of, double share) {
        return static_cast<std::int64_t>(std::llround(static_cast<double>(of) * share));
    };
    const double share = group.share_of_rows();
    const int here = group.rank, ranks = group.degrees.ranks();
    ExpertRound round;
    /// Rows that `from` sends to `to` in the first hop.
    const auto in_first = [&](int from, int to) -> std::int64_t {
        const std::int64_t of = rows[static_cast<std::size_t>(from)];
        if (group.first_receiver(from, to) != to) return 0;
        const bool crosses = group.by_nodes() && group.nodes.of(from) != group.nodes.of(to);
        return expected(of, crosses ? group.share_of_node(group.nodes.of(to)) : share);
    };
    for (int rank = 0; rank < ranks; ++rank) {
        round.first.send_rows.push_back(in_first(here, rank));
        round.first.receive_rows.push_back(in_first(rank, here));
    }
    round.rows = round.first.rows_received();
    if (!group.by_nodes()) return round;
    round.second.emplace();
    round.rows = expected(sum(rows), share);
    for (int rank = 0; rank < ranks; ++rank) {
        const bool other = rank != here && group.nodes.of(rank) == group.nodes.of(here);
        round.second->send_rows.push_back(other ? expected(proxied_rows(group, rows, here), share) : 0);
        round.second->receive_rows.push_back(other ? expected(proxied_rows(group, rows, rank), share) : 0);
    }
    round.rows = std::max(round.rows, round.second->rows_received());
    return round;
}

}  // namespace maestro::parallel
