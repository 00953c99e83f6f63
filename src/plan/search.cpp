#include "plan/search.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "graph/grid.hpp"
#include "plan/bound.hpp"
#include "schedule/policies/policies.hpp"
#include "schedule/problem/bounds.hpp"
#include "workload/step_tail.hpp"

namespace maestro::plan {

namespace {

/// Times that are the same but for rounding.
constexpr double kRounding = 1e-9;
/// A wavefront is seldom shorter than the same step in a quick order by this factor.
constexpr double kSlow = 1.5;

/// Choices of the sections of a set, which share ranks.
struct Row {
    double work_s = 0;    ///< of a lane, at least
    double others_s = 0;  ///< sum of the work of all sections: of equal bounds the lower comes first
    int ranks = 0;
    std::vector<const Rated*> rated;  ///< by section of the set
};

/// A way to put the sections into sets of colocated ones, with the rows of each set, by work_s.
struct Partition {
    std::vector<std::vector<int>> sets;
    std::vector<int> hosts;  ///< by set: the section whose ranks it has
    std::vector<std::vector<Row>> rows;
};

/// Choices of all sections, and the bound by which they are taken.
struct Candidate {
    double bound_s = 0, others_s = 0;
    double quick_s = 0;  ///< of its steps, planned by a policy that takes little time
    int ranks = 0;
    std::int64_t number = 0;          ///< in the order of their making: the last criterion
    std::vector<const Rated*> rated;  ///< by section
    std::vector<int> host_of;
    bool later_than(const Candidate& other) const {
        return std::tie(bound_s, others_s, ranks, number) >
               std::tie(other.bound_s, other.others_s, other.ranks, other.number);
    }
};
struct Later {
    bool operator()(const Candidate& a, const Candidate& b) const { return a.later_than(b); }
};
using Queue = std::priority_queue<Candidate, std::vector<Candidate>, Later>;
struct Slower {
    bool operator()(const Candidate& a, const Candidate& b) const {
        return std::tie(a.quick_s, a.bound_s, a.ranks, a.number) >
               std::tie(b.quick_s, b.bound_s, b.ranks, b.number);
    }
};

/// The partitions of the sections into sets. Of more than four sections: each by itself, one pair that an
/// edge joins, all together, or as in the deck.
std::vector<std::vector<std::vector<int>>> partitions_of(const graph::SectionGraph& graph) {
    const int sections = static_cast<int>(graph.sections.size());
    std::vector<std::vector<std::vector<int>>> found;
    if (sections > 4) {
        std::vector<std::vector<int>> each;
        for (int s = 0; s < sections; ++s) each.push_back({s});
        found.push_back(each);
        for (const graph::Edge& e : graph.edges) {
            std::vector<std::vector<int>> sets{{std::min(e.from, e.to), std::max(e.from, e.to)}};
            for (int s = 0; s < sections; ++s)
                if (s != e.from && s != e.to) sets.push_back({s});
            found.push_back(std::move(sets));
        }
        std::vector<int> all(static_cast<std::size_t>(sections));
        std::iota(all.begin(), all.end(), 0);
        found.push_back({all});
        std::map<std::string, std::vector<int>> of_deck;
        for (int s = 0; s < sections; ++s) {
            const graph::Section& section = graph.sections[s];
            of_deck[section.colocate_with.empty() ? section.name : section.colocate_with].push_back(s);
        }
        std::vector<std::vector<int>> sets;
        for (auto& [host, set] : of_deck) sets.push_back(std::move(set));
        std::sort(sets.begin(), sets.end());
        for (auto& others : found) std::sort(others.begin(), others.end());
        if (std::find(found.begin(), found.end(), sets) == found.end()) found.push_back(std::move(sets));
        return found;
    }
    found.emplace_back();
    for (int s = 0; s < sections; ++s) {
        std::vector<std::vector<std::vector<int>>> longer;
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
bool keeps_colocation(const Subject& subject, const std::vector<std::vector<int>>& sets) {
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

/// The rows of one set of sections.
struct Rows {
    std::vector<Row> rows;      ///< by work_s
    double left_out_s = kNone;  ///< the least work of rows that were left out, because there are too many
};

Rows rows_of(const Subject& subject, const Ratings& ratings, const std::vector<int>& set, bool one_layout,
             int ranks) {
    Rows found;
    const auto fits = [&](const Rated& r) { return r.choice.layout.ranks() <= ranks; };
    if (set.size() == 1) {
        for (const Rated& r : ratings.sections[static_cast<std::size_t>(set.front())])
            if (fits(r)) found.rows.push_back({r.busiest_s, r.busiest_s, r.choice.layout.ranks(), {&r}});
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
    constexpr double kMostRows = 1 << 21;
    const double each = kMostRows / static_cast<double>(std::max<std::size_t>(alike.size(), 1));
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
        for (auto& list : lists)
            if (list.size() > most) {
                found.left_out_s =
                    std::min(found.left_out_s, least_s - list.front()->mean_s + list[most]->mean_s);
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
            }
            if (least_bytes + more - static_cast<double>(set.size() - 1) * reserve > memory) return;
            row.others_s = row.work_s;
            row.work_s = std::max(row.work_s, busiest_s);
            found.rows.push_back(std::move(row));
        };
        extend(extend);
    }
    std::stable_sort(found.rows.begin(), found.rows.end(),
                     [](const Row& a, const Row& b) { return a.work_s < b.work_s; });
    return found;
}

/// Makes candidates in the order of their bounds: the largest work of any set.
class Candidates {
public:
    Candidates(const Subject& subject, const Ratings& ratings, const Limits& limits)
        : ranks_(limits.ranks), graph_(subject.scenario.graph) {
        for (const auto& sets : partitions_of(subject.scenario.graph)) {
            if (limits.one_layout ? sets.size() > 1 : !keeps_colocation(subject, sets)) continue;
            Partition& partition = partitions_.emplace_back();
            partition.sets = sets;
            for (const std::vector<int>& set : sets) {
                Rows rows = rows_of(subject, ratings, set, limits.one_layout, ranks_);
                partition.rows.push_back(std::move(rows.rows));
                left_out_s_ = std::min(left_out_s_, rows.left_out_s);
                partition.hosts.push_back(host_in(set));
            }
        }
        for (std::size_t p = 0; p < partitions_.size(); ++p) {
            count_ += count_of(partitions_[p]);
            for (std::size_t set = 0; set < partitions_[p].rows.size(); ++set)
                for (std::size_t row = 0; row < partitions_[p].rows[set].size(); ++row)
                    events_.push_back({partitions_[p].rows[set][row].work_s, p, set, row});
        }
        std::sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
            return std::tie(a.work_s, a.partition, a.set, a.row) <
                   std::tie(b.work_s, b.partition, b.set, b.row);
        });
        for (const Partition& partition : partitions_) open_.emplace_back(partition.rows.size(), 0);
    }

    double count() const { return count_; }
    /// No plan that was left out has a shorter step.
    double left_out_s() const { return left_out_s_; }
    /// There are no more.
    void stop() { next_ = events_.size(); }
    /// No candidate that is still to come has a smaller bound. Infinite where none is left.
    double next_bound() const { return next_ < events_.size() ? events_[next_].work_s : kNone; }
    /// Appends the candidates of the next bound.
    void next(Queue& queue) {
        const Event& event = events_[next_++];
        const Partition& partition = partitions_[event.partition];
        std::vector<const Row*> rows(partition.rows.size());
        rows[event.set] = &partition.rows[event.set][event.row];
        extend(partition, event, rows, 0, rows[event.set]->ranks, queue);
        open_[event.partition][event.set] = event.row + 1;
    }

private:
    struct Event {
        double work_s;
        std::size_t partition, set, row;
    };

    /// Counts the combinations of rows that fit the ranks.
    double count_of(const Partition& partition) const {
        std::vector<double> counts(static_cast<std::size_t>(ranks_) + 1, 0);
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
    int host_in(const std::vector<int>& set) const {
        for (const int s : set)
            for (const int host : set)
                if (graph_.sections[s].colocate_with == graph_.sections[host].name) return host;
        return set.front();
    }

    /// Whether the fanout or fan-in of each edge between sections that share no ranks is whole.
    bool edges_fit(const Partition& partition, const std::vector<const Row*>& rows) const {
        const auto groups_of = [&](int section) {
            for (std::size_t set = 0; set < partition.sets.size(); ++set)
                if (partition.sets[set].front() == section && partition.sets[set].size() == 1) {
                    const graph::Layout& l = rows[set]->rated.front()->choice.layout;
                    return l.dp / (std::lcm(l.stage_ranks(), l.expert_ranks()) / l.stage_ranks());
                }
            return 0;
        };
        for (const graph::Edge& e : graph_.edges) {
            const int from = groups_of(e.from), to = groups_of(e.to);
            if (from > 0 && to > 0 && from % to != 0 && to % from != 0) return false;
        }
        return true;
    }

    void extend(const Partition& partition, const Event& event, std::vector<const Row*>& rows,
                std::size_t set, int ranks, Queue& queue) {
        if (set == rows.size()) {
            if (!edges_fit(partition, rows)) return;
            Candidate made{.bound_s = event.work_s,
                           .ranks = ranks,
                           .number = made_++,
                           .rated = std::vector<const Rated*>(graph_.sections.size()),
                           .host_of = std::vector<int>(graph_.sections.size())};
            for (std::size_t k = 0; k < rows.size(); ++k) {
                made.others_s += rows[k]->others_s;
                for (std::size_t i = 0; i < partition.sets[k].size(); ++i) {
                    const auto section = static_cast<std::size_t>(partition.sets[k][i]);
                    made.rated[section] = rows[k]->rated[i];
                    made.host_of[section] = partition.hosts[k];
                }
            }
            queue.push(std::move(made));
            return;
        }
        if (set == event.set) return extend(partition, event, rows, set + 1, ranks, queue);
        // The rows that came before: each combination is made at the last of its rows.
        for (std::size_t row = 0; row < open_[event.partition][set]; ++row) {
            rows[set] = &partition.rows[set][row];
            if (ranks + rows[set]->ranks > ranks_) continue;
            extend(partition, event, rows, set + 1, ranks + rows[set]->ranks, queue);
        }
    }

    int ranks_;
    const graph::SectionGraph& graph_;
    std::vector<Partition> partitions_;
    std::vector<Event> events_;  ///< all rows, by their work
    std::size_t next_ = 0;
    std::vector<std::vector<std::size_t>> open_;  ///< [partition][set], rows that came before
    double count_ = 0, left_out_s_ = kNone;
    std::int64_t made_ = 0;
};

std::vector<Choice> choices_of(const Candidate& candidate) {
    std::vector<Choice> choices;
    for (const Rated* rated : candidate.rated) choices.push_back(rated->choice);
    return choices;
}

/// Returns the timeline of the k-th step, and the seconds of the step.
std::pair<schedule::Timeline, double> run_step(const Subject& subject, const workload::StepEstimate& step,
                                               const graph::SectionGraph& graph, std::size_t k,
                                               const std::string& policy) {
    const schedule::StepPlan made =
        schedule::make_plan(policy, step.problem, static_cast<std::int64_t>(k) + 1, subject.moves);
    schedule::Timeline timeline = schedule::simulate(step.problem, made, subject.dispatch);
    const double seconds = workload::running_step_seconds(step.problem, made, timeline, graph, step.ends,
                                                          step.latency_s, subject.dispatch);
    return {std::move(timeline), seconds};
}

/// Sets the plan's figures that follow from a simulated step, the k-th of all.
void simulate_step(const Subject& subject, Plan& plan, std::size_t k, const std::string& policy) {
    const workload::StepEstimate step = subject.estimate(plan.scenario, k);
    const graph::SectionGraph& graph = plan.scenario.graph;
    const auto [timeline, seconds] = run_step(subject, step, graph, k, policy);
    plan.step_s += seconds;
    plan.end_share += std::max(0.0, seconds - timeline.makespan_s);  // seconds until all steps are added
    plan.tokens += step.tokens;
    plan.busy.resize(graph.sections.size(), 0.0);
    for (const schedule::TimedTask& t : timeline.tasks) {
        const int section = graph.stages[t.task.stage].section;
        plan.busy[static_cast<std::size_t>(section)] +=
            (t.end_s - t.start_s) / graph.sections[section].lanes();
    }
    if (k > 0) return;
    const int critical = schedule::critical_stage(step.problem);
    plan.critical = graph.section_of(critical).name;
    for (const workload::StageMemory& stage : step.memory.stages) plan.windows.push_back(stage.window);
    plan.memory.assign(graph.sections.size(), 0.0);
    for (int s = 0; s < static_cast<int>(graph.stages.size()); ++s) {
        double& most = plan.memory[static_cast<std::size_t>(graph.stages[s].section)];
        most =
            std::max(most, workload::memory_of(step.memory, graph, graph::first_rank_of(graph, s)).needed());
    }
}

}  // namespace

Plan simulated(const Subject& subject, Plan plan, const std::string& policy) {
    plan.step_s = plan.tokens = plan.end_share = 0;
    plan.windows.clear();
    plan.busy.clear();
    for (std::size_t k = 0; k < subject.steps.size(); ++k) simulate_step(subject, plan, k, policy);
    for (double& busy : plan.busy) busy /= plan.step_s;
    plan.end_share /= plan.step_s;
    return plan;
}

bool keeps_colocation(const Subject& subject, const std::vector<int>& host_of) {
    std::map<int, std::vector<int>> sets;
    for (std::size_t s = 0; s < host_of.size(); ++s) sets[host_of[s]].push_back(static_cast<int>(s));
    std::vector<std::vector<int>> listed;
    for (auto& [host, set] : sets) listed.push_back(std::move(set));
    return keeps_colocation(subject, listed);
}

std::optional<Plan> plan_of(const Subject& subject, std::vector<Choice> choices, std::vector<int> host_of,
                            const std::string& policy) {
    Balance balance(subject);
    std::vector<graph::Refusal> refusals;
    Plan plan{.choices = std::move(choices), .host_of = std::move(host_of)};
    plan.scenario = balance.scenario(plan.choices, plan.host_of, refusals);
    if (!refusals.empty()) return {};
    plan.ranks = plan.scenario.graph.world;
    try {
        const workload::StepEstimate step = subject.estimate(plan.scenario, 0);
        if (!step.shortage.empty()) return {};
    } catch (const Error& error) {
        if (error.code() != ExitCode::bad_deck) throw;
        return {};
    }
    return simulated(subject, std::move(plan), policy);
}

std::pair<std::vector<Choice>, std::vector<int>> choices_of(const workload::Scenario& scenario) {
    std::vector<Choice> choices;
    std::vector<int> host_of;
    for (std::size_t s = 0; s < scenario.graph.sections.size(); ++s) {
        const graph::Section& section = scenario.graph.sections[s];
        choices.push_back({.layout = section.layout,
                           .micro_batch = section.micro_batch,
                           .recompute = scenario.tuning[s].recompute,
                           .recompute_layers = scenario.tuning[s].recompute_layers});
        int host = static_cast<int>(s);
        for (std::size_t other = 0; other < scenario.graph.sections.size(); ++other)
            if (scenario.graph.sections[other].name == section.colocate_with) host = static_cast<int>(other);
        host_of.push_back(host);
    }
    return {choices, host_of};
}

Found search(const Subject& subject, const Ratings& ratings, const Limits& limits, std::vector<Plan> known) {
    Found found{.bound_s = kNone};
    Balance balance(subject);
    Candidates candidates(subject, ratings, limits);
    found.layouts = candidates.count();
    Queue rated;    // by the work of their lanes
    Queue bounded;  // with places and memory, by a bound that knows both
    // Those whose tasks take much longer than the best plan when they are ordered by a policy that takes
    // little time: they come last.
    std::priority_queue<Candidate, std::vector<Candidate>, Slower> slow;
    const std::string quick = limits.policy == "wavefront" ? "lpt" : limits.policy;
    // The time of the best plan so far: what cannot be shorter is left out.
    const auto best_s = [&] {
        return found.plans.empty() || limits.all ? kNone : found.plans.front().step_s;
    };
    double least_lack = kNone;
    const auto keep = [&](Plan plan) {
        const auto slower = std::find_if(found.plans.begin(), found.plans.end(), [&](const Plan& other) {
            return plan.step_s < other.step_s * (1 - kRounding) ||
                   (plan.step_s < other.step_s * (1 + kRounding) && plan.ranks < other.ranks);
        });
        const bool again = std::any_of(found.plans.begin(), found.plans.end(), [&](const Plan& other) {
            return plan.choices == other.choices && plan.host_of == other.host_of;
        });
        if (again) return;
        found.plans.insert(slower, std::move(plan));
        if (!limits.all && found.plans.size() > static_cast<std::size_t>(limits.keep)) found.plans.pop_back();
    };
    for (Plan& plan : known)
        if (plan.ranks <= limits.ranks) keep(std::move(plan));
    const auto refine = [&](Candidate candidate) {
        ++found.bounded;
        std::vector<graph::Refusal> refusals;
        const workload::Scenario scenario =
            balance.scenario(choices_of(candidate), candidate.host_of, refusals);
        if (!refusals.empty()) return;
        double bound_s = 0;
        try {
            for (std::size_t k = 0; k < subject.steps.size(); ++k) {
                const workload::StepEstimate step = subject.estimate(scenario, k);
                if (!step.shortage.empty()) {
                    ++found.no_room;
                    const double most =
                        workload::memory_of(step.memory, scenario.graph,
                                            workload::max_memory_rank(step.memory, scenario.graph))
                            .needed();
                    if (most < least_lack) {
                        least_lack = found.least_memory = most;
                        found.shortage = step.shortage;
                    }
                    return;
                }
                bound_s += bound_of(step, scenario.graph);
            }
        } catch (const Error& error) {
            if (error.code() != ExitCode::bad_deck) throw;
            return;  // its micro-batches are too large to be numbered
        }
        candidate.bound_s = std::max(candidate.bound_s, bound_s * (1 - kRounding));
        bounded.push(std::move(candidate));
    };
    const auto scenario_of = [&](const Candidate& candidate) {
        std::vector<graph::Refusal> refusals;
        return balance.scenario(choices_of(candidate), candidate.host_of, refusals);
    };
    const auto filled = [&] { return found.plans.size() >= static_cast<std::size_t>(limits.keep); };
    // Plans that cannot be the best are simulated only to fill the list.
    const auto is_wanted = [&](const Candidate& candidate) {
        return candidate.bound_s < best_s() || !filled();
    };
    const auto may_simulate = [&] { return found.simulated < limits.simulated; };
    const auto simulate = [&](const Candidate& candidate) {
        Plan plan{.choices = choices_of(candidate),
                  .host_of = candidate.host_of,
                  .ranks = candidate.ranks,
                  .bound_s = candidate.bound_s,
                  .scenario = scenario_of(candidate)};
        ++found.simulated;
        keep(simulated(subject, std::move(plan), limits.policy));
    };
    while (may_simulate() && slow.size() < static_cast<std::size_t>(limits.slow)) {
        // Every candidate whose first bound is below the least second bound may still have a smaller one.
        const double least = std::min(best_s(), bounded.empty() ? kNone : bounded.top().bound_s);
        if (!rated.empty() && rated.top().bound_s < least && rated.top().bound_s <= candidates.next_bound()) {
            if (found.bounded == limits.bounded) {  // goes on with those that are bounded
                found.bound_s = rated.top().bound_s;
                rated = {};
                candidates.stop();
                continue;
            }
            Candidate candidate = rated.top();
            rated.pop();
            refine(std::move(candidate));
            continue;
        }
        if (candidates.next_bound() < least) {
            candidates.next(rated);
            continue;
        }
        if (bounded.empty() || !is_wanted(bounded.top())) break;
        Candidate candidate = bounded.top();
        bounded.pop();
        if (filled() && !limits.all) {
            const workload::Scenario scenario = scenario_of(candidate);
            const workload::StepEstimate step = subject.estimate(scenario, 0);
            candidate.quick_s = static_cast<double>(subject.steps.size()) *
                                run_step(subject, step, scenario.graph, 0, quick).second;
            if (candidate.quick_s > kSlow * best_s()) {
                slow.push(std::move(candidate));
                continue;
            }
        }
        simulate(candidate);
    }
    for (; !slow.empty() && may_simulate(); slow.pop())
        if (is_wanted(slow.top())) simulate(slow.top());
    // What was not looked at.
    for (; !slow.empty(); slow.pop()) found.bound_s = std::min(found.bound_s, slow.top().bound_s);
    for (const Queue* rest : {&rated, &bounded})
        if (!rest->empty()) found.bound_s = std::min(found.bound_s, rest->top().bound_s);
    found.bound_s = std::min(found.bound_s, candidates.next_bound());
    found.bound_s = std::min(found.bound_s, candidates.left_out_s());
    if (!found.plans.empty()) {
        const double step_s = found.plans.front().step_s;
        found.proved = found.bound_s >= step_s * (1 - kRounding);
        found.bound_s = std::min(found.bound_s, step_s);
    }
    return found;
}

}  // namespace maestro::plan
