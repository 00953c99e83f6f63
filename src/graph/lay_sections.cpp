#include "graph/lay_sections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <string>

#include "base/check.hpp"
#include "base/shard.hpp"
#include "graph/grid.hpp"

namespace maestro::graph {

namespace {

constexpr std::size_t kMaxSearched = 16;  ///< sections; the search has a state for each set of them

constexpr int kNever = std::numeric_limits<int>::max();

/// Counts the whole numbers k in [begin, end) for which k x factor - first is a multiple of `unit`.
int multiples(int begin, int end, std::int64_t factor, int first, int unit) {
    // They repeat with this period.
    const auto period = static_cast<int>(unit / std::gcd(factor, std::int64_t{unit}));
    for (int k = begin; k < std::min<std::int64_t>(end, std::int64_t{begin} + period); ++k)
        if ((k * factor - first) % unit == 0) return 1 + (end - 1 - k) / period;
    return 0;
}

/// The orders in which sections can fill the ranks that others leave, found by dynamic programming over the
/// sets of sections that are laid already (Held and Karp, 1962): they cover the lowest free ranks, and how
/// well the rest can be laid depends on nothing else.
class Orders {
public:
    /// `hosts`: the sections that are not colocated with another. Those of them that are among `fixed` have
    /// their first ranks, and do not overlap; the others are free.
    Orders(const std::vector<Section>& sections, const std::vector<int>& hosts, const std::vector<int>& fixed,
           int world, int ranks_per_node);

    /// Sets the first ranks of the free sections to those of the best order. There must be one.
    void lay(std::vector<Section>& sections) const;
    /// Returns the first ranks that a free section has in any order.
    std::set<int> first_ranks(int section) const;

private:
    using Set = std::uint32_t;  ///< of free sections
    struct Rest {
        Cuts cuts = {kNever, 0, 0};  ///< of the sections that are left; kNever: they cannot be laid
        int next = -1;               ///< which of `free_` comes first
    };

    Set all() const { return (Set{1} << free_.size()) - 1; }
    /// Returns the free ranks that follow those of the set, up to the next fixed section.
    Range gap_after(Set laid) const;
    bool fits(Set laid, std::size_t i) const {
        return (laid >> i & 1) == 0 && ranks_[i] <= gap_after(laid).size();
    }

