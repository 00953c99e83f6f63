#include "schedule/wavefront.hpp"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "schedule/baselines.hpp"
#include "schedule/bounds.hpp"
#include "schedule/partitioner.hpp"
#include "schedule/plan_builder.hpp"
#include "schedule/search.hpp"

namespace maestro::schedule {

namespace {

constexpr double kEnough = 2e-4;    ///< of the bound; nearer is not worth the search
constexpr std::size_t kFew = 96;    ///< samples up to which every recipe and several deals are tried
constexpr std::size_t kMany = 512;  ///< samples beyond which groups only try what was good for others
constexpr double kAlike = 1.002;    ///< makespans of groups: nearer is not worth more recipes
constexpr double kFailed = 10;      ///< times the bound: what a recipe counts that does not run
constexpr int kDeals = 16;          ///< of few samples
constexpr double kDealNoise = 1.0;  ///< up to twice the cost: deals shall differ

/// Samples that a search may execute in all: an execution takes about as long as it has samples, and a plan
/// has a few milliseconds.
constexpr double kExecuted = 6e4;
/// Over the cube of the samples: beyond some 220 of them the search is cut much shorter still, because the
/// gap that construction leaves falls, and what one change can gain with it.
constexpr double kManyExecuted = 3e9;
constexpr double kFewestMoves = 2, kMostMoves = 3000;

/// Executions of a group that its search may use.
std::int64_t default_moves(std::size_t samples) {
    const double n = static_cast<double>(samples + 1);
    const double moves = std::min(kExecuted / n, kManyExecuted / (n * n * n));
    return static_cast<std::int64_t>(std::clamp(moves, kFewestMoves, kMostMoves));
}

/// Which recipes do well. Groups are alike: what was good for others is tried first.
class Cookbook {
public:
    Cookbook(std::vector<Recipe> recipes, std::size_t groups, double enough_s)
        : recipes_(std::move(recipes)),
          seen_(recipes_.size()),
          had_(groups, std::vector<bool>(recipes_.size(), false)),
          enough_s_(enough_s) {}

    const std::vector<Recipe>& recipes() const { return recipes_; }
    std::size_t size() const { return recipes_.size(); }

    /// The group has up to `count` recipes that did best for others.
    void try_good(std::size_t g, Group& group, std::size_t count) { try_first(ranked(), g, group, count); }
    /// The group has up to `count` recipes that it has not had: first those that no group has. False: it has
    /// had all.
    bool try_new(std::size_t g, Group& group, std::size_t count) {
        std::vector<std::size_t> order;
        for (std::size_t k = 0; k < recipes_.size(); ++k)
            if (seen_[k].times == 0) order.push_back(k);
        const std::vector<std::size_t> known = ranked();
        order.insert(order.end(), known.begin(), known.end());
        return try_first(order, g, group, count);
    }

private:
    struct Seen {
        int times = 0;
        double sum_s = 0;
        double mean_s() const { return sum_s / times; }
    };
    /// Those that a group has had, the best first.
    std::vector<std::size_t> ranked() const {
        std::vector<std::size_t> order;
        for (std::size_t k = 0; k < recipes_.size(); ++k)
            if (seen_[k].times > 0) order.push_back(k);
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return seen_[a].mean_s() < seen_[b].mean_s(); });
        return order;
    }
    bool try_first(const std::vector<std::size_t>& order, std::size_t g, Group& group, std::size_t count) {
        bool any = false;
        for (const std::size_t k : order) {
            if (count == 0 || group.best().makespan_s <= enough_s_) return true;
            if (had_[g][k]) continue;
            had_[g][k] = any = true;
            --count;
            ++seen_[k].times;
            seen_[k].sum_s += std::min(group.construct(recipes_[k]), kFailed * enough_s_);
        }
        return any;
    }

    std::vector<Recipe> recipes_;
    std::vector<Seen> seen_;              ///< [recipe]
    std::vector<std::vector<bool>> had_;  ///< [group][recipe]
    double enough_s_;
};

/// How much a plan may try, by the number of samples and groups.
struct Effort {
    std::size_t good = 0;   ///< recipes of a group that were the best of the others'
    std::size_t fresh = 0;  ///< recipes of a group that none has tried yet
    std::size_t first = 0;  ///< recipes of the first group
    int retries = 0;        ///< groups that get more recipes, the last to end first
    std::size_t retry = 0;  ///< how many more
    int exchanges = 2;      ///< of samples between groups: all their moves over this
};

Effort effort_of(std::size_t samples, int groups) {
    constexpr auto kAll = static_cast<std::size_t>(-1);
    if (samples <= kFew) return {.fresh = kAll, .first = kAll};
    if (samples <= kMany) return {.good = 6, .first = kAll, .retries = 2, .retry = kAll};
    return {.good = 2,
            .fresh = 1,
            .first = groups == 1 ? kAll : 6,
            .retries = groups / 2,
            .retry = 2,
            .exchanges = 4};
}

