#include "schedule/wavefront.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "schedule/bounds.hpp"
#include "schedule/plan_builder.hpp"
#include "schedule/policies.hpp"
#include "schedule/search.hpp"

namespace maestro::schedule {

namespace {

constexpr double kEnough = 2e-4;  ///< of the bound; nearer is not worth the search
constexpr std::size_t kFew = 96;  ///< samples
constexpr int kRetried = 2;       ///< groups
constexpr double kAlike = 1.002;  ///< makespans of groups
constexpr int kDeals = 16;
constexpr double kSome = 256;                        ///< samples
constexpr std::size_t kMany = 512;                   ///< samples
constexpr std::size_t kTried = 6, kTriedOfMany = 2;  ///< recipes for the groups after the first
constexpr double kDealNoise = 1.0;
constexpr int kPolished = 4096;  ///< changes of a deal

/// Samples of each group. Constructive: by descending cost, those with upstream work first, to the group
/// whose fullest section stays lowest. Then pairs change groups while that levels the loads of all sections.
class Dealer {
public:
    Dealer(const Problem& problem, int groups)
        : all_(whole(problem)), groups_(groups), sections_(all_.sections.size()), dice_(1) {
        for (std::size_t s = 0; s < sections_; ++s) scale_.push_back(groups / std::max(total(s), 1e-300));
        const std::vector<double> work = loads(problem);
        const double most = std::max(*std::max_element(work.begin(), work.end()), 1e-300);
        for (std::size_t s = 0; s < sections_; ++s) scale_[s] *= work[s] / most;
    }

    /// `noise`: of the costs in the order of dealing, for another result each time; 0: none.
    std::vector<std::vector<int>> deal(double noise) {
        std::vector<int> order(static_cast<std::size_t>(all_.samples));
        std::iota(order.begin(), order.end(), 0);
        std::vector<double> key(order.size(), 0.0);
        for (int i = 0; i < all_.samples; ++i)
            for (std::size_t s = 0; s < sections_; ++s)
                key[static_cast<std::size_t>(i)] = std::max(key[static_cast<std::size_t>(i)], cost(i, s));
        for (double& k : key) k *= 1 + noise * dice_.uniform();
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
            const auto i = static_cast<std::size_t>(a), j = static_cast<std::size_t>(b);
            if (all_.pictured[i] != all_.pictured[j]) return all_.pictured[i] > all_.pictured[j];
            return key[i] > key[j];
        });
        dealt_.assign(static_cast<std::size_t>(groups_), {});
        load_.assign(static_cast<std::size_t>(groups_) * sections_, 0.0);
        for (const int i : order) {
            int best = 0;
            double lowest = kNever;
            for (int g = 0; g < groups_; ++g) {
                double fullest = 0;
                for (std::size_t s = 0; s < sections_; ++s)
                    fullest = std::max(fullest, load(g, s) + cost(i, s));
                if (fullest >= lowest) continue;
                lowest = fullest;
                best = g;
            }
            dealt_[static_cast<std::size_t>(best)].push_back(i);
            for (std::size_t s = 0; s < sections_; ++s) load(best, s) += cost(i, s);
        }
        if (groups_ > 1) polish();
        if (noise > 0) scatter();
        return dealt_;
    }

private:
    double total(std::size_t s) const {
        double sum = 0;
        for (int i = 0; i < all_.samples; ++i) sum += all_.total(static_cast<int>(s), i);
        return sum;
    }
    /// A group's fair share of the fullest section counts 1.
    double cost(int i, std::size_t s) const { return all_.total(static_cast<int>(s), i) * scale_[s]; }
    double& load(int g, std::size_t s) { return load_[static_cast<std::size_t>(g) * sections_ + s]; }
    /// What a group's loads weigh: rises steeply beyond its share.
    static double weight(double load) {
        const double l2 = load * load, l4 = l2 * l2, l8 = l4 * l4;
        return l8 * l8 * l8 * l8;
    }

    /// A few samples go anywhere.
    void scatter() {
        for (int moved = dice_.below(3); moved > 0; --moved) {
            auto& from = dealt_[static_cast<std::size_t>(dice_.below(groups_))];
            auto& to = dealt_[static_cast<std::size_t>(dice_.below(groups_))];
            if (from.empty() || &from == &to) continue;
            const auto i = static_cast<std::ptrdiff_t>(dice_.below(static_cast<int>(from.size())));
            to.push_back(from[static_cast<std::size_t>(i)]);
            from.erase(from.begin() + i);
        }
    }

