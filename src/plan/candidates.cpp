#include "plan/candidates.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
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

/// Whether lanes that hold whole replicas of all sections of a set, and all ranks that share experts, divide
/// their ranks.
bool lanes_fit(const std::vector<const Rated*>& rated) {
    std::int64_t lane = 1;
    for (const Rated* r : rated)
        for (const int ranks : {r->choice.layout.stage_ranks(), r->choice.layout.expert_ranks()})
            lane = std::lcm(lane, std::int64_t{ranks});
    return std::all_of(rated.begin(), rated.end(), [&](const Rated* r) {
        return r->choice.layout.dp * std::int64_t{r->choice.layout.stage_ranks()} % lane == 0;
    });
}

/// How often all micro-batches that a section has in flight are replaced by others in a step.
double rounds_of(const Rated& rated) {
    return rated.micro_batches / std::floor(rated.windows);
}

/// The rows of one set of sections.
struct Rows {
    std::vector<Row> rows;      ///< by work_s
    double left_out_s = kNone;  ///< the least work of rows that were left out, because there are too many
};

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
    const auto fits = [&](const Rated& r) { return r.choice.layout.ranks() <= ranks; };
    if (set.size() == 1) {
        const std::vector<graph::Edge>& edges = subject.scenario.graph.edges;
        const bool waits = std::any_of(edges.begin(), edges.end(), [&](const graph::Edge& e) {
            return e.from == set.front() && e.gradient;
        });
        for (const Rated& r : ratings.sections[static_cast<std::size_t>(set.front())])
            if (fits(r))
                found.rows.push_back({.work_s = r.busiest_s,
                                      .others_s = r.busiest_s,
                                      .likely_s = r.likely_s + (waits ? rounds_of(r) * r.chain_s : 0),
                                      .chain_s = r.chain_s,
                                      .likely_bytes = r.likely_bytes,
                                      .ranks = r.choice.layout.ranks(),
                                      .rated = {&r}});
        return found;
    }
    // Colocated sections have equal numbers of ranks, and in one layout more in common.
    using Key = std::pair<int, decltype(common_layout(Choice()))>;
    std::map<Key, std::vector<std::vector<const Rated*>>> alike;  // of each section
    for (std::size_t k = 0; k < set.size(); ++k)
        for (const Rated& r : ratings.sections[static_cast<std::size_t>(set[k])]) {
            if (!fits(r)) continue;
            auto& lists = alike[{r.choice.layout.ranks(),
                                 one_layout ? common_layout(r.choice) : decltype(common_layout(Choice()))()}];
            lists.resize(set.size());
            lists[k].push_back(&r);
        }
    const bool few = ratings.sections.size() <= kFewSections;
    const double most_rows = few ? 1 << 21 : 1 << 18;
    const double each = most_rows / static_cast<double>(std::max<std::size_t>(alike.size(), 1));
    const auto most =
        static_cast<std::size_t>(std::max(1.0, std::pow(each, 1.0 / static_cast<double>(set.size()))));
    const double memory = most_memory(subject.device), reserve = subject.device.libraries.reserve;
    for (auto& [key, lists] : alike) {
        if (std::any_of(lists.begin(), lists.end(), [](const auto& list) { return list.empty(); })) continue;
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
            if (chosen.size() < set.size()) {
                for (const Rated* r : lists[chosen.size()]) {
                    chosen.push_back(r);
                    self(self);
                    chosen.pop_back();
                }
                return;
            }
            if (!lanes_fit(chosen)) return;
            Row row{.ranks = key.first, .rated = chosen};
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
            if (least_bytes + more - static_cast<double>(set.size() - 1) * reserve > memory) return;
            row.others_s = row.work_s;
            row.work_s = std::max(row.work_s, busiest_s);
            row.likely_s += row.work_s;
            row.likely_bytes -= static_cast<double>(set.size() - 1) * reserve;
            found.rows.push_back(std::move(row));
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
    for (const std::vector<Row>& rows : partition.rows) {
        std::map<int, std::int64_t> by_ranks;
        for (const Row& row : rows) ++by_ranks[row.ranks];
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
    Layouts layouts{.ranks = ranks, .memory = most_memory(subject.device), .left_out_s = ratings.left_out_s};
    for (const auto& sets : partitions_of(graph)) {
        if (one_layout ? sets.size() > 1 : !keeps_colocation(subject, sets)) continue;
        Partition& partition = layouts.partitions.emplace_back();
        partition.sets = sets;
        for (const std::vector<int>& set : sets) {
            Rows rows = rows_of(subject, ratings, least, set, one_layout, ranks);
            partition.rows.push_back(std::move(rows.rows));
            layouts.left_out_s = std::min(layouts.left_out_s, rows.left_out_s);
            partition.hosts.push_back(host_in(graph, set));
        }
        layouts.count += count_of(partition, ranks);
    }
    return layouts;
}

bool keeps_colocation(const Subject& subject, const std::vector<int>& host_of) {
    std::map<int, std::vector<int>> sets;
    for (std::size_t s = 0; s < host_of.size(); ++s) sets[host_of[s]].push_back(static_cast<int>(s));
    std::vector<std::vector<int>> listed;
    for (auto& [host, set] : sets) listed.push_back(std::move(set));
    return keeps_colocation(subject, listed);
}

std::vector<Choice> Candidate::choices() const {
    std::vector<Choice> choices;
    for (const Rated* of_section : rated) choices.push_back(of_section->choice);
    return choices;
}

namespace {

/// Replica groups of a section that shares its ranks with no other.
int groups_of(const Rated& rated) {
    const graph::Layout& l = rated.choice.layout;
    return l.dp / (std::lcm(l.stage_ranks(), l.expert_ranks()) / l.stage_ranks());
}

/// 0 for one micro-batch in flight, 1 for two or three, 2 up to seven, 3 for more.
int octave_of(double windows) {
    return windows < 2 ? 0 : windows < 4 ? 1 : windows < 8 ? 2 : 3;
}

/// The rows of a set of which candidates are made: all, or by their likely times the best of each number of
/// ranks and replica groups.
std::vector<std::size_t> rows_in(const std::vector<Row>& rows, Candidates::Order order, double memory) {
    constexpr int kBest = 8;
    std::vector<std::size_t> found(rows.size());
    std::iota(found.begin(), found.end(), 0);
    if (order == Candidates::Order::bound) return found;
    std::erase_if(found, [&](std::size_t row) { return rows[row].likely_bytes > memory; });
    std::stable_sort(found.begin(), found.end(),
                     [&](std::size_t a, std::size_t b) { return rows[a].likely_s < rows[b].likely_s; });
    std::map<std::vector<int>, int> counts;
    std::erase_if(found, [&](std::size_t row) {
        std::vector<int> key{rows[row].ranks};
        // Fast choices of a section may leave no room for more micro-batches.
        for (const Rated* rated : rows[row].rated) {
            key.push_back(groups_of(*rated));
            key.push_back(octave_of(rated->windows));
        }
        return ++counts[std::move(key)] > kBest;
    });
    return found;
}

/// Whether the fanout or fan-in of each edge is whole between a set and those before it, where both are
/// sections that share no ranks. Sets without a row do not count.
bool edges_fit(const graph::SectionGraph& graph, const Partition& partition,
               const std::vector<const Row*>& rows, std::size_t set) {
    if (partition.sets[set].size() > 1) return true;
    const int section = partition.sets[set].front(), groups = groups_of(*rows[set]->rated.front());
    for (std::size_t other = 0; other < rows.size(); ++other) {
        if (other == set || rows[other] == nullptr || partition.sets[other].size() > 1) continue;
        const int with = partition.sets[other].front();
        for (const graph::Edge& e : graph.edges) {
            if (!(e.from == section && e.to == with) && !(e.from == with && e.to == section)) continue;
            const int others = groups_of(*rows[other]->rated.front());
            if (groups % others != 0 && others % groups != 0) return false;
        }
    }
    return true;
}

/// Estimates how long a section waits for those that it feeds, all of its micro-batches together. Each is in
/// flight until the other section has worked on its samples: until their backward, where both are trained.
double exchange_seconds(const Rated& from, const Rated& to, bool gradient) {
    const auto samples = [](const Rated& r) {
        return static_cast<double>(r.choice.micro_batch) * static_cast<double>(groups_of(r));
    };
    const double each = std::max(1.0, samples(from) / samples(to)),  // micro-batches for one of the first
        task_s = to.mean_s / to.micro_batches;
    return rounds_of(from) * (gradient ? to.chain_s + (each - 1) * task_s : each * task_s / 2);
}

/// Returns the candidate of these rows.
Candidate joined(const graph::SectionGraph& graph, const Partition& partition,
                 const std::vector<const Row*>& rows, std::int64_t number) {
    Candidate made{.number = number,
                   .rated = std::vector<const Rated*>(graph.sections.size()),
                   .host_of = std::vector<int>(graph.sections.size())};
    double chains_s = 0, chain_of_longest_s = 0;
    for (std::size_t k = 0; k < rows.size(); ++k) {
        const Row& row = *rows[k];
        made.ranks += row.ranks;
        made.bound_s = std::max(made.bound_s, row.work_s);
        made.others_s += row.others_s;
        chains_s += row.chain_s;
        if (k == 0 || row.likely_s > made.likely_s) {
            made.likely_s = row.likely_s;
            chain_of_longest_s = row.chain_s;
        }
        for (std::size_t i = 0; i < partition.sets[k].size(); ++i) {
            const auto section = static_cast<std::size_t>(partition.sets[k][i]);
            made.rated[section] = row.rated[i];
            made.host_of[section] = partition.hosts[k];
        }
    }
    // The set that takes longest waits for a micro-batch of the others at its beginning and end.
    made.likely_s += chains_s - chain_of_longest_s;
    double waits_s = 0;
    for (const graph::Edge& e : graph.edges) {
        const auto from = static_cast<std::size_t>(e.from), to = static_cast<std::size_t>(e.to);
        if (made.host_of[from] != made.host_of[to])
            waits_s = std::max(waits_s, exchange_seconds(*made.rated[from], *made.rated[to], e.gradient));
    }
    made.likely_s += waits_s;
    return made;
}

}  // namespace

Candidates::Candidates(const graph::SectionGraph& graph, const Layouts& layouts, Order order)
    : graph_(graph), layouts_(layouts) {
    for (std::size_t p = 0; p < layouts.partitions.size(); ++p) {
        const Partition& partition = layouts.partitions[p];
        for (std::size_t set = 0; set < partition.rows.size(); ++set)
            for (const std::size_t row : rows_in(partition.rows[set], order, layouts.memory)) {
                const Row& of_set = partition.rows[set][row];
                events_.push_back({order == Order::bound ? of_set.work_s : of_set.likely_s, p, set, row});
            }
        open_.emplace_back(partition.rows.size());
    }
    std::sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
        return std::tie(a.seconds, a.partition, a.set, a.row) <
               std::tie(b.seconds, b.partition, b.set, b.row);
    });
}

