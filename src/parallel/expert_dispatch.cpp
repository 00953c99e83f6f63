#include "parallel/expert_dispatch.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/narrow.hpp"

namespace maestro::parallel {

ExpertOrder order_by_expert(std::span<const std::int32_t> choice, int k, Range experts) {
    ExpertOrder order;
    narrow<std::int32_t>(choice.size(), "choices of experts by received rows");
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

/// Distributes rows over rounds, one after the other. All ranks do so with all rows of the group while their
/// devices wait, so that the time of a row counts.
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
          first_of_(ranks_),
          chosen_(part_rows_.size()),
          parts_(static_cast<std::size_t>(group.choices)),
          goes_to_(ranks_),
          forwards_(ranks_) {
        for (int expert = 0; expert < group.experts; ++expert)
            part_of_.push_back(expert / (group.experts / group.degrees.ep));
        drafts_.emplace_back(ranks_);
    }

    /// Later rows are those of rank `source`.
    void begin_source(int source) {
        source_ = source;
        for (std::size_t to = 0; to < ranks_; ++to)
            first_of_[to] = group_.first_receiver(source, static_cast<int>(to));
    }

    /// Adds a row: the `local`-th of the source, and the `row`-th of the group.
    void add(std::int32_t local, std::int32_t row, std::span<const std::int32_t> choices) {
        find_parts(choices);
        find_firsts();
        if (!fits()) {
            for (auto* load : {&part_rows_, &part_choices_, &crossing_, &forwarded_})
                std::fill(load->begin(), load->end(), 0);
            drafts_.emplace_back(ranks_);
        }
        for (const int part : parts()) {
            ++part_rows_[at(part)];
            part_choices_[at(part)] += chosen_[at(part)];
        }
        if (group_.by_nodes())
            for (const int first : firsts_) {
                if (!crosses(first)) continue;
                ++crossing_[at(first)];
                forwarded_[at(first)] += forwards_[at(first)];
            }
        RoundDraft& draft = drafts_.back();
        if (source_ == group_.rank)
            for (const int first : firsts_) draft.first_sent[at(first)].push_back(local);
        const bool for_here = chosen_[at(group_.rank / group_.degrees.etp)] > 0;
        if (group_.by_nodes() ? goes_to_[at(group_.rank)] != 0 : for_here) arrive(draft, row);
        const int first = first_of_[at(group_.rank)];
        if (for_here && first != group_.rank) draft.second_received[at(first)].push_back(row);
    }

    /// `choice`: of all rows of the group.
    std::vector<ExpertRound> rounds(std::int64_t local_rows, std::span<const std::int32_t> choice) const {
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
            round.choices.reserve(round.received.size() * static_cast<std::size_t>(group_.choices));
            for (const std::int32_t row : round.received) {
                const auto of_row = choice.begin() + std::int64_t{row} * group_.choices;
                round.choices.insert(round.choices.end(), of_row, of_row + group_.choices);
            }
        }
        return rounds;
    }

private:
    static std::size_t at(int index) { return static_cast<std::size_t>(index); }
    bool crosses(int first) const { return group_.nodes.of(source_) != group_.nodes.of(first); }
    /// Finds out which parts of the experts get the present row.
    void find_parts(std::span<const std::int32_t> choices) {
        for (const int part : parts()) chosen_[at(part)] = 0;
        parts_found_ = 0;
        for (const std::int32_t expert : choices) {
            MAESTRO_CHECK(expert >= 0 && expert < group_.experts, "expert {} of {}", expert, group_.experts);
            const int part = part_of_[at(expert)];
            parts_[parts_found_] = part;
            parts_found_ += ++chosen_[at(part)] == 1;  // without a branch, which could not be predicted
        }
    }
    /// Finds out to which ranks it goes first. Within a node only its source needs to know.
    void find_firsts() {
        for (const int first : firsts_) goes_to_[at(first)] = 0;
        firsts_.clear();
        if (!group_.by_nodes() && source_ != group_.rank) return;
        const int etp = group_.degrees.etp;
        for (const int part : parts())
            for (int to = part * etp; to < (part + 1) * etp; ++to) {
                const int first = first_of_[at(to)];
                if (!goes_to_[at(first)]) {
                    goes_to_[at(first)] = 1;
                    forwards_[at(first)] = 0;
                    firsts_.push_back(first);
                }
                forwards_[at(first)] += first != to;
            }
    }
    std::span<const int> parts() const { return {parts_.data(), parts_found_}; }
    bool fits() const {
        for (const int part : parts())
            if (part_rows_[at(part)] + 1 > limits_.rows ||
                part_choices_[at(part)] + chosen_[at(part)] > limits_.choices)
                return false;
        return !group_.by_nodes() || std::none_of(firsts_.begin(), firsts_.end(), [&](int first) {
            return crosses(first) && (crossing_[at(first)] + 1 > limits_.crossing ||
                                      forwarded_[at(first)] + forwards_[at(first)] > limits_.forwarded);
        });
    }
    /// The present row comes here in the first hop.
    void arrive(RoundDraft& draft, std::int32_t row) const {
        const auto place = narrow<std::int32_t>(draft.arrived++, "rows on their way to experts");
        ++draft.first_receive_rows[at(source_)];
        const int etp = group_.degrees.etp;
        for (const int part : parts())
            for (int to = part * etp; to < (part + 1) * etp; ++to) {
                if (first_of_[at(to)] != group_.rank) continue;
                if (to == group_.rank) {
                    draft.kept.push_back(place);
                    draft.kept_rows.push_back(row);
                } else {
                    draft.second_sent[at(to)].push_back(place);
                }
            }
    }
    /// A hop without what this rank receives.
    ExpertHop hop(const std::vector<std::vector<std::int32_t>>& sent, std::int64_t rows) const {
        ExpertHop hop;
        const auto columns = static_cast<std::size_t>(group_.most_receivers());
        hop.place.assign(static_cast<std::size_t>(rows) * columns, -1);
        std::vector<std::size_t> receivers(static_cast<std::size_t>(rows), 0);  // of each row so far
        for (std::size_t to = 0; to < ranks_; ++to) {
            hop.send_rows.push_back(std::ssize(sent[to]));
            for (const std::int32_t row : sent[to]) {
                const auto at = static_cast<std::size_t>(row);
                MAESTRO_CHECK(receivers[at] < columns, "row {} is sent to more than {} ranks", row, columns);
                hop.place[at * columns + receivers[at]++] =
                    narrow<std::int32_t>(hop.sent.size(), "rows sent to experts");
                hop.sent.push_back(row);
            }
        }
        return hop;
    }

