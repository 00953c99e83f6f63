#include "schedule/search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

namespace maestro::schedule {

namespace {

constexpr double kSame = 1e-9;  ///< relative; shorter by less is not shorter
constexpr int kOrders = 4;
constexpr int kAnnealed = 96;          ///< groups of up to so many samples are annealed
constexpr double kTemperature = 0.03;  ///< at the start, of the makespan

double at(const std::vector<double>& values, int i) {
    return values[static_cast<std::size_t>(i)];
}

Instance singly(Instance instance) {
    for (SectionShape& shape : instance.sections) {
        if (shape.loss) continue;
        shape.window *= shape.micro_batch;
        shape.micro_batch = 1;
    }
    return instance;
}

}  // namespace

bool Outcome::better_than(const Outcome& o) const {
    if (makespan_s < o.makespan_s * (1 - kSame)) return true;
    return makespan_s <= o.makespan_s * (1 + kSame) && ends_s < o.ends_s * (1 - kSame);
}

std::vector<Recipe> recipes(const std::vector<SectionShape>& sections) {
    const bool windows = std::any_of(sections.begin(), sections.end(),
                                     [](const SectionShape& s) { return !s.loss && s.window > 0; });
    std::vector<Recipe> all;
    for (const double fed : {1.0, 3.0, kNever, 0.0})
        for (int order = 0; order < kOrders; ++order)
            for (const bool fair : {false, true})
                if (windows || !fair) all.push_back({order, fed, fair});
    return all;
}

Group::Group(Instance instance, std::uint64_t seed)
    : instance_(std::move(instance)),
      single_(singly(instance_)),
      dice_(seed),
      machine_(instance_),
      single_machine_(single_),
      chooser_(machine_),
      single_chooser_(single_machine_) {
    lanes_ = instance_.shape(instance_.anchor).replicas;
    for (const SectionShape& shape : instance_.sections)
        bundles_ = bundles_ || (!shape.loss && shape.micro_batch > 1);
    upstream_.resize(instance_.sections.size());
    for (std::size_t s = 0; s < upstream_.size(); ++s)
        upstream_[s].resize(static_cast<std::size_t>(instance_.sections[s].replicas));
    measure_samples();
}

void Group::measure_samples() {
    const auto count = static_cast<std::size_t>(samples());
    own_.assign(count, 0.0);
    before_ = after_ = own_;
    for (std::size_t i = 0; i < count; ++i)
        for (int s = 0; s < static_cast<int>(instance_.sections.size()); ++s) {
            const std::size_t place = instance_.at(s, static_cast<int>(i));
            if (s == instance_.anchor) {
                own_[i] = instance_.forward[place] + instance_.backward[place];
            } else {
                before_[i] += instance_.forward[place];
                after_[i] += instance_.backward[place];
            }
        }
    mean_s_ = count > 0 ? std::accumulate(own_.begin(), own_.end(), 0.0) / static_cast<double>(count) : 0;
}

Group::Kinds Group::kinds() const {
    Kinds kinds;
    for (int i = 0; i < samples(); ++i)
        (instance_.pictured[static_cast<std::size_t>(i)] ? kinds.heavy : kinds.light).push_back(i);
    kinds.bare =
        static_cast<int>(kinds.light.size()) < lanes_ && static_cast<int>(kinds.heavy.size()) >= 3 * lanes_;
    return kinds;
}

/// First the samples with upstream work, by descending cost, each to the lane with the least of it; then the
/// rest level the lanes. Where there is not enough of the rest to cover head starts and last backwards, every
/// lane first gets one sample that is soon there and one that is soon done with.
std::vector<int> Group::spread() const {
    std::vector<int> lanes(own_.size(), 0);
    auto [heavy, light, bare] = kinds();
    const auto sort = [](auto first, auto last, auto less) { std::stable_sort(first, last, less); };
    std::vector<double> load(static_cast<std::size_t>(lanes_), 0.0);
    const auto give = [&](int i, std::size_t lane) {
        load[lane] += at(own_, i);
        lanes[static_cast<std::size_t>(i)] = static_cast<int>(lane);
    };
    auto begin = heavy.begin(), end = heavy.end();
    if (bare) {
        sort(begin, end, [&](int a, int b) { return at(before_, a) < at(before_, b); });
        for (int k = 0; k < lanes_; ++k) give(*begin++, static_cast<std::size_t>(k));
        sort(begin, end, [&](int a, int b) { return at(after_, a) > at(after_, b); });
        for (int k = 0; k < lanes_; ++k) give(*--end, static_cast<std::size_t>(k));
    }
    const auto longer = [&](int a, int b) { return at(own_, a) > at(own_, b); };
    sort(begin, end, longer);
    sort(light.begin(), light.end(), longer);
    const auto to_least = [&](int i) {
        give(i, static_cast<std::size_t>(std::min_element(load.begin(), load.end()) - load.begin()));
    };
    std::for_each(begin, end, to_least);
    std::for_each(light.begin(), light.end(), to_least);
    return lanes;
}

/// Orders to try: samples with upstream work in several ways, then the others by descending cost.
std::vector<std::vector<int>> Group::orders() const {
    auto [heavy, light, bare] = kinds();
    std::stable_sort(light.begin(), light.end(), [&](int a, int b) { return at(own_, a) > at(own_, b); });
    std::vector<std::vector<int>> all(kOrders, heavy);
    // Johnson (1954): upstream forward, then the anchor's work.
    std::stable_sort(all[0].begin(), all[0].end(), [&](int a, int b) {
        const bool short_a = at(before_, a) < at(own_, a), short_b = at(before_, b) < at(own_, b);
        if (short_a != short_b) return short_a;
        return short_a ? at(before_, a) < at(before_, b) : at(own_, a) > at(own_, b);
    });
    // Longest chain first.
    const auto chain = [&](int i) { return at(before_, i) + at(own_, i) + at(after_, i); };
    std::stable_sort(all[1].begin(), all[1].end(), [&](int a, int b) { return chain(a) > chain(b); });
    // Much that follows for little that goes before.
    const auto rest = [&](int i) { return at(own_, i) + at(after_, i) - at(before_, i); };
    std::stable_sort(all[2].begin(), all[2].end(), [&](int a, int b) { return rest(a) > rest(b); });
    // Long backwards first.
    std::stable_sort(all[3].begin(), all[3].end(),
                     [&](int a, int b) { return at(after_, a) > at(after_, b); });
    if (bare) {
        // The lanes begin with what is soon there and end with what is soon done with.
        std::vector<int> kind(own_.size(), 1);
        std::vector<int> quick = heavy;
        std::stable_sort(quick.begin(), quick.end(),
                         [&](int a, int b) { return at(before_, a) < at(before_, b); });
        for (int k = 0; k < lanes_; ++k)
            kind[static_cast<std::size_t>(quick[static_cast<std::size_t>(k)])] = 0;
        std::stable_sort(quick.begin() + lanes_, quick.end(),
                         [&](int a, int b) { return at(after_, a) < at(after_, b); });
        for (int k = 0; k < lanes_; ++k)
            kind[static_cast<std::size_t>(quick[static_cast<std::size_t>(lanes_ + k)])] = 2;
        for (auto& order : all)
            std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
                return kind[static_cast<std::size_t>(a)] < kind[static_cast<std::size_t>(b)];
            });
    }
    for (auto& order : all) order.insert(order.end(), light.begin(), light.end());
    return all;
}

