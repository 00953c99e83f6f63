#include "plan/candidates.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

namespace maestro::plan {

std::vector<Choice> Candidate::choices() const {
    std::vector<Choice> choices;
    for (const Rated* of_section : rated) choices.push_back(of_section->choice);
    return choices;
}

namespace {

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
        for (std::size_t k = 0; k < rows[row].rated.size(); ++k) {
            key.push_back(rows[row].groups[k]);
            key.push_back(octave_of(rows[row].rated[k]->windows));
        }
        return ++counts[std::move(key)] > kBest;
    });
    return found;
}

/// Whether edges may join the sections of a set with those of the other sets of which a row is chosen.
bool edges_fit(const graph::SectionGraph& graph, const Partition& partition,
               const std::vector<const Row*>& rows, std::size_t set) {
    for (std::size_t other = 0; other < rows.size(); ++other)
        if (other != set && rows[other] != nullptr &&
            !edges_fit(graph, partition.sets[set], *rows[set], partition.sets[other], *rows[other]))
            return false;
    return true;
}

/// A section of a candidate.
struct Joined {
    const Rated* rated = nullptr;
    int groups = 0;  ///< of replicas
};

/// Estimates how long a section waits for those that it feeds, all of its micro-batches together. Each is in
/// flight until the other section has worked on its samples: until their backward, where both are trained.
double exchange_seconds(const Joined& from, const Joined& to, bool gradient) {
    const auto samples = [](const Joined& section) {
        return static_cast<double>(section.rated->choice.micro_batch) * static_cast<double>(section.groups);
    };
    const double each = std::max(1.0, samples(from) / samples(to)),  // micro-batches for one of the first
        task_s = to.rated->mean_s / to.rated->micro_batches;
    return rounds_of(*from.rated) * (gradient ? to.rated->chain_s + (each - 1) * task_s : each * task_s / 2);
}

/// Returns the candidate of these rows.
Candidate joined(const graph::SectionGraph& graph, const Partition& partition,
                 const std::vector<const Row*>& rows, std::int64_t number) {
    Candidate made{.number = number,
                   .rated = std::vector<const Rated*>(graph.sections.size()),
                   .host_of = std::vector<int>(graph.sections.size())};
    double chains_s = 0, chain_of_longest_s = 0;
    std::vector<Joined> sections(graph.sections.size());
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
            sections[section] = {row.rated[i], row.groups[i]};
            made.host_of[section] = partition.hosts[k];
        }
    }
    // The set that takes longest waits for a micro-batch of the others at its beginning and end.
    made.likely_s += chains_s - chain_of_longest_s;
    double waits_s = 0;
    for (const graph::Edge& e : graph.edges) {
        const auto from = static_cast<std::size_t>(e.from), to = static_cast<std::size_t>(e.to);
        if (made.host_of[from] != made.host_of[to])
            waits_s = std::max(waits_s, exchange_seconds(sections[from], sections[to], e.gradient));
    }
    made.likely_s += waits_s;
    return made;
}

}  // namespace

Candidates::Candidates(const graph::SectionGraph& graph, const Layouts& layouts, Order order, double limit_s)
    : graph_(graph), layouts_(layouts) {
    std::map<const void*, std::vector<std::size_t>> known;  // by the rows of a set
    for (std::size_t p = 0; p < layouts.partitions.size(); ++p) {
        const Partition& partition = layouts.partitions[p];
        for (std::size_t set = 0; set < partition.rows.size(); ++set) {
            const std::vector<Row>& rows = *partition.rows[set];
            const auto [listed, is_new] = known.try_emplace(&rows);
            if (is_new) listed->second = rows_in(rows, order, layouts.memory);
            // In ascending order of their times.
            for (const std::size_t row : listed->second) {
                const double seconds = order == Order::bound ? rows[row].work_s : rows[row].likely_s;
                if (seconds >= limit_s) {
                    left_out_s_ = std::min(left_out_s_, seconds);
                    break;
                }
                events_.push_back({seconds, p, set, row});
            }
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
    const Row& row = (*partition.rows[event.set])[event.row];
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

std::vector<Candidate> neighbours_of(const Subject& subject, const Ratings& ratings, const Layouts& layouts,
                                     const Candidate& candidate, std::size_t most) {
    const graph::SectionGraph& graph = subject.scenario.graph;
    std::vector<Candidate> found;
    // By candidate: the set that differs, and what may make it faster than it seems.
    std::vector<std::array<int, 3>> kinds;
    for (const Partition& partition : layouts.partitions) {
        // The rows of the candidate, in the partition that it has.
        std::vector<Row> present;
        for (std::size_t k = 0; k < partition.sets.size(); ++k) {
            std::vector<const Rated*> chosen;
            bool same = true;
            for (const int section : partition.sets[k]) {
                chosen.push_back(candidate.rated[static_cast<std::size_t>(section)]);
                same = same && candidate.host_of[static_cast<std::size_t>(section)] == partition.hosts[k];
            }
            std::optional<Row> row;
            if (same) row = row_of(subject, partition.sets[k], std::move(chosen));
            if (!row) break;
            present.push_back(std::move(*row));
        }
        if (present.size() < partition.sets.size()) continue;
        std::vector<const Row*> rows;
        for (const Row& row : present) rows.push_back(&row);
        for (std::size_t k = 0; k < present.size(); ++k) {
            const Row& of_candidate = present[k];
            // Not all rows of several sections are listed.
            std::vector<Row> near;
            const bool one = partition.sets[k].size() == 1;
            if (!one) near = rows_near(subject, ratings, partition.sets[k], of_candidate, layouts.one_layout);
            for (const Row& row : one ? *partition.rows[k] : near) {
                if (row.rated == of_candidate.rated ||
                    candidate.ranks - of_candidate.ranks + row.ranks > layouts.ranks)
                    continue;
                rows[k] = &row;
                if (!edges_fit(graph, partition, rows, k)) continue;
                found.push_back(joined(graph, partition, rows, static_cast<std::int64_t>(found.size())));
                const Rated* changed = row.rated.front();
                for (std::size_t i = 0; i < row.rated.size(); ++i)
                    if (row.rated[i] != of_candidate.rated[i]) changed = row.rated[i];
                kinds.push_back(
                    {static_cast<int>(k), octave_of(changed->windows), changed->choice.micro_batch});
            }
            rows[k] = &of_candidate;
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
