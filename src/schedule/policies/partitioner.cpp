#include "schedule/policies/partitioner.hpp"

#include <algorithm>
#include <numeric>
#include <span>

#include "schedule/policies/buckets.hpp"
#include "schedule/problem/bounds.hpp"

namespace maestro::schedule {

namespace {

constexpr double kTiny = 1e-300;            ///< keeps a section without work from being divided by
constexpr int kExchangesPerSubProblem = 8;  ///< exchanges that level the sub-problems
constexpr int kMaxExchanges = 4096;         ///< limit of all exchanges
constexpr double kLevelled = 1e-4;   ///< of a sub-problem's share; loads that exceed it by less are level
constexpr double kRounding = 1e-9;   ///< an exchange must gain more than that
constexpr std::ptrdiff_t kNear = 2;  ///< candidates on either side of the sample that would level the loads

/// Returns the penalty of a load. The 32nd power makes the sum follow the fullest load, as a maximum would,
/// and still fall where a change lowers another load that is nearly as full.
double weight(double load) {
    const double l2 = load * load, l4 = l2 * l2, l8 = l4 * l4;
    return l8 * l8 * l8 * l8;
}

}  // namespace

Partitioner::Partitioner(const Problem& problem, int sub_problems)
    : all_(whole(problem)), sub_problems_(sub_problems), stages_(all_.stages.size()), random_(1) {
    buckets_ = make_buckets(all_, Kinds::apart).widest;
    all_ = bundle(all_, buckets_);
    // Load 1 is an even share of the critical section. Even shares of the other sections are below 1: they
    // may be distributed unevenly until they load a sub-problem as heavily as the critical one.
    for (std::size_t s = 0; s < stages_; ++s) scale_.push_back(sub_problems / std::max(total(s), kTiny));
    const std::vector<double> work = loads(problem);
    const double most = std::max(*std::max_element(work.begin(), work.end()), kTiny);
    for (std::size_t s = 0; s < stages_; ++s) scale_[s] *= work[s] / most;
}

std::vector<std::vector<int>> Partitioner::partition(double noise) {
    std::vector<int> order(all_.samples);
    std::iota(order.begin(), order.end(), 0);
    std::vector<double> key(order.size(), 0.0);
    for (int i = 0; i < all_.samples; ++i)
        for (std::size_t s = 0; s < stages_; ++s) key[i] = std::max(key[i], cost(i, s));
    for (double& k : key) k *= 1 + noise * random_.uniform();
    // Samples with work in one section only come last, because they can fill any difference that is left.
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        if (all_.other_work[a] != all_.other_work[b]) return all_.other_work[a] > all_.other_work[b];
        return key[a] > key[b];
    });
    // Descending costs, as in LPT: the short ones at the end level what the long ones leave.
    distribute(order);
    if (sub_problems_ > 1) level();
    // Levelling leads many orders to much the same partition; a few random moves keep the tries different.
    if (noise > 0) scatter();
    std::vector<std::vector<int>> samples(sub_problems_);
    for (int g = 0; g < sub_problems_; ++g)
        for (const int bucket : items_[g]) {
            const std::span<const int> of = buckets_.samples(bucket);
            samples[g].insert(samples[g].end(), of.begin(), of.end());
        }
    return samples;
}

void Partitioner::distribute(const std::vector<int>& order) {
    items_.assign(sub_problems_, {});
    LoadTree loads(sub_problems_, scale_);
    std::vector<double> work(stages_);
    for (const int i : order) {
        for (std::size_t s = 0; s < stages_; ++s) work[s] = all_.total(static_cast<int>(s), i);
        const int sub_problem = loads.best(work);
        loads.add(sub_problem, work);
        items_[sub_problem].push_back(i);
    }
    load_.clear();
    for (int g = 0; g < sub_problems_; ++g) {
        const auto load = loads.load(g);
        load_.insert(load_.end(), load.begin(), load.end());
    }
}