std::vector<Recipe> Group::construct(const std::vector<Recipe>& recipes, double enough_s) {
    Solution candidate;
    candidate.lane = spread();
    const auto all = orders();
    std::vector<std::pair<double, std::size_t>> tried;
    // Within the tightest windows an upstream micro-batch must not wait for two of the anchor.
    for (const bool aligned : {false, true})
        for (std::size_t k = 0; k < recipes.size() && outcome_.makespan_s > enough_s; ++k) {
            if (aligned && (!bundles_ || outcome_.makespan_s < kNever)) break;
            candidate.order = all[static_cast<std::size_t>(recipes[k].order)];
            candidate.rule = {};
            candidate.rule.fed_s = recipes[k].fed * mean_s_;
            candidate.rule.fair = recipes[k].fair;
            candidate.rule.aligned = aligned;
            const Outcome outcome = execute(candidate);
            tried.emplace_back(outcome.makespan_s, k);
            if (!outcome.better_than(outcome_)) continue;
            outcome_ = outcome;
            solution_ = candidate;
        }
    std::sort(tried.begin(), tried.end());
    std::vector<Recipe> ranked;
    for (const auto& [makespan, k] : tried) ranked.push_back(recipes[k]);
    return ranked;
}

bool Group::try_solution(const Solution& solution) {
    const Outcome outcome = execute(solution);
    if (!outcome.better_than(outcome_)) return false;
    outcome_ = outcome;
    solution_ = solution;
    return true;
}

