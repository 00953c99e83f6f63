#include "plan/search.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "graph/grid.hpp"
#include "plan/bound.hpp"

namespace maestro::plan {

namespace {

/// As many likely candidates may be looked at for each that fits into memory.
constexpr std::size_t kLookedAt = 8;

/// The samples of all steps, for each section.
double work_of(const Subject& subject) {
    double samples = 0;
    for (const std::vector<std::int64_t>& ids : subject.steps) samples += static_cast<double>(ids.size());
    return samples * static_cast<double>(subject.scenario.graph.sections.size());
}

/// Returns how many plans are looked at.
Limits within_effort(Limits limits, const Subject& subject) {
    constexpr double kAll = 3 << 20;  // work_of() all plans that are looked at for a proof
    constexpr int kLeast = 8;
    const double share = effort_of(subject);
    for (int* const count : {&limits.likely, &limits.some, &limits.neighbours})
        *count = std::max(std::min(*count, kLeast), static_cast<int>(*count * share));
    limits.bounded = std::min(limits.bounded, static_cast<int>(kAll / work_of(subject)));
    return limits;
}

class Search {
public:
    Search(const Subject& subject, const Ratings& ratings, const Limits& limits)
        : subject_(subject),
          ratings_(ratings),
          limits_(within_effort(limits, subject)),
          quick_(quick_policy(limits.policy)),
          layouts_(layouts_of(subject, ratings, limits.ranks, limits.one_layout)),
          balance_(subject) {
        found_.layouts = layouts_.count;
        found_.bound_s = layouts_.left_out_s;
    }

    Found run(std::vector<Plan> known) {
        for (Plan& plan : known) {
            if (plan.ranks > limits_.ranks) continue;
            if (const std::optional<Candidate> candidate = candidate_of(plan)) remember(*candidate, plan);
            keep(std::move(plan));
        }
        std::vector<Candidate> faster;
        if (!limits_.all) look_at_likely();
        bool all = take_faster(faster);
        if (!all) {
            improve();
            all = take_faster(faster);
        }
        if (all)
            prove(std::move(faster));
        else
            look_at_some(std::move(faster));
        if (!found_.plans.empty()) {
            const double step_s = found_.step_s = found_.plans.front().step_s;
            found_.proved = found_.bound_s >= step_s * (1 - kRounding);
            found_.bound_s = std::min(found_.bound_s, step_s);
        }
        return std::move(found_);
    }

private:
    const graph::SectionGraph& graph() const { return subject_.scenario.graph; }
    /// The time of the best plan so far: what cannot be shorter is left out.
    double best_s() const {
        return found_.plans.empty() || limits_.all ? kNone : found_.plans.front().step_s;
    }
    bool filled() const { return found_.plans.size() >= static_cast<std::size_t>(limits_.keep); }
    /// Plans that cannot be the best are simulated only to fill the list.
    bool is_wanted(const Candidate& candidate) const { return candidate.bound_s < best_s() || !filled(); }
    bool may_simulate() const { return found_.simulated < limits_.simulated; }
    void leaves(double bound_s) { found_.bound_s = std::min(found_.bound_s, bound_s); }

    workload::Scenario scenario_of(const Candidate& candidate) {
        std::vector<graph::Refusal> refusals;
        return balance_.scenario(candidate.choices(), candidate.host_of, refusals);
    }

    void keep(Plan plan) {
        if (!insert(found_.plans, std::move(plan))) return;
        if (!limits_.all && found_.plans.size() > static_cast<std::size_t>(limits_.keep))
            found_.plans.pop_back();
    }