/// Combinations of a row with those of the other sets that came before it: each combination is made at the
/// last of its rows.
struct Candidates::Extension {
    static constexpr std::size_t kMostVisits = 1 << 12;
    const Partition& partition;
    const std::vector<Open>& open;
    const Event& event;
    std::vector<const Row*> rows;
    std::vector<int> least;  ///< by set: the fewest ranks of the sets from it on
    std::vector<Candidate>& candidates;
    std::size_t most = 0;    ///< of candidates
    std::size_t visits = 0;  ///< of rows, of which many may not fit each other
    bool complete = true;
};

bool Candidates::next(std::vector<Candidate>& candidates, std::size_t most) {
    const Event& event = events_[next_++];
    const Partition& partition = layouts_.partitions[event.partition];
    std::vector<Open>& open = open_[event.partition];
    const Row& row = partition.rows[event.set][event.row];
    const std::size_t sets = partition.rows.size();
    Extension extension{.partition = partition,
                        .open = open,
                        .event = event,
                        .rows = std::vector<const Row*>(sets),
                        .least = std::vector<int>(sets + 1, 0),
                        .candidates = candidates,
                        .most = candidates.size() + most};
    bool possible = true;
    for (std::size_t set = sets; set-- > 0;) {
        possible = possible && (set == event.set || !open[set].empty());
        if (!possible) break;
        extension.least[set] = extension.least[set + 1] + (set == event.set ? 0 : open[set].begin()->first);
    }
    if (possible) {
        extension.rows[event.set] = &row;
        extend(extension, 0, row.ranks);
    }
    open[event.set][row.ranks].push_back(&row);
    return extension.complete;
}