void Group::improve(std::int64_t moves, double enough_s) {
    if (samples() < 2 || outcome_.makespan_s == kNever) return;
    // Text-only samples first: that leaves the upstream sections' order alone.
    for (const bool all : {false, true})
        for (bool better = true; better && moves > 0 && outcome_.makespan_s > enough_s; --moves)
            better = level(all);
    // Annealing of small groups, descent of large ones.
    const bool anneal = samples() <= kAnnealed;
    Outcome current_outcome = outcome_;
    Solution current = solution_, best = solution_;
    Outcome best_outcome = outcome_;
    const std::int64_t all = moves;
    for (; moves > 0 && best_outcome.makespan_s > enough_s; --moves) {
        solution_ = current;
        const Solution candidate = varied(current_outcome.last_lane);
        const Outcome outcome = execute(candidate);
        const double heat = anneal ? kTemperature * best_outcome.makespan_s * static_cast<double>(moves) /
                                         static_cast<double>(all) * -std::log(1 - dice_.uniform()) * 0.3
                                   : 0;
        if (outcome.better_than(best_outcome)) {
            best = candidate;
            best_outcome = outcome;
        }
        if (outcome.better_than(current_outcome) || outcome.makespan_s < current_outcome.makespan_s + heat) {
            current = candidate;
            current_outcome = outcome;
        }
    }
    solution_ = best;
    outcome_ = best_outcome;
}

/// Lets samples of a kind change places between lanes until work, idle time and tails level out; keeps the
/// result if it is better when executed.
bool Group::level(bool all) {
    Solution candidate = solution_;
    std::vector<std::vector<int>> on(static_cast<std::size_t>(lanes_));
    std::vector<double> end = outcome_.idle_s;
    for (std::size_t lane = 0; lane < end.size(); ++lane) end[lane] += outcome_.tail_s[lane];
    for (int i = 0; i < samples(); ++i) {
        const auto lane = static_cast<std::size_t>(candidate.lane[static_cast<std::size_t>(i)]);
        on[lane].push_back(i);
        end[lane] += at(own_, i);
    }
    bool changed = false;
    for (int round = 0; round < 2 * lanes_; ++round) {
        const auto worst = static_cast<std::size_t>(std::max_element(end.begin(), end.end()) - end.begin());
        double best = end[worst] * (1 - 1e-5);
        std::size_t partner = 0, give = 0, take = 0;
        bool found = false, swap = false;
        for (std::size_t lane = 0; lane < on.size(); ++lane) {
            if (lane == worst || end[lane] >= best) continue;
            for (std::size_t g = 0; g < on[worst].size(); ++g) {
                const int i = on[worst][g];
                const bool pictured = instance_.pictured[static_cast<std::size_t>(i)] != 0;
                if (pictured && !all) continue;
                const double out = at(own_, i);
                const auto consider = [&](double in, bool is_swap, std::size_t t) {
                    const double most = std::max(end[worst] - out + in, end[lane] + out - in);
                    if (most >= best) return;
                    best = most;
                    partner = lane;
                    give = g;
                    take = t;
                    swap = is_swap;
                    found = true;
                };
                if (!pictured) consider(0, false, 0);
                for (std::size_t t = 0; t < on[lane].size(); ++t)
                    if ((instance_.pictured[static_cast<std::size_t>(on[lane][t])] != 0) == pictured)
                        consider(at(own_, on[lane][t]), true, t);
            }
        }
        if (!found) break;
        changed = true;
        const int i = on[worst][give];
        const double out = at(own_, i);
        candidate.lane[static_cast<std::size_t>(i)] = static_cast<int>(partner);
        end[worst] -= out;
        end[partner] += out;
        if (swap) {
            const int j = on[partner][take];
            candidate.lane[static_cast<std::size_t>(j)] = static_cast<int>(worst);
            end[worst] += at(own_, j);
            end[partner] -= at(own_, j);
            on[worst][give] = j;
            on[partner][take] = i;
        } else {
            on[worst].erase(on[worst].begin() + static_cast<std::ptrdiff_t>(give));
            on[partner].push_back(i);
        }
    }
    return changed && try_solution(candidate);
}