    void polish() {
        const int rounds = std::min(8 * groups_, kPolished);
        for (int round = 0; round < rounds; ++round) {
            std::size_t fullest = 0;
            int worst = 0, least = 0;
            for (int g = 0; g < groups_; ++g)
                for (std::size_t s = 0; s < sections_; ++s)
                    if (load(g, s) > load(worst, fullest)) {
                        worst = g;
                        fullest = s;
                    }
            for (int g = 0; g < groups_; ++g)
                if (load(g, fullest) < load(least, fullest)) least = g;
            if (load(worst, fullest) <= 1 + 1e-4) break;
            int other = least;
            if (round % 2 == 1) {
                other = dice_.below(groups_ - 1);
                other += other >= worst ? 1 : 0;
            }
            auto &give = dealt_[static_cast<std::size_t>(worst)],
                 &take = dealt_[static_cast<std::size_t>(other)];
            if (give.empty() || take.empty()) continue;
            double best = pair_weight(worst, other, -1, -1) * (1 - 1e-9);
            std::size_t best_i = give.size(), best_j = 0;
            // Of the other group those that differ by about half of what the loads differ.
            const double half = (load(worst, fullest) - load(other, fullest)) / 2;
            std::sort(take.begin(), take.end(),
                      [&](int a, int b) { return cost(a, fullest) < cost(b, fullest); });
            for (std::size_t i = 0; i < give.size(); ++i) {
                const double wanted = cost(give[i], fullest) - half;
                const auto near =
                    std::lower_bound(take.begin(), take.end(), wanted,
                                     [&](int j, double value) { return cost(j, fullest) < value; });
                const auto first = std::max<std::ptrdiff_t>(near - take.begin() - 2, 0);
                const auto last =
                    std::min<std::ptrdiff_t>(first + 4, static_cast<std::ptrdiff_t>(take.size()));
                for (auto j = first; j < last; ++j) {
                    const double now = pair_weight(worst, other, give[i], take[static_cast<std::size_t>(j)]);
                    if (now >= best) continue;
                    best = now;
                    best_i = i;
                    best_j = static_cast<std::size_t>(j);
                }
            }
            if (best_i == give.size()) continue;
            for (std::size_t s = 0; s < sections_; ++s) {
                const double difference = cost(give[best_i], s) - cost(take[best_j], s);
                load(worst, s) -= difference;
                load(other, s) += difference;
            }
            std::swap(give[best_i], take[best_j]);
        }
    }
    /// Of two groups once i and j have changed places (-1: as they are).
    double pair_weight(int a, int b, int i, int j) {
        double sum = 0;
        for (std::size_t s = 0; s < sections_; ++s) {
            const double difference = i < 0 ? 0 : cost(i, s) - cost(j, s);
            sum += weight(load(a, s) - difference) + weight(load(b, s) + difference);
        }
        return sum;
    }

    Instance all_;
    int groups_;
    std::size_t sections_;
    Dice dice_;
    std::vector<double> scale_, load_;
    std::vector<std::vector<int>> dealt_;
};

/// Executions of a group that its search may use: few where samples are many, because the gap is small then.
std::int64_t default_moves(std::size_t samples) {
    const double n = static_cast<double>(samples + 1);
    return static_cast<std::int64_t>(std::clamp(n > kSome ? 1.5e6 / (n * n) : 6e4 / n, 2.0, 3000.0));
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
        Group& other = dice.below(2) == 0
                           ? least
                           : *groups[static_cast<std::size_t>(dice.below(static_cast<int>(groups.size())))];
        if (&other == &worst || other.samples() == 0) continue;
        worst.try_exchange(dice.below(worst.samples()), other, dice.below(other.samples()));
    }
}

/// Empty where a group has no solution within its windows.
std::vector<std::unique_ptr<Group>> schedule_groups(const Problem& problem,
                                                    const std::vector<std::vector<int>>& dealt,
                                                    std::int64_t moves, double enough_s) {
    const auto groups = static_cast<int>(dealt.size());
    std::vector<std::unique_ptr<Group>> parts;
    const std::vector<Recipe> all = recipes(problem.sections);
    std::vector<Recipe> good = all;
    for (const auto& samples : dealt) {
        parts.push_back(std::make_unique<Group>(part(problem, groups, samples), parts.size()));
        const std::vector<Recipe> ranked = parts.back()->construct(good, enough_s);
        // Groups are alike: what is best for the first large one is tried for the others.
        const std::size_t tried = problem.samples.size() > kMany ? kTriedOfMany : kTried;
        if (parts.size() == 1 && ranked.size() > tried && problem.samples.size() > kFew)
            good.assign(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(tried));
        if (parts.back()->best().makespan_s == kNever) parts.back()->construct(all, enough_s);
        if (parts.back()->best().makespan_s == kNever) return {};
        parts.back()->improve(moves, enough_s);
    }
    if (groups == 1) return parts;
    // More for those that end well after the others.
    const auto longest = [](const auto& a, const auto& b) {
        return a->best().makespan_s < b->best().makespan_s;
    };
    for (int more = 0; more < kRetried; ++more) {
        Group& worst = **std::max_element(parts.begin(), parts.end(), longest);
        const double least = (*std::min_element(parts.begin(), parts.end(), longest))->best().makespan_s;
        if (worst.best().makespan_s <= std::max(enough_s, least * kAlike) || good.size() == all.size()) break;
        worst.construct(all, enough_s);
        worst.improve(moves, enough_s);
    }
    exchange(parts, moves * groups / 2, enough_s);
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
    if (best.empty()) return plan_lpt(problem, step);
    for (int g = 0; g < groups; ++g) best[static_cast<std::size_t>(g)]->emit(builder, g);
    return builder.finish(step);
}

}  // namespace maestro::schedule