double Partitioner::total(std::size_t s) const {
    double sum = 0;
    for (int i = 0; i < all_.samples; ++i) sum += all_.total(static_cast<int>(s), i);
    return sum;
}

/// Moves a few samples to random sub-problems.
void Partitioner::scatter() {
    for (int moved = random_.below(3); moved > 0; --moved) {
        auto& from = items_[random_.below(sub_problems_)];
        auto& to = items_[random_.below(sub_problems_)];
        if (from.empty() || &from == &to) continue;
        const int i = random_.below(static_cast<int>(from.size()));
        to.push_back(from[i]);
        from.erase(from.begin() + i);
    }
}

void Partitioner::level() {
    const int rounds = std::min(kExchangesPerSubProblem * sub_problems_, kMaxExchanges);
    for (int round = 0; round < rounds; ++round) {
        std::size_t fullest = 0;
        int worst = 0, least = 0;
        for (int g = 0; g < sub_problems_; ++g)
            for (std::size_t s = 0; s < stages_; ++s)
                if (load(g, s) > load(worst, fullest)) {
                    worst = g;
                    fullest = s;
                }
        for (int g = 0; g < sub_problems_; ++g)
            if (load(g, fullest) < load(least, fullest)) least = g;
        if (load(worst, fullest) <= 1 + kLevelled) break;
        // The least loaded sub-problem has most room, but the samples of a random one may fit better.
        int other = least;
        if (round % 2 == 1) {
            other = random_.below(sub_problems_ - 1);
            other += other >= worst ? 1 : 0;
        }
        auto &ours = items_[worst], &theirs = items_[other];
        if (ours.empty() || theirs.empty()) continue;
        // An exchange has to lower the sum of penalties, of which only those of the two sub-problems change.
        // The sum falls with each, so exchanges cannot repeat, and rounding cannot make them alternate.
        double best = pair_weight(worst, other, -1, -1) * (1 - kRounding);
        std::size_t best_i = ours.size(), best_j = 0;
        // Exchanging samples whose costs differ by half of the difference of the loads makes these equal.
        // Only the candidates nearest to that are tried: with binary search an exchange takes n log n steps
        // for n samples of a sub-problem instead of n^2. Not the nearest alone, because the loads of the
        // other sections count in the penalty as well.
        const double half = (load(worst, fullest) - load(other, fullest)) / 2;
        std::sort(theirs.begin(), theirs.end(),
                  [&](int a, int b) { return cost(a, fullest) < cost(b, fullest); });
        for (std::size_t i = 0; i < ours.size(); ++i) {
            const double wanted = cost(ours[i], fullest) - half;
            const auto near = std::lower_bound(theirs.begin(), theirs.end(), wanted,
                                               [&](int j, double value) { return cost(j, fullest) < value; });
            const auto first = std::max<std::ptrdiff_t>(near - theirs.begin() - kNear, 0);
            const auto last =
                std::min<std::ptrdiff_t>(first + 2 * kNear, static_cast<std::ptrdiff_t>(theirs.size()));
            for (auto j = first; j < last; ++j) {
                const double now = pair_weight(worst, other, ours[i], theirs[j]);
                if (now >= best) continue;
                best = now;
                best_i = i;
                best_j = j;
            }
        }
        if (best_i == ours.size()) continue;
        for (std::size_t s = 0; s < stages_; ++s) {
            const double difference = cost(ours[best_i], s) - cost(theirs[best_j], s);
            load(worst, s) -= difference;
            load(other, s) += difference;
        }
        std::swap(ours[best_i], theirs[best_j]);
    }
}

/// Returns the penalty of two sub-problems after the exchange of samples i and j (-1: without an exchange).
double Partitioner::pair_weight(int a, int b, int i, int j) {
    double sum = 0;
    for (std::size_t s = 0; s < stages_; ++s) {
        const double difference = i < 0 ? 0 : cost(i, s) - cost(j, s);
        sum += weight(load(a, s) - difference) + weight(load(b, s) + difference);
    }
    return sum;
}

}  // namespace maestro::schedule