    /// A candidate with places and memory.
    struct Refined {
        workload::Scenario scenario;
        workload::StepEstimate first_step;
    };
    /// Gives the candidate places and memory, and a bound that knows both. Returns nothing where it does not
    /// fit.
    std::optional<Refined> refine(Candidate& candidate) {
        ++found_.bounded;
        std::vector<graph::Refusal> refusals;
        Refined refined{.scenario = balance_.scenario(candidate.choices(), candidate.host_of, refusals),
                        .first_step = {}};
        if (!refusals.empty()) return {};
        const workload::Scenario& scenario = refined.scenario;
        double bound_s = 0;
        try {
            const workload::MemoryPlan memory = subject_.memory(scenario);
            if (std::string shortage = workload::shortage(memory, scenario.graph, subject_.device);
                !shortage.empty()) {
                lacks(memory, scenario.graph, std::move(shortage));
                remember_unfit(candidate, memory, scenario.graph);
                return {};
            }
            for (std::size_t k = 0; k < subject_.steps.size(); ++k) {
                workload::StepEstimate step = subject_.estimate(scenario, memory, k);
                bound_s += bound_of(step, scenario.graph);
                if (k == 0) refined.first_step = std::move(step);
            }
        } catch (const Error& error) {
            if (error.code() != ExitCode::bad_deck) throw;
            return {};  // its micro-batches are too large to be numbered
        }
        candidate.bound_s = std::max(candidate.bound_s, bound_s * (1 - kRounding));
        return refined;
    }
    void lacks(const workload::MemoryPlan& memory, const graph::SectionGraph& of, std::string shortage) {
        const double most = workload::memory_of(memory, of, workload::max_memory_rank(memory, of)).needed();
        if (found_.no_room++ > 0 && most >= found_.least_memory) return;
        found_.least_memory = most;
        found_.shortage = std::move(shortage);
    }

    /// The choices of the sections that share ranks with a section.
    static std::vector<const Rated*> set_of(const Candidate& candidate, std::size_t section) {
        std::vector<const Rated*> set;
        for (std::size_t s = 0; s < candidate.rated.size(); ++s)
            if (candidate.host_of[s] == candidate.host_of[section]) set.push_back(candidate.rated[s]);
        return set;
    }
    /// Remembers the choices on the fullest rank, which need too much memory with nearly any others.
    void remember_unfit(const Candidate& candidate, const workload::MemoryPlan& memory,
                        const graph::SectionGraph& of) {
        const int rank = workload::max_memory_rank(memory, of);
        for (std::size_t s = 0; s < of.sections.size(); ++s)
            if (graph::holds(of.sections[s], rank)) unfit_.insert(set_of(candidate, s));
    }
    bool is_likely_unfit(const Candidate& candidate) const {
        for (std::size_t s = 0; s < candidate.rated.size(); ++s)
            if (unfit_.contains(set_of(candidate, s))) return true;
        return false;
    }

    /// Estimates its time: that of a wavefront is mostly about half way between the bound and a quick order,
    /// of which the first step is simulated.
    void order_quickly(Candidate& candidate, const Refined& refined) {
        const double quick_s = static_cast<double>(subject_.steps.size()) *
                               seconds_of_step(subject_, refined.scenario, refined.first_step, 0, quick_);
        candidate.expected_s = quick_ == limits_.policy ? quick_s : (candidate.bound_s + quick_s) / 2;
    }

    void simulate(const Candidate& candidate) {
        ++found_.simulated;
        Plan plan = simulated(subject_,
                              Plan{.choices = candidate.choices(),
                                   .host_of = candidate.host_of,
                                   .ranks = candidate.ranks,
                                   .bound_s = candidate.bound_s,
                                   .scenario = scenario_of(candidate)},
                              limits_.policy);
        remember(candidate, plan);
        keep(std::move(plan));
    }

    /// Keeps it where it is the fastest of its colocation so far. Of plans whose steps end with the same
    /// section, that one is better in which the others end earlier.
    void remember(const Candidate& candidate, const Plan& plan) {
        const auto of_sets = std::find_if(best_of_.begin(), best_of_.end(), [&](const Simulated& best) {
            return best.candidate.host_of == candidate.host_of;
        });
        const Simulated simulated{candidate, plan.step_s, plan.ends_s};
        if (of_sets == best_of_.end())
            best_of_.push_back(simulated);
        else if (simulated.is_better(*of_sets))
            *of_sets = simulated;
        std::stable_sort(best_of_.begin(), best_of_.end(),
                         [](const Simulated& a, const Simulated& b) { return a.step_s < b.step_s; });
    }
    /// Returns the candidate of a plan whose choices are rated.
    std::optional<Candidate> candidate_of(const Plan& plan) const {
        Candidate candidate{.bound_s = plan.bound_s, .ranks = plan.ranks, .host_of = plan.host_of};
        for (std::size_t s = 0; s < plan.choices.size(); ++s) {
            const std::vector<Rated>& rated = ratings_.sections[s];
            const auto at = std::find_if(rated.begin(), rated.end(),
                                         [&](const Rated& r) { return r.choice == plan.choices[s]; });
            if (at == rated.end()) return {};
            candidate.rated.push_back(&*at);
        }
        return candidate;
    }