/// The groups of a plan, ordered by the end of their schedules.
class Groups {
public:
    void add(std::unique_ptr<Group> group) {
        end_s_.push_back(group->best().makespan_s);
        by_end_.emplace(end_s_.back(), groups_.size());
        groups_.push_back(std::move(group));
    }
    bool empty() const { return groups_.empty(); }
    std::size_t size() const { return groups_.size(); }
    Group& operator[](std::size_t g) { return *groups_[g]; }

    double longest_s() const { return by_end_.rbegin()->first; }
    double shortest_s() const { return by_end_.begin()->first; }
    /// The group with the longest or shortest schedule; of several the one with the lowest number.
    std::size_t longest() const { return by_end_.lower_bound({longest_s(), 0})->second; }
    std::size_t shortest() const { return by_end_.begin()->second; }
    /// Frees a group that is not needed any more.
    void discard(std::size_t g) { groups_[g].reset(); }
    /// To be called when the schedule of a group has changed.
    void reorder(std::size_t g) {
        by_end_.erase({end_s_[g], g});
        end_s_[g] = groups_[g]->best().makespan_s;
        by_end_.emplace(end_s_[g], g);
    }

private:
    std::vector<std::unique_ptr<Group>> groups_;
    std::vector<double> end_s_;                        ///< [group]
    std::set<std::pair<double, std::size_t>> by_end_;  ///< end and number of each group
};

/// Samples of the group that ends last change places with those of others while that shortens the step.
void exchange(Groups& groups, std::int64_t moves, double enough_s) {
    Dice dice(2);
    for (; moves > 0; --moves) {
        const std::size_t last = groups.longest(), first = groups.shortest();
        if (groups.longest_s() <= enough_s || groups[last].samples() == 0 || groups[first].samples() == 0)
            return;
        const std::size_t other = dice.below(2) == 0 ? first : dice.below(static_cast<int>(groups.size()));
        if (other == last || groups[other].samples() == 0) continue;
        const int theirs = dice.below(groups[other].samples()), ours = dice.below(groups[last].samples());
        if (!groups[last].try_exchange(ours, groups[other], theirs)) continue;
        groups.reorder(last);
        groups.reorder(other);
    }
}

/// Empty where a group has no solution within its windows.
Groups schedule_groups(const Problem& problem, const std::vector<std::vector<int>>& dealt, std::int64_t moves,
                       double enough_s) {
    const auto groups = static_cast<int>(dealt.size());
    const Effort effort = effort_of(problem.samples.size(), groups);
    Groups planned;
    Cookbook book(recipes(problem.sections), dealt.size(), enough_s);
    for (std::size_t g = 0; g < dealt.size(); ++g) {
        auto group = std::make_unique<Group>(part(problem, groups, dealt[g]), g);
        book.try_good(g, *group, effort.good);
        book.try_new(g, *group, g == 0 ? effort.first : effort.fresh);
        if (group->best().makespan_s == kNever) book.try_new(g, *group, book.size());
        if (group->best().makespan_s == kNever) group->construct_aligned(book.recipes());
        if (group->best().makespan_s == kNever) return {};
        group->improve(moves, enough_s);
        group->release();
        planned.add(std::move(group));
    }
    if (groups == 1) return planned;
    // More for those that end well after the others.
    for (int more = 0; more < effort.retries; ++more) {
        const std::size_t last = planned.longest();
        if (planned.longest_s() <= std::max(enough_s, planned.shortest_s() * kAlike)) break;
        if (!book.try_new(last, planned[last], effort.retry)) break;
        planned[last].improve(moves, enough_s);
        planned[last].release();
        planned.reorder(last);
    }
    exchange(planned, moves * groups / effort.exchanges, enough_s);
    return planned;
}

}  // namespace

StepPlan plan_wavefront(const Problem& problem, std::int64_t step, std::int64_t moves) {
    const int groups = groups_of(problem);
    PlanBuilder builder(problem, groups);
    const double enough = builder.lower_bound_s() * (1 + kEnough);
    if (moves == 0) moves = default_moves(problem.samples.size());
    // How few samples are dealt to groups decides much: several deals are tried.
    const int deals = groups > 1 && problem.samples.size() <= kFew ? kDeals : 1;
    Partitioner partitioner(problem, groups);
    Groups best;
    double shortest = kNever;
    for (int deal = 0; deal < deals && shortest > enough; ++deal) {
        Groups planned = schedule_groups(problem, partitioner.partition(deal == 0 ? 0 : kDealNoise),
                                         moves / deals, enough);
        if (planned.empty() || planned.longest_s() >= shortest) continue;
        shortest = planned.longest_s();
        best = std::move(planned);
    }
    if (best.empty()) {
        StepPlan plan = plan_lpt(problem, step);
        plan.squeezed = true;
        return plan;
    }
    for (int g = 0; g < groups; ++g) {
        best[g].emit(builder, g);
        best.discard(g);
    }
    return builder.finish(step);
}

}  // namespace maestro::schedule