void Candidates::extend(Extension& extension, std::size_t set, int ranks) {
    if (!extension.complete) return;
    const Partition& partition = extension.partition;
    if (set == extension.rows.size()) {
        if (extension.candidates.size() == extension.most) {
            extension.complete = false;
            return;
        }
        extension.candidates.push_back(joined(graph_, partition, extension.rows, made_++));
        return;
    }
    if (set == extension.event.set) return extend(extension, set + 1, ranks);
    for (const auto& [of_rows, rows] : extension.open[set]) {
        if (ranks + of_rows + extension.least[set + 1] > layouts_.ranks) break;
        for (const Row* row : rows) {
            if (++extension.visits > Extension::kMostVisits) extension.complete = false;
            if (!extension.complete) break;
            extension.rows[set] = row;
            if (edges_fit(graph_, partition, extension.rows, set))
                extend(extension, set + 1, ranks + of_rows);
        }
    }
    extension.rows[set] = nullptr;
}

std::vector<Candidate> neighbours_of(const graph::SectionGraph& graph, const Layouts& layouts,
                                     const Candidate& candidate, std::size_t most) {
    std::vector<Candidate> found;
    // By candidate: the set that differs, and what may make it faster than it seems.
    std::vector<std::array<int, 3>> kinds;
    for (const Partition& partition : layouts.partitions) {
        // The rows of the candidate, in the partition that it has.
        std::vector<Row> present(partition.sets.size());
        bool same = true;
        for (std::size_t k = 0; k < present.size(); ++k)
            for (const int section : partition.sets[k]) {
                present[k].rated.push_back(candidate.rated[static_cast<std::size_t>(section)]);
                same = same && candidate.host_of[static_cast<std::size_t>(section)] == partition.hosts[k];
            }
        if (!same) continue;
        std::vector<const Row*> rows(present.size());
        for (std::size_t k = 0; k < present.size(); ++k) {
            const auto at = std::find_if(partition.rows[k].begin(), partition.rows[k].end(),
                                         [&](const Row& row) { return row.rated == present[k].rated; });
            if (at == partition.rows[k].end()) return found;
            rows[k] = &*at;
        }
        for (std::size_t k = 0; k < present.size(); ++k) {
            const Row* const of_candidate = rows[k];
            for (const Row& row : partition.rows[k]) {
                const auto differ =
                    std::inner_product(row.rated.begin(), row.rated.end(), of_candidate->rated.begin(), 0,
                                       std::plus<>(), std::not_equal_to<>());
                if (differ != 1 || candidate.ranks - of_candidate->ranks + row.ranks > layouts.ranks)
                    continue;
                rows[k] = &row;
                if (!edges_fit(graph, partition, rows, k)) continue;
                found.push_back(joined(graph, partition, rows, static_cast<std::int64_t>(found.size())));
                const Rated* changed = row.rated.front();
                for (std::size_t i = 0; i < row.rated.size(); ++i)
                    if (row.rated[i] != of_candidate->rated[i]) changed = row.rated[i];
                kinds.push_back(
                    {static_cast<int>(k), octave_of(changed->windows), changed->choice.micro_batch});
            }
            rows[k] = of_candidate;
        }
    }
    // Estimates know little of how sections wait for each other, so that the best of each kind come first.
    std::vector<std::size_t> order(found.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return found[a].likely_s < found[b].likely_s; });
    std::map<std::array<int, 3>, int> counts;
    std::vector<int> place(found.size());  // among those of its kind
    for (const std::size_t i : order) place[i] = counts[kinds[i]]++;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return place[a] < place[b]; });
    order.resize(std::min(order.size(), most));
    std::vector<Candidate> best;
    for (const std::size_t i : order) best.push_back(std::move(found[i]));
    return best;
}

}  // namespace maestro::plan
