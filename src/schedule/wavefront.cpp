#include "schedule/wavefront.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "schedule/baselines.hpp"
#include "schedule/bounds.hpp"
#include "schedule/dealer.hpp"
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

/// Samples of the group that ends last change places with those of others while that shortens the step.
void exchange(std::vector<std::unique_ptr<Group>>& groups, std::int64_t moves, double enough_s) {
    Dice dice(2);
    for (; moves > 0; --moves) {
        const auto longest = [](const auto& a, const auto& b) {
            return a->best().makespan_s < b->best().makespan_s;
        };
        Group& worst = **std::max_element(groups.begin(), groups.end(), longest);
        Group& least = **std::min_element(groups.begin(), groups.end(), longest);
        if (worst.best().makespan_s <= enough_s || worst.samples() == 0 || least.samples() == 0) return;
        Group& other = dice.below(2) == 0 ? least : *groups[dice.below(static_cast<int>(groups.size()))];
        if (&other == &worst || other.samples() == 0) continue;
        worst.try_exchange(dice.below(worst.samples()), other, dice.below(other.samples()));
    }
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

/// Empty where a group has no solution within its windows.
std::vector<std::unique_ptr<Group>> schedule_groups(const Problem& problem,
                                                    const std::vector<std::vector<int>>& dealt,
                                                    std::int64_t moves, double enough_s) {
    const auto groups = static_cast<int>(dealt.size());
    const Effort effort = effort_of(problem.samples.size(), groups);
    std::vector<std::unique_ptr<Group>> parts;
    Cookbook book(recipes(problem.sections), dealt.size(), enough_s);
    for (const auto& samples : dealt) {
        const std::size_t g = parts.size();
        parts.push_back(std::make_unique<Group>(part(problem, groups, samples), g));
        Group& group = *parts.back();
        book.try_good(g, group, effort.good);
        book.try_new(g, group, g == 0 ? effort.first : effort.fresh);
        if (group.best().makespan_s == kNever) book.try_new(g, group, book.size());
        if (group.best().makespan_s == kNever) group.construct_aligned(book.recipes());
        if (group.best().makespan_s == kNever) return {};
        group.improve(moves, enough_s);
    }
    if (groups == 1) return parts;
    // More for those that end well after the others.
    const auto longest = [](const auto& a, const auto& b) {
        return a->best().makespan_s < b->best().makespan_s;
    };
    for (int more = 0; more < effort.retries; ++more) {
        const auto worst = std::max_element(parts.begin(), parts.end(), longest);
        const double least = (*std::min_element(parts.begin(), parts.end(), longest))->best().makespan_s;
        if ((*worst)->best().makespan_s <= std::max(enough_s, least * kAlike)) break;
        if (!book.try_new(worst - parts.begin(), **worst, effort.retry)) break;
        (*worst)->improve(moves, enough_s);
    }
    exchange(parts, moves * groups / effort.exchanges, enough_s);
    return parts;
}

}  // namespace

StepPlan plan_wavefront(const Problem& problem, std::int64_t step, std::int64_t moves) {
    const int groups = groups_of(problem);
    PlanBuilder builder(problem, groups);
    const double enough = builder.lower_bound_s() * (1 + kEnough);
    if (moves == 0) moves = default_moves(problem.samples.size());
    // How few samples are dealt to groups decides much: several deals are tried.
    const int deals = groups > 1 && problem.samples.size() <= kFew ? kDeals : 1;
    Dealer dealer(problem, groups);
    std::vector<std::unique_ptr<Group>> best;
    double shortest = kNever;
    for (int deal = 0; deal < deals && shortest > enough; ++deal) {
        auto parts = schedule_groups(problem, dealer.deal(deal == 0 ? 0 : kDealNoise), moves / deals, enough);
        double makespan = parts.empty() ? kNever : 0;
        for (const auto& group : parts) makespan = std::max(makespan, group->best().makespan_s);
        if (makespan >= shortest) continue;
        shortest = makespan;
        best = std::move(parts);
    }
    if (best.empty()) {
        StepPlan plan = plan_lpt(problem, step);
        plan.squeezed = true;
        return plan;
    }
    for (int g = 0; g < groups; ++g) best[g]->emit(builder, g);
    return builder.finish(step);
}

}  // namespace maestro::schedule