    /// Refines the candidate and lets it wait to be simulated, in the order of quick times.
    void consider(Candidate candidate) {
        if (!is_wanted(candidate) || !seen_.emplace(candidate.rated, candidate.host_of).second) return;
        const std::optional<Refined> refined = refine(candidate);
        if (!refined || !is_wanted(candidate)) return;
        if (!limits_.all) order_quickly(candidate, *refined);
        waiting_.push(std::move(candidate));
    }
    /// Simulates those that wait, up to so many of all.
    void simulate_waiting(int most) {
        for (; !waiting_.empty() && found_.simulated < std::min(most, limits_.simulated); waiting_.pop())
            if (is_wanted(waiting_.top())) simulate(waiting_.top());
    }

    /// Simulates the quickest that wait, some of each colocation.
    void simulate_first() {
        constexpr int kOfEach = 3;
        std::map<std::vector<int>, int> counts;
        ByExpected others;
        for (; !waiting_.empty() && found_.simulated < limits_.some / 2; waiting_.pop()) {
            if (++counts[waiting_.top().host_of] > kOfEach)
                others.push(waiting_.top());
            else if (is_wanted(waiting_.top()))
                simulate(waiting_.top());
        }
        for (; !waiting_.empty(); waiting_.pop()) others.push(waiting_.top());
        std::swap(waiting_, others);
    }

    void look_at_likely() {
        Candidates likely(graph(), layouts_, Candidates::Order::likely);
        // Of the combinations that the slowest of their sets makes equally likely, few are kept.
        constexpr std::size_t kOfEach = 64, kTaken = 4;
        const auto by_likely = [](const Candidate& a, const Candidate& b) {
            return std::tie(a.likely_s, a.number) < std::tie(b.likely_s, b.number);
        };
        const auto most = static_cast<std::size_t>(limits_.likely);
        for (int left = static_cast<int>(kLookedAt * most);
             left > 0 && waiting_.size() < most && likely.next_s() < kNone;) {
            std::vector<Candidate> made;
            while (made.size() < most && likely.next_s() < kNone) {
                const auto first = static_cast<std::ptrdiff_t>(made.size());
                likely.next(made, kOfEach);
                made.erase(std::remove_if(made.begin() + first, made.end(),
                                          [&](const Candidate& c) { return is_likely_unfit(c); }),
                           made.end());
                std::sort(made.begin() + first, made.end(), by_likely);
                made.resize(std::min(made.size(), static_cast<std::size_t>(first) + kTaken));
            }
            std::sort(made.begin(), made.end(), by_likely);
            for (Candidate& candidate : made) {
                if (waiting_.size() >= most) break;
                if (is_likely_unfit(candidate)) continue;
                consider(std::move(candidate));
                --left;
            }
        }
        simulate_first();
    }

    /// Improves the best plans that were found. Those in which other sections share ranks are unlike: the
    /// best of each may be far from its optimum, but not by any factor.
    void improve() {
        constexpr int kImproved = 3;
        constexpr double kFar = 1.3;
        std::vector<std::vector<int>> improved;
        const auto is_next = [&](const Simulated& best) {
            return best.step_s <= kFar * best_of_.front().step_s &&
                   std::find(improved.begin(), improved.end(), best.candidate.host_of) == improved.end();
        };
        const int most = found_.simulated + kImproved * (limits_.some / 2);
        for (int k = 0; k < kImproved; ++k) {
            const auto next = std::find_if(best_of_.begin(), best_of_.end(), is_next);
            if (next == best_of_.end()) break;
            const auto others = std::count_if(best_of_.begin(), best_of_.end(), is_next);
            improved.push_back(next->candidate.host_of);
            improve(improved.back(),
                    found_.simulated +
                        (most - found_.simulated) / std::min(kImproved - k, static_cast<int>(others)));
        }
        if (!improved.empty()) improve(std::vector<int>(best_of_.front().candidate.host_of), most);
    }

