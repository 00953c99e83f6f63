#include "plan/layouts.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

namespace maestro::plan {

namespace {

constexpr int kFewSections = 4;  // of which all partitions into sets are tried

using Sets = std::vector<std::vector<int>>;  ///< of sections that share ranks, ascending

/// The sets of sections that edges join, of those edges that `joins` tells.
template <class Joins>
Sets joined_by(const graph::SectionGraph& graph, Joins&& joins) {
    std::vector<int> set_of(graph.sections.size());
    std::iota(set_of.begin(), set_of.end(), 0);
    for (const graph::Edge& e : graph.edges) {
        if (!joins(e)) continue;
        const int from = set_of[static_cast<std::size_t>(e.from)],
                  to = set_of[static_cast<std::size_t>(e.to)];
        std::replace(set_of.begin(), set_of.end(), std::max(from, to), std::min(from, to));
    }
    std::map<int, std::vector<int>> sets;
    for (std::size_t s = 0; s < set_of.size(); ++s) sets[set_of[s]].push_back(static_cast<int>(s));
    Sets listed;
    for (auto& [first, set] : sets) listed.push_back(std::move(set));
    return listed;
}

/// Some partitions of more sections than four: each by itself, one pair that an edge joins, all sections that
/// edges of one kind, or of any, join, all together, and as in the deck.
std::vector<Sets> some_partitions(const graph::SectionGraph& graph) {
    std::vector<Sets> found{joined_by(graph, [](const graph::Edge&) { return false; })};
    const auto add = [&](Sets sets) {
        std::sort(sets.begin(), sets.end());
        if (std::find(found.begin(), found.end(), sets) == found.end()) found.push_back(std::move(sets));
    };
    for (const graph::Edge& pair : graph.edges)
        add(joined_by(graph, [&](const graph::Edge& e) { return e.from == pair.from && e.to == pair.to; }));
    for (const EdgeTensor tensor : {EdgeTensor::embeddings, EdgeTensor::hidden})
        add(joined_by(graph, [&](const graph::Edge& e) { return e.tensor == tensor; }));
    add(joined_by(graph, [](const graph::Edge&) { return true; }));
    std::vector<int> all(graph.sections.size());
    std::iota(all.begin(), all.end(), 0);
    add({all});
    std::map<std::string, std::vector<int>> of_deck;
    for (std::size_t s = 0; s < all.size(); ++s) {
        const graph::Section& section = graph.sections[s];
        of_deck[section.colocate_with.empty() ? section.name : section.colocate_with].push_back(all[s]);
    }
    Sets sets;
    for (auto& [host, set] : of_deck) sets.push_back(std::move(set));
    add(std::move(sets));
    return found;
}

/// The partitions of the sections into sets; see layouts_of().
std::vector<Sets> partitions_of(const graph::SectionGraph& graph) {
    const int sections = static_cast<int>(graph.sections.size());
    if (sections > kFewSections) return some_partitions(graph);
    std::vector<Sets> found;
    found.emplace_back();
    for (int s = 0; s < sections; ++s) {
        std::vector<Sets> longer;
        for (const auto& sets : found) {
            for (std::size_t k = 0; k < sets.size(); ++k) {
                longer.push_back(sets);
                longer.back()[k].push_back(s);
            }
            longer.push_back(sets);
            longer.back().push_back({s});
        }
        found = std::move(longer);
    }
    return found;
}

/// Whether a partition keeps the deck's colocation of the sections in which it is fixed.
bool keeps_colocation(const Subject& subject, const Sets& sets) {
    const graph::SectionGraph& graph = subject.scenario.graph;
    const auto host_of = [&](int section) {
        const graph::Section& s = graph.sections[section];
        return s.colocate_with.empty() ? s.name : s.colocate_with;
    };
    for (std::size_t set = 0; set < sets.size(); ++set)
        for (const int s : sets[set]) {
            if (!subject.is_fixed("section." + graph.sections[s].name + ".colocate_with")) continue;
            for (std::size_t other = 0; other < sets.size(); ++other)
                for (const int o : sets[other])
                    if ((set == other) != (host_of(s) == host_of(o))) return false;
        }
    return true;
}

/// What sections in one layout have in common.
std::tuple<int, int, int, ContextKind, int, int, int> common_layout(const Choice& choice) {
    const graph::Layout& l = choice.layout;
    return {l.dp, l.tp, l.cp, l.cp_kind, l.pp, l.chunks, choice.micro_batch};
}

/// The ranks of a lane of sections that share ranks: it holds whole replicas of each, and all ranks that
/// share experts.
std::int64_t lane_of(const std::vector<const Rated*>& rated) {
    std::int64_t lane = 1;
    for (const Rated* r : rated)
        for (const int ranks : {r->choice.layout.stage_ranks(), r->choice.layout.expert_ranks()})
            lane = std::lcm(lane, std::int64_t{ranks});
    return lane;
}

/// The replica groups of a section on lanes of so many ranks. 0 where its replicas do not fill them.
int groups_of(const Rated& rated, std::int64_t lane) {
    const std::int64_t ranks = rated.choice.layout.dp * std::int64_t{rated.choice.layout.stage_ranks()};
    return ranks % lane == 0 ? static_cast<int>(ranks / lane) : 0;
}

/// Whether an edge may join sections with so many replica groups: the fanout or the fan-in is whole.
bool is_whole(int groups, int others) {
    return groups % others == 0 || others % groups == 0;
}

/// Whether an edge joins the two sections, in either direction.
bool have_edge(const graph::SectionGraph& graph, int section, int other) {
    return std::any_of(graph.edges.begin(), graph.edges.end(), [&](const graph::Edge& e) {
        return (e.from == section && e.to == other) || (e.from == other && e.to == section);
    });
}

/// The replica groups of each section of a set. Empty where the lanes do not fit its ranks, or an edge cannot
/// join two of its sections.
std::vector<int> groups_of(const graph::SectionGraph& graph, const std::vector<int>& set,
                           const std::vector<const Rated*>& rated) {
    const std::int64_t lane = lane_of(rated);
    std::vector<int> groups;
    for (const Rated* r : rated) groups.push_back(groups_of(*r, lane));
    if (std::find(groups.begin(), groups.end(), 0) != groups.end()) return {};
    for (std::size_t i = 0; i < set.size(); ++i)
        for (std::size_t k = i + 1; k < set.size(); ++k)
            if (!is_whole(groups[i], groups[k]) && have_edge(graph, set[i], set[k])) return {};
    return groups;
}

/// The memory that sections on the same ranks need once and not each.
double shared_bytes(const Subject& subject, std::size_t sections) {
    return static_cast<double>(sections - 1) * subject.device.libraries.reserve;
}

}  // namespace

double rounds_of(const Rated& rated) {
    return rated.micro_batches / std::floor(rated.windows);
}

std::optional<Row> row_of(const Subject& subject, const std::vector<int>& set,
                          std::vector<const Rated*> chosen) {
    const graph::SectionGraph& graph = subject.scenario.graph;
    std::vector<int> groups = groups_of(graph, set, chosen);
    if (groups.empty()) return {};
    Row row{.ranks = chosen.front()->choice.layout.ranks(), .groups = std::move(groups)};
    double busiest_s = 0, least_bytes = 0, more = 0;
    for (const Rated* r : chosen) {
        row.work_s += r->mean_s;
        busiest_s = std::max(busiest_s, r->busiest_s);
        least_bytes += r->least_bytes;
        more = std::max(more, r->bytes - r->least_bytes);
        row.likely_s += r->likely_s - r->busiest_s;
        row.chain_s += r->chain_s;
        row.likely_bytes += r->likely_bytes;
    }
    const double shared = shared_bytes(subject, set.size());
    if (least_bytes + more - shared > most_memory(subject.device)) return {};
    if (set.size() == 1) row.work_s = busiest_s;
    row.others_s = row.work_s;
    row.work_s = std::max(row.work_s, busiest_s);
    row.likely_s += row.work_s;
    row.likely_bytes -= shared;
    const bool waits = set.size() == 1 &&
                       std::any_of(graph.edges.begin(), graph.edges.end(),
                                   [&](const graph::Edge& e) { return e.from == set.front() && e.gradient; });
    if (waits) row.likely_s += rounds_of(*chosen.front()) * row.chain_s;
    row.rated = std::move(chosen);
    return row;
}

namespace {

/// The rows of one set of sections.
struct Rows {
    std::vector<Row> rows;      ///< by work_s
    double left_out_s = kNone;  ///< the least work of rows that were left out, because there are too many
};

/// Choices of each section of a set that have so much in common that the sections may share ranks.
using Lists = std::vector<std::vector<const Rated*>>;

/// Takes out what fits into memory beside no choice of the others.
void keep_what_fits(const Subject& subject, Lists& lists) {
    std::vector<double> least;  // bytes, by section
    for (const std::vector<const Rated*>& list : lists) {
        least.push_back(kNone);
        for (const Rated* r : list) least.back() = std::min(least.back(), r->least_bytes);
    }
    const double all = std::accumulate(least.begin(), least.end(), 0.0),
                 most = most_memory(subject.device) + shared_bytes(subject, lists.size());
    for (std::size_t k = 0; k < lists.size(); ++k)
        std::erase_if(lists[k], [&](const Rated* r) { return r->bytes + all - least[k] > most; });
}

/// By section: the least work of all ranks of any choice together.
std::vector<double> least_work(const Ratings& ratings) {
    std::vector<double> least;
    for (const std::vector<Rated>& section : ratings.sections) {
        least.push_back(section.empty() ? 0 : kNone);
        for (const Rated& r : section) least.back() = std::min(least.back(), r.rank_s);
    }
    return least;
}

/// `least`: least_work() of the ratings.
Rows rows_of(const Subject& subject, const Ratings& ratings, const std::vector<double>& least,
             const std::vector<int>& set, bool one_layout, int ranks) {
    const double all_s = std::accumulate(least.begin(), least.end(), 0.0);
    Rows found;
    if (set.size() == 1) {
        for (const Rated& r : ratings.sections[static_cast<std::size_t>(set.front())])
            if (r.choice.layout.ranks() <= ranks)
                if (std::optional<Row> row = row_of(subject, set, {&r}))
                    found.rows.push_back(std::move(*row));
        return found;
    }
    // Sections that share ranks have equal numbers of them, and in one layout more in common.
    using Key = std::pair<int, decltype(common_layout(Choice()))>;
    std::map<Key, Lists> alike;
    for (std::size_t k = 0; k < set.size(); ++k)
        for (const Rated& r : ratings.sections[static_cast<std::size_t>(set[k])]) {
            if (r.choice.layout.ranks() > ranks) continue;
            auto& lists = alike[{r.choice.layout.ranks(),
                                 one_layout ? common_layout(r.choice) : decltype(common_layout(Choice()))()}];
            lists.resize(set.size());
            lists[k].push_back(&r);
        }
    const auto lacks_any = [](const Lists& lists) {
        return std::any_of(lists.begin(), lists.end(), [](const auto& list) { return list.empty(); });
    };
    const bool few = ratings.sections.size() <= kFewSections;
    const double most_rows = few ? 1 << 21 : 1 << 18;
    const double each = most_rows / static_cast<double>(std::max<std::size_t>(alike.size(), 1));
    const auto most =
        static_cast<std::size_t>(std::max(1.0, std::pow(each, 1.0 / static_cast<double>(set.size()))));
    for (auto& [key, lists] : alike) {
        if (!lacks_any(lists)) keep_what_fits(subject, lists);
        if (lacks_any(lists)) continue;
        double least_s = 0;
        for (auto& list : lists) {
            std::stable_sort(list.begin(), list.end(),
                             [](const Rated* a, const Rated* b) { return a->mean_s < b->mean_s; });
            least_s += list.front()->mean_s;
        }
        for (std::size_t k = 0; k < set.size(); ++k) {
            std::vector<const Rated*>& list = lists[k];
            if (list.size() <= most) continue;
            // No less than the set takes, nor than all ranks work for all sections.
            const double of_set_s = least_s - list.front()->mean_s + list[most]->mean_s,
                         of_all_s = (all_s - least[static_cast<std::size_t>(set[k])] + list[most]->rank_s) /
                                    static_cast<double>(ranks);
            found.left_out_s = std::min(found.left_out_s, std::max(of_set_s, of_all_s));
            list.resize(most);
        }
        std::vector<const Rated*> chosen;
        const auto extend = [&](const auto& self) -> void {
            if (chosen.size() == set.size()) {
                if (std::optional<Row> row = row_of(subject, set, chosen))
                    found.rows.push_back(std::move(*row));
                return;
            }
            for (const Rated* r : lists[chosen.size()]) {
                chosen.push_back(r);
                self(self);
                chosen.pop_back();
            }
        };
        extend(extend);
    }
    std::stable_sort(found.rows.begin(), found.rows.end(),
                     [](const Row& a, const Row& b) { return a.work_s < b.work_s; });
    return found;
}

/// Counts the combinations of rows that fit the ranks.
double count_of(const Partition& partition, int most_ranks) {
    std::vector<double> counts(static_cast<std::size_t>(most_ranks) + 1, 0);
    counts[0] = 1;
    for (const std::shared_ptr<const std::vector<Row>>& rows : partition.rows) {
        std::map<int, std::int64_t> by_ranks;
        for (const Row& row : *rows) ++by_ranks[row.ranks];
        std::vector<double> more(counts.size(), 0);
        for (const auto& [ranks, count] : by_ranks)
            for (std::size_t used = 0; used + static_cast<std::size_t>(ranks) < counts.size(); ++used)
                more[used + static_cast<std::size_t>(ranks)] += counts[used] * static_cast<double>(count);
        counts = std::move(more);
    }
    return std::accumulate(counts.begin(), counts.end(), 0.0);
}

/// The section whose ranks a set has: the deck's, where it is one of the set, or the first.
int host_in(const graph::SectionGraph& graph, const std::vector<int>& set) {
    for (const int s : set)
        for (const int host : set)
            if (graph.sections[s].colocate_with == graph.sections[host].name) return host;
    return set.front();
}

}  // namespace

Layouts layouts_of(const Subject& subject, const Ratings& ratings, int ranks, bool one_layout) {
    const graph::SectionGraph& graph = subject.scenario.graph;
    const std::vector<double> least = least_work(ratings);
    Layouts layouts{.ranks = ranks,
                    .one_layout = one_layout,
                    .memory = most_memory(subject.device),
                    .left_out_s = ratings.left_out_s};
    std::map<std::vector<int>, std::shared_ptr<const std::vector<Row>>> known;  // by set
    for (const auto& sets : partitions_of(graph)) {
        if (one_layout ? sets.size() > 1 : !keeps_colocation(subject, sets)) continue;
        Partition& partition = layouts.partitions.emplace_back();
        partition.sets = sets;
        for (const std::vector<int>& set : sets) {
            std::shared_ptr<const std::vector<Row>>& of_set = known[set];
            if (!of_set) {
                Rows rows = rows_of(subject, ratings, least, set, one_layout, ranks);
                of_set = std::make_shared<const std::vector<Row>>(std::move(rows.rows));
                layouts.left_out_s = std::min(layouts.left_out_s, rows.left_out_s);
            }
            partition.rows.push_back(of_set);
            partition.hosts.push_back(host_in(graph, set));
        }
        layouts.count += count_of(partition, ranks);
    }
    return layouts;
}

std::vector<Row> rows_near(const Subject& subject, const Ratings& ratings, const std::vector<int>& set,
                           const Row& row, bool one_layout) {
    std::vector<Row> rows;
    std::vector<const Rated*> chosen = row.rated;
    for (std::size_t k = 0; k < set.size(); ++k) {
        for (const Rated& r : ratings.sections[static_cast<std::size_t>(set[k])]) {
            if (&r == row.rated[k] || r.choice.layout.ranks() != row.ranks) continue;
            if (one_layout && common_layout(r.choice) != common_layout(row.rated[k]->choice)) continue;
            chosen[k] = &r;
            if (std::optional<Row> near = row_of(subject, set, chosen)) rows.push_back(std::move(*near));
        }
        chosen[k] = row.rated[k];
    }
    return rows;
}

bool edges_fit(const graph::SectionGraph& graph, const std::vector<int>& set, const Row& row,
               const std::vector<int>& other_set, const Row& other) {
    for (std::size_t i = 0; i < set.size(); ++i)
        for (std::size_t k = 0; k < other_set.size(); ++k)
            if (!is_whole(row.groups[i], other.groups[k]) && have_edge(graph, set[i], other_set[k]))
                return false;
    return true;
}

bool keeps_colocation(const Subject& subject, const std::vector<int>& host_of) {
    std::map<int, std::vector<int>> sets;
    for (std::size_t s = 0; s < host_of.size(); ++s) sets[host_of[s]].push_back(static_cast<int>(s));
    std::vector<std::vector<int>> listed;
    for (auto& [host, set] : sets) listed.push_back(std::move(set));
    return keeps_colocation(subject, listed);
}

}  // namespace maestro::plan