    const ExpertGroup& group_;
    const ExpertLimits& limits_;
    std::size_t ranks_;
    std::vector<int> part_of_;  ///< of the experts: which part each belongs to
    // Of the round that is being filled, by part of the experts or by rank.
    std::vector<std::int64_t> part_rows_, part_choices_, crossing_, forwarded_;
    int source_ = 0;
    std::vector<int> first_of_;  ///< to which rank the source sends rows for each rank
    // Of the present row: choices by part of the experts, and the parts with any; whether it goes to a rank
    // first, and these ranks; to how many others each of them forwards it.
    std::vector<std::int64_t> chosen_;
    std::vector<int> parts_;
    std::size_t parts_found_ = 0;
    std::vector<char> goes_to_;
    std::vector<int> firsts_;
    std::vector<std::int64_t> forwards_;
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
    narrow<std::int32_t>(sum(rows), "rows of the ranks that share experts");
    RoundPlanner planner(group, limits);
    std::size_t row = 0;
    for (std::size_t source = 0; source < rows.size(); ++source) {
        planner.begin_source(static_cast<int>(source));
        for (std::int64_t local = 0; local < rows[source]; ++local, ++row)
            planner.add(static_cast<std::int32_t>(local), static_cast<std::int32_t>(row),
                        choice.subspan(row * k, k));
    }
    return planner.rounds(rows[static_cast<std::size_t>(group.rank)], choice);
}

ExpertHostBytes expert_host_bytes(const ExpertGroup& group, std::span<const std::int64_t> rows) {
    const ExpertLimits limits = expert_limits(group, rows);
    const std::int64_t places = group.most_receivers(), mine = rows[static_cast<std::size_t>(group.rank)];
    // Of ExpertRound: rows sent and their places, rows received and their choices.
    std::int64_t numbers = 2 * mine * places + limits.rows * (1 + group.choices);
    if (group.by_nodes()) {
        const std::int64_t landed = limits.rows + limits.crossing;
        numbers += limits.forwarded + landed * places + limits.rows + landed;
    }
    constexpr std::int64_t kNumber = sizeof(std::int32_t), kCounts = 4 * sizeof(std::int64_t);
    const std::int64_t round = numbers * kNumber + group.degrees.ranks() * kCounts;
    // Drafts of the rounds have the same numbers in vectors that have grown, up to twice as long.
    return {.round = round, .planning = sum(rows) * group.choices * kNumber + 2 * round};
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