    std::vector<int> free_, ranks_;  ///< sections, and how many ranks each has
    std::vector<Range> taken_;       ///< ascending
    int world_;
    std::vector<Rest> best_;  ///< by the set of sections that are laid
};

Orders::Orders(const std::vector<Section>& sections, const std::vector<int>& hosts,
               const std::vector<int>& fixed, int world, int ranks_per_node)
    : world_(world) {
    for (const int s : hosts) {
        const int first = sections[s].first_rank, ranks = sections[s].layout.ranks();
        if (std::find(fixed.begin(), fixed.end(), s) != fixed.end()) {
            taken_.push_back({first, first + ranks});
        } else {
            free_.push_back(s);
            ranks_.push_back(ranks);
        }
    }
    std::sort(taken_.begin(), taken_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    best_.resize(std::size_t{1} << free_.size());
    best_[all()].cuts = {};
    for (Set laid = all(); laid-- > 0;)
        for (std::size_t i = 0; i < free_.size(); ++i) {
            if (!fits(laid, i)) continue;
            Cuts cuts = best_[laid | Set{1} << i].cuts;
            if (cuts.lanes == kNever) continue;
            const auto first = static_cast<int>(gap_after(laid).begin);
            cuts += cuts_of(sections[free_[i]], first, ranks_per_node);
            if (cuts < best_[laid].cuts) best_[laid] = {cuts, static_cast<int>(i)};
        }
}

Range Orders::gap_after(Set laid) const {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < free_.size(); ++i)
        if ((laid >> i & 1) != 0) at += ranks_[i];
    for (const Range& range : taken_) {
        if (at < range.begin) return {at, range.begin};
        at += range.size();
    }
    return {at, world_};
}

void Orders::lay(std::vector<Section>& sections) const {
    for (Set laid = 0; laid != all();) {
        const int i = best_[laid].next;
        MAESTRO_CHECK(i >= 0, "no order of {} sections covers {} ranks", free_.size(), world_);
        sections[free_[i]].first_rank = static_cast<int>(gap_after(laid).begin);
        laid |= Set{1} << i;
    }
}

std::set<int> Orders::first_ranks(int section) const {
    std::vector<bool> reached(best_.size(), false);
    reached.front() = true;
    std::set<int> found;
    for (Set laid = 0; laid < all(); ++laid)
        for (std::size_t i = 0; reached[laid] && i < free_.size(); ++i) {
            const Set then = laid | Set{1} << i;
            if (!fits(laid, i) || best_[then].cuts.lanes == kNever) continue;
            reached[then] = true;
            if (free_[i] == section) found.insert(static_cast<int>(gap_after(laid).begin));
        }
    return found;
}

std::string key_of(const Section& section) {
    return fmt::format("section.{}.layout.first_rank", section.name);
}

/// Returns why the section cannot have the ranks that it has, beside those of `fixed`.
std::string conflict(const std::vector<Section>& sections, const Section& section,
                     const std::vector<int>& fixed, int world) {
    const auto end_of = [](const Section& s) { return s.first_rank + s.layout.ranks(); };
    if (end_of(section) > world) return fmt::format("the deck needs {} ranks", world);
    for (const int s : fixed)
        if (sections[s].first_rank < end_of(section) && section.first_rank < end_of(sections[s]))
            return fmt::format("'{}' has {}", sections[s].name, describe_ranks(sections[s]));
    return "the other sections cannot fill the ranks that this leaves";
}

std::string list_of(const std::set<int>& ranks) {
    constexpr std::size_t kListed = 8;
    std::vector<int> shown(ranks.begin(), ranks.end());
    if (shown.size() > kListed) shown.resize(kListed);
    return fmt::format("{}{}", fmt::join(shown, ", "), ranks.size() > kListed ? ", ..." : "");
}

/// Lays the sections whose first_rank the deck sets, one after the other, each so that those that follow can
/// still be laid. Returns them.
std::vector<int> lay_fixed(std::vector<Section>& sections, const std::vector<int>& hosts, int world,
                           std::vector<Refusal>& refusals) {
    std::vector<int> fixed;
    for (const int s : hosts) {
        Section& section = sections[s];
        if (section.layout.first_rank < 0) continue;
        const std::set<int> allowed = Orders(sections, hosts, fixed, world, 0).first_ranks(s);
        section.first_rank = section.layout.first_rank;
        if (allowed.contains(section.first_rank)) {
            fixed.push_back(s);
            continue;
        }
        refusals.push_back(
            {key_of(section), fmt::format("'{}' would have {}, but {}; allowed: {}, or -1 (laid by the grid)",
                                          section.name, describe_ranks(section),
                                          conflict(sections, section, fixed, world), list_of(allowed))});
    }
    return fixed;
}

/// Lays more sections than are searched: by the deck's numbers, or in the order of the sections, where there
/// are borders by size.
void lay_many(std::vector<Section>& sections, std::vector<int> hosts, bool borders,
              std::vector<Refusal>& refusals) {
    const auto fixed = [&](int s) { return sections[s].layout.first_rank >= 0; };
    const bool by_hand = std::any_of(hosts.begin(), hosts.end(), fixed);
    const auto missing = std::find_if_not(hosts.begin(), hosts.end(), fixed);
    if (by_hand && missing != hosts.end()) {
        refusals.push_back({key_of(sections[*missing]),
                            fmt::format("-1, but others are set; allowed where more than {} sections have "
                                        "separate ranks: a first_rank for all of them, or for none",
                                        kMaxSearched)});
        return;
    }
    std::stable_sort(hosts.begin(), hosts.end(), [&](int a, int b) {
        if (by_hand) return sections[a].layout.first_rank < sections[b].layout.first_rank;
        return borders && sections[a].layout.ranks() > sections[b].layout.ranks();
    });
    int next = 0;
    for (const int s : hosts) {
        if (by_hand && sections[s].layout.first_rank != next)
            refusals.push_back({key_of(sections[s]),
                                fmt::format("{} leaves a gap or overlaps with the sections before it, which "
                                            "have {} ranks; allowed: {}",
                                            sections[s].layout.first_rank, next, next)});
        sections[s].first_rank = next;
        next += sections[s].layout.ranks();
    }
}

}  // namespace

Cuts cuts_of(const Section& section, int first_rank, int ranks_per_node) {
    if (ranks_per_node < 1) return {};
    // Borders are multiples of ranks_per_node, in front of the rank with this number.
    const int begin = first_rank / ranks_per_node + 1,
              end = (first_rank + section.layout.ranks() - 1) / ranks_per_node + 1;
    const int borders = end - begin;
    const auto uncut = [&](int ranks) {
        return borders > 0 ? multiples(begin, end, ranks_per_node, first_rank, ranks) : 0;
    };
    return {borders - uncut(section.lane_ranks()), borders - uncut(section.layout.pp * section.lane_ranks()),
            borders};
}

void lay_sections(std::vector<Section>& sections, int world, int ranks_per_node,
                  std::vector<Refusal>& refusals) {
    std::vector<int> hosts;
    for (int s = 0; s < static_cast<int>(sections.size()); ++s)
        if (sections[s].colocate_with.empty()) hosts.push_back(s);
    if (hosts.size() > kMaxSearched)
        lay_many(sections, hosts, ranks_per_node > 0 && world > ranks_per_node, refusals);
    else
        Orders(sections, hosts, lay_fixed(sections, hosts, world, refusals), world, ranks_per_node)
            .lay(sections);
    std::sort(hosts.begin(), hosts.end(),
              [&](int a, int b) { return sections[a].first_rank < sections[b].first_rank; });
    int lane = 0;
    for (const int s : hosts) {
        sections[s].first_lane = lane;
        lane += sections[s].lanes();
    }
}

}  // namespace maestro::graph