    /// Changes the choice of one section at a time, as long as that makes the best plan of this colocation
    /// faster.
    void improve(const std::vector<int>& host_of, int most_simulated) {
        constexpr int kSimulated = 10;
        const auto best = [&]() -> const Simulated& {
            return *std::find_if(best_of_.begin(), best_of_.end(), [&](const Simulated& simulated) {
                return simulated.candidate.host_of == host_of;
            });
        };
        for (std::optional<Simulated> before;
             (!before || best().is_better(*before)) && found_.simulated < most_simulated;) {
            before = best();
            const Candidate from = before->candidate;
            ByExpected others;
            std::swap(others, waiting_);
            for (Candidate& neighbour : neighbours_of(subject_, ratings_, layouts_, from,
                                                      static_cast<std::size_t>(limits_.neighbours)))
                consider(std::move(neighbour));
            simulate_waiting(std::min(most_simulated, found_.simulated + kSimulated));
            for (; !others.empty(); others.pop()) waiting_.push(others.top());
        }
    }

    /// Takes all candidates whose first bound is below the best time. Returns false where they are too many;
    /// then only those with the least bounds are there.
    bool take_faster(std::vector<Candidate>& faster) {
        faster.clear();
        Candidates by_bound(graph(), layouts_, Candidates::Order::bound, best_s());
        const std::size_t most =
            limits_.all ? static_cast<std::size_t>(-1) / 2 : static_cast<std::size_t>(limits_.bounded);
        rest_s_ = kNone;
        while (by_bound.next_s() < best_s()) {
            rest_s_ = by_bound.next_s();
            if (!by_bound.next(faster, most - faster.size())) return false;
        }
        rest_s_ = by_bound.next_s();
        return true;
    }

    /// Looks at all of these candidates, as long as they may be faster than the best plan. The sooner the
    /// best plan is found, the fewer have to be simulated: those are first that are quick.
    void prove(std::vector<Candidate> candidates) {
        leaves(rest_s_);
        for (Candidate& candidate : candidates) consider(std::move(candidate));
        for (; !waiting_.empty(); waiting_.pop()) {
            if (!is_wanted(waiting_.top())) continue;
            if (!may_simulate())
                leaves(waiting_.top().bound_s);
            else
                simulate(waiting_.top());
        }
    }

    /// Looks at some of these candidates.
    void look_at_some(std::vector<Candidate> candidates) {
        std::sort(candidates.begin(), candidates.end(),
                  [later = LaterBound()](const Candidate& a, const Candidate& b) { return later(b, a); });
        leaves(rest_s_);
        int looked_at = 0;
        for (Candidate& candidate : candidates) {
            // Where nothing has been found, all of them may be needed.
            const bool enough = looked_at++ >= limits_.likely / 4 && (filled() || !waiting_.empty());
            if (enough) {
                leaves(candidate.bound_s);
                break;
            }
            consider(std::move(candidate));
        }
        simulate_waiting(limits_.some);
        for (; !waiting_.empty(); waiting_.pop()) leaves(waiting_.top().bound_s);
    }

    double rest_s_ = kNone;  ///< no candidate that was left out has a smaller bound
    using Layout = std::pair<std::vector<const Rated*>, std::vector<int>>;
    const Subject& subject_;
    const Ratings& ratings_;
    const Limits limits_;
    std::string quick_;  ///< the policy
    Layouts layouts_;
    Balance balance_;
    Found found_;
    ByExpected waiting_;
    /// The fastest of those that were simulated here, by the sections that share ranks; the fastest first.
    struct Simulated {
        Candidate candidate;
        double step_s = 0, ends_s = 0;  ///< as of Plan
        bool is_better(const Simulated& than) const {
            if (step_s < than.step_s * (1 - kRounding)) return true;
            return step_s < than.step_s * (1 + kRounding) && ends_s < than.ends_s * (1 - kRounding);
        }
    };
    std::vector<Simulated> best_of_;
    std::set<std::vector<const Rated*>> unfit_;  ///< choices on the same ranks that did not fit into memory
    std::set<Layout> seen_;
};

}  // namespace

double effort_of(const Subject& subject) {
    constexpr double kFull = 1 << 11;  // work_of() that is worth the full effort
    return std::min(1.0, kFull / work_of(subject));
}

Found search(const Subject& subject, const Ratings& ratings, const Limits& limits, std::vector<Plan> known) {
    return Search(subject, ratings, limits).run(std::move(known));
}

}  // namespace maestro::plan