/// One random change: two samples change lanes or one changes its lane; two change places in the order or one
/// moves in it; or another rule.
Solution Group::varied(int last_lane) {
    Solution next = solution_;
    const int n = samples();
    const int kind = dice_.below(lanes_ > 1 ? 9 : 5);
    int a = dice_.below(n);
    // Changes of lanes mostly begin at the lane that ends last.
    for (int k = 0; kind >= 5 && k < 2 * lanes_ && next.lane[static_cast<std::size_t>(a)] != last_lane; ++k)
        a = dice_.below(n);
    const int b = (a + 1 + dice_.below(n - 1)) % n;
    const auto i = static_cast<std::size_t>(a), j = static_cast<std::size_t>(b);
    if (kind < 2) {
        std::swap(next.order[i], next.order[j]);
    } else if (kind < 4) {
        const auto from = next.order.begin() + a, to = next.order.begin() + b;
        if (a < b)
            std::rotate(from, from + 1, to + 1);
        else
            std::rotate(to, from, from + 1);
    } else if (kind < 5) {
        constexpr std::array<double, 6> kFed{0, 0.5, 1, 2, 4, 1e9};
        next.rule.fed_s = kFed[static_cast<std::size_t>(dice_.below(6))] * mean_s_;
        next.rule.count_text = dice_.below(2) == 0;
        next.rule.fair = dice_.below(2) == 0;
        next.rule.apart = dice_.below(4) == 0;
        next.rule.strict = samples() <= kAnnealed && dice_.below(2) == 0;
    } else if (kind < 8) {
        std::swap(next.lane[i], next.lane[j]);
    } else {
        next.lane[i] = dice_.below(lanes_);
    }
    return next;
}

/// Micro-batches of all sections. Of a loss section: each lane's samples in order, those with upstream work
/// apart from the others. Upstream: one by one (`one_by_one`), or cut from upstream_.
void Group::compose(const Solution& solution, bool one_by_one, std::vector<Batches>& batches) const {
    batches.resize(instance_.sections.size());
    std::vector<std::vector<int>> on(static_cast<std::size_t>(lanes_));
    for (const int i : solution.order)
        on[static_cast<std::size_t>(solution.lane[static_cast<std::size_t>(i)])].push_back(i);
    std::vector<int> list;
    for (std::size_t s = 0; s < batches.size(); ++s) {
        Batches& own = batches[s];
        own.samples.clear();
        own.ends.clear();
        own.replica_ends.assign(1, 0);
        const SectionShape& shape = instance_.sections[s];
        const bool mixed = shape.loss && shape.micro_batch > 1;
        int a = 0;
        for (int r = 0; r < shape.replicas; ++r) {
            list.clear();
            if (!shape.loss && !one_by_one) {
                list = upstream_[s][static_cast<std::size_t>(r)];
            } else {
                for (; a < lanes_ && instance_.replica_of(static_cast<int>(s), a) == r; ++a)
                    for (const int i : on[static_cast<std::size_t>(a)])
                        if (instance_.active[instance_.at(static_cast<int>(s), i)]) list.push_back(i);
            }
            const auto pictured = [&](int i) { return instance_.pictured[static_cast<std::size_t>(i)]; };
            if (mixed)
                std::stable_partition(list.begin(), list.end(), [&](int i) { return pictured(i) != 0; });
            const int size = one_by_one && !shape.loss ? 1 : shape.micro_batch;
            int filled = 0;
            for (std::size_t k = 0; k < list.size(); ++k) {
                const bool other_kind = mixed && filled > 0 && pictured(list[k]) != pictured(list[k - 1]);
                const bool other_bundle = solution.rule.aligned && !one_by_one && !shape.loss && filled > 0 &&
                                          single_machine_.node_of(instance_.anchor, list[k]) !=
                                              single_machine_.node_of(instance_.anchor, list[k - 1]);
                if (filled == size || other_kind || other_bundle) {
                    own.close_batch();
                    filled = 0;
                }
                own.samples.push_back(list[k]);
                ++filled;
            }
            if (filled > 0) own.close_batch();
            own.close_replica();
        }
    }
}

