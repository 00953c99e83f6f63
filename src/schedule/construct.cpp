#include "schedule/construct.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "schedule/load_heap.hpp"

namespace maestro::schedule {

namespace {

constexpr double kLevel = 1.001;   ///< of the fullest replica; what is shorter by less is as level
constexpr double kShorter = 1e-5;  ///< of the longest replica; less is not worth a change
/// Samples with other work for each replica from which on one can begin and one end it, with one between.
constexpr int kBareKinds = 3;

double at(const std::vector<double>& values, int i) {
    return values[i];
}

struct Kinds {
    std::vector<int> heavy, light;  ///< samples with other work, and without
    bool bare = false;              ///< too few light ones to cover head starts and last backwards
};

/// What level() does next: sample `give` of the longest replica goes to `partner`, for its sample `take`
/// where they exchange. Places in the lists of the replicas.
struct Change {
    std::size_t partner = 0, give = 0, take = 0;
    bool found = false, exchange = false;
};

/// The change that leaves the longer of the two replicas shortest. on: [anchor replica], samples; end: its
/// end, seconds.
Change best_change(const Instance& instance, const SampleWork& work, const std::vector<std::vector<int>>& on,
                   const std::vector<double>& end, std::size_t worst, bool all) {
    Change found;
    double best = end[worst] * (1 - kShorter);
    const auto consider = [&](double seconds, const Change& change) {
        if (seconds >= best) return;
        best = seconds;
        found = change;
    };
    for (std::size_t r = 0; r < on.size(); ++r) {
        // The longer of the two cannot become shorter than their mean.
        if (r == worst || (end[worst] + end[r]) / 2 >= best) continue;
        for (std::size_t g = 0; g < on[worst].size(); ++g) {
            const int i = on[worst][g];
            const bool other_work = instance.other_work[i] != 0;
            if (other_work && !all) continue;
            const double out = at(work.own, i);
            const auto longer_s = [&](double in) {
                return std::max(end[worst] - out + in, end[r] + out - in);
            };
            if (!other_work) consider(longer_s(0), {.partner = r, .give = g, .found = true});
            for (std::size_t t = 0; t < on[r].size(); ++t)
                if ((instance.other_work[on[r][t]] != 0) == other_work)
                    consider(longer_s(at(work.own, on[r][t])),
                             {.partner = r, .give = g, .take = t, .found = true, .exchange = true});
        }
    }
    return found;
}

Kinds kinds_of(const Instance& instance) {
    const int replicas = instance.shape(instance.anchor).replicas;
    Kinds kinds;
    for (int i = 0; i < instance.samples; ++i)
        (instance.other_work[i] ? kinds.heavy : kinds.light).push_back(i);
    kinds.bare = static_cast<int>(kinds.light.size()) < replicas &&
                 static_cast<int>(kinds.heavy.size()) >= kBareKinds * replicas;
    return kinds;
}

}  // namespace

SampleWork measure(const Instance& instance) {
    SampleWork work;
    const std::size_t count = instance.samples;
    work.own.assign(count, 0.0);
    work.before = work.after = work.own;
    for (std::size_t i = 0; i < count; ++i)
        for (int s = 0; s < static_cast<int>(instance.sections.size()); ++s) {
            const std::size_t place = instance.at(s, static_cast<int>(i));
            if (s == instance.anchor) {
                work.own[i] = instance.forward[place] + instance.backward[place];
            } else {
                work.before[i] += instance.forward[place];
                work.after[i] += instance.backward[place];
            }
        }
    work.mean_s =
        count > 0 ? std::accumulate(work.own.begin(), work.own.end(), 0.0) / static_cast<double>(count) : 0;
    return work;
}

std::vector<int> spread(const Instance& instance, const SampleWork& work) {
    const int replicas = instance.shape(instance.anchor).replicas;
    auto [heavy, light, bare] = kinds_of(instance);
    const auto sort = [](auto first, auto last, auto less) { std::stable_sort(first, last, less); };
    std::vector<int> replica_of(work.own.size(), 0);
    std::vector<double> load_s(replicas, 0.0);
    const auto assign = [&](int sample, int replica) {
        load_s[replica] += at(work.own, sample);
        replica_of[sample] = replica;
    };
    auto begin = heavy.begin(), end = heavy.end();
    if (bare) {
        sort(begin, end, [&](int a, int b) { return at(work.before, a) < at(work.before, b); });
        for (int k = 0; k < replicas; ++k, ++begin) assign(*begin, k);
        sort(begin, end, [&](int a, int b) { return at(work.after, a) > at(work.after, b); });
        for (int k = 0; k < replicas; ++k) {
            --end;
            assign(*end, k);
        }
    }
    const auto longer = [&](int a, int b) { return at(work.own, a) > at(work.own, b); };
    sort(begin, end, longer);
    sort(light.begin(), light.end(), longer);
    std::vector<int> order(begin, end);
    order.insert(order.end(), light.begin(), light.end());
    const auto to_least = [&](std::vector<int> replicas_of) {
        LoadHeap loads(load_s);
        for (const int i : order) replicas_of[i] = loads.add_to_least(at(work.own, i));
        return std::pair(replicas_of, loads.largest());
    };
    const auto [kinds_apart, kinds_apart_s] = to_least(replica_of);
    sort(order.begin(), order.end(), longer);
    const auto [together, together_s] = to_least(replica_of);
    return together_s * kLevel < kinds_apart_s ? together : kinds_apart;
}

std::vector<std::vector<int>> orders(const Instance& instance, const SampleWork& work) {
    const int replicas = instance.shape(instance.anchor).replicas;
    auto [heavy, light, bare] = kinds_of(instance);
    std::stable_sort(light.begin(), light.end(),
                     [&](int a, int b) { return at(work.own, a) > at(work.own, b); });
    std::vector<std::vector<int>> all(kOrders, heavy);
    // Johnson (1954): upstream forward, then the anchor's work.
    std::stable_sort(all[0].begin(), all[0].end(), [&](int a, int b) {
        const bool short_a = at(work.before, a) < at(work.own, a),
                   short_b = at(work.before, b) < at(work.own, b);
        if (short_a != short_b) return short_a;
        return short_a ? at(work.before, a) < at(work.before, b) : at(work.own, a) > at(work.own, b);
    });
    // Longest chain first.
    const auto chain = [&](int i) { return at(work.before, i) + at(work.own, i) + at(work.after, i); };
    std::stable_sort(all[1].begin(), all[1].end(), [&](int a, int b) { return chain(a) > chain(b); });
    // Much that follows for little that goes before.
    const auto rest = [&](int i) { return at(work.own, i) + at(work.after, i) - at(work.before, i); };
    std::stable_sort(all[2].begin(), all[2].end(), [&](int a, int b) { return rest(a) > rest(b); });
    // Long backwards first.
    std::stable_sort(all[3].begin(), all[3].end(),
                     [&](int a, int b) { return at(work.after, a) > at(work.after, b); });
    if (bare) {
        // The replicas begin with what is soon there and end with what is soon done with.
        std::vector<int> kind(work.own.size(), 1);
        std::vector<int> quick = heavy;
        std::stable_sort(quick.begin(), quick.end(),
                         [&](int a, int b) { return at(work.before, a) < at(work.before, b); });
        for (int k = 0; k < replicas; ++k) kind[quick[k]] = 0;
        std::stable_sort(quick.begin() + replicas, quick.end(),
                         [&](int a, int b) { return at(work.after, a) < at(work.after, b); });
        for (int k = 0; k < replicas; ++k) kind[quick[replicas + k]] = 2;
        for (auto& order : all)
            std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return kind[a] < kind[b]; });
    }
    for (auto& order : all) order.insert(order.end(), light.begin(), light.end());
    return all;
}

bool level(const Instance& instance, const SampleWork& work, const std::vector<double>& extra_s, bool all,
           std::vector<int>& replica_of) {
    const int replicas = instance.shape(instance.anchor).replicas;
    std::vector<std::vector<int>> on(replicas);
    std::vector<double> end = extra_s;
    for (int i = 0; i < instance.samples; ++i) {
        on[replica_of[i]].push_back(i);
        end[replica_of[i]] += at(work.own, i);
    }
    bool changed = false;
    for (int round = 0; round < 2 * replicas; ++round) {
        const std::size_t worst = std::max_element(end.begin(), end.end()) - end.begin();
        const Change change = best_change(instance, work, on, end, worst, all);
        if (!change.found) break;
        changed = true;
        const std::size_t partner = change.partner;
        const auto move = [&](int sample, std::size_t from, std::size_t to) {
            replica_of[sample] = static_cast<int>(to);
            end[from] -= at(work.own, sample);
            end[to] += at(work.own, sample);
        };
        const int i = on[worst][change.give];
        move(i, worst, partner);
        if (change.exchange) {
            const int j = on[partner][change.take];
            move(j, partner, worst);
            on[worst][change.give] = j;
            on[partner][change.take] = i;
        } else {
            on[worst].erase(on[worst].begin() + change.give);
            on[partner].push_back(i);
        }
    }
    return changed;
}

}  // namespace maestro::schedule