Outcome Group::execute(const Solution& solution) {
    Outcome outcome;
    place_.resize(static_cast<std::size_t>(samples()));
    for (int k = 0; k < samples(); ++k)
        place_[static_cast<std::size_t>(solution.order[static_cast<std::size_t>(k)])] = k;
    const auto run = [&](Machine& machine, StarveFirst& chooser, const std::vector<Batches>& batches,
                         bool in_order) {
        machine.build(batches);
        priority_.resize(machine.nodes().size());
        for (std::size_t n = 0; n < priority_.size(); ++n)
            priority_[n] = place_[static_cast<std::size_t>(machine.node(static_cast<int>(n)).first_sample)];
        chooser.begin(solution.rule, priority_, in_order);
        executed_.clear();
        return machine.run(chooser, &executed_);
    };
    if (bundles_) {
        // Upstream sections work sample by sample first; the order that results is cut into micro-batches.
        compose(solution, true, single_batches_);
        if (run(single_machine_, single_chooser_, single_batches_, false) == kNever) return outcome;
        for (auto& section : upstream_)
            for (auto& replica : section) replica.clear();
        for (const Executed& e : executed_) {
            const Node& n = single_machine_.node(e.node);
            if (e.phase == Phase::forward)
                upstream_[static_cast<std::size_t>(n.section)][static_cast<std::size_t>(n.replica)].push_back(
                    n.first_sample);
        }
    }
    compose(solution, !bundles_, batches_);
    outcome.makespan_s = run(machine_, chooser_, batches_, bundles_);
    if (outcome.makespan_s != kNever) judge(machine_, outcome);
    return outcome;
}

void Group::judge(const Machine& machine, Outcome& outcome) {
    const auto lanes = static_cast<std::size_t>(lanes_);
    outcome.idle_s.assign(lanes, 0.0);
    outcome.tail_s.assign(lanes, 0.0);
    std::vector<double> work(lanes, 0.0);
    std::vector<int> last(lanes, -1);
    end_.assign(machine.nodes().size(), 0.0);
    for (const Executed& e : executed_) {
        const Node& n = machine.node(e.node);
        end_[static_cast<std::size_t>(e.node)] = e.end_s;
        if (n.section != instance_.anchor) continue;
        const auto lane = static_cast<std::size_t>(n.replica);
        work[lane] += e.end_s - e.start_s;
        outcome.idle_s[lane] = e.end_s;
        last[lane] = e.node;
    }
    double latest = -1;
    for (std::size_t lane = 0; lane < lanes; ++lane) {
        if (last[lane] >= 0)
            for (const Link& up : machine.upstream(machine.node(last[lane])))
                outcome.tail_s[lane] = std::max(
                    outcome.tail_s[lane], end_[static_cast<std::size_t>(up.node)] - outcome.idle_s[lane]);
        if (outcome.idle_s[lane] + outcome.tail_s[lane] > latest) {
            latest = outcome.idle_s[lane] + outcome.tail_s[lane];
            outcome.last_lane = static_cast<int>(lane);
        }
        outcome.ends_s += outcome.idle_s[lane] / lanes_;
        outcome.idle_s[lane] -= work[lane];
    }
}

bool Group::try_exchange(int i, Group& other, int j) {
    const auto swap = [&] {
        for (int s = 0; s < static_cast<int>(instance_.sections.size()); ++s) {
            const std::size_t a = instance_.at(s, i), b = other.instance_.at(s, j);
            std::swap(instance_.forward[a], other.instance_.forward[b]);
            std::swap(instance_.backward[a], other.instance_.backward[b]);
            std::swap(instance_.transfer[a], other.instance_.transfer[b]);
            std::swap(instance_.active[a], other.instance_.active[b]);
        }
        const auto a = static_cast<std::size_t>(i), b = static_cast<std::size_t>(j);
        std::swap(instance_.pictured[a], other.instance_.pictured[b]);
        std::swap(instance_.ids[a], other.instance_.ids[b]);
        std::swap(own_[a], other.own_[b]);
        std::swap(before_[a], other.before_[b]);
        std::swap(after_[a], other.after_[b]);
        for (Group* g : {this, &other})
            if (g->bundles_) g->single_ = singly(g->instance_);
    };
    swap();
    const Outcome mine = execute(solution_), theirs = other.execute(other.solution_);
    const double before = std::max(outcome_.makespan_s, other.outcome_.makespan_s);
    const double after = std::max(mine.makespan_s, theirs.makespan_s);
    const bool better =
        after < before * (1 - kSame) ||
        (after <= before && mine.makespan_s + theirs.makespan_s <
                                (outcome_.makespan_s + other.outcome_.makespan_s) * (1 - kSame));
    if (!better) {
        swap();
        return false;
    }
    outcome_ = mine;
    other.outcome_ = theirs;
    return true;
}

void Group::emit(PlanBuilder& builder, int group) {
    execute(solution_);
    builder.add(machine_, batches_, executed_, group);
}

}  // namespace maestro::schedule
