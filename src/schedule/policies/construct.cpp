#include "schedule/policies/construct.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "schedule/problem/load_heap.hpp"

namespace maestro::schedule {

namespace {

constexpr double kLevel = 1.001;   ///< a fullest group that is longer by less is as good
constexpr double kShorter = 1e-5;  ///< of the longest group; a change must gain more than that
/// Samples with work in other sections per group that allow one at the start, one at the end and one
/// between.
constexpr int kBareKinds = 3;

double at(const std::vector<double>& values, int i) {
    return values[i];
}

struct SamplesByWork {
    std::vector<int> heavy, light;  ///< samples with and without work in other sections
    bool bare = false;  ///< too few light samples to fill the time without inputs at the start and the end
};

/// A step of level(): sample `give` of the longest group goes to `partner`, in exchange for its sample
/// `take` if `exchange` is true. Both are indices in the lists of the groups.
struct Change {
    std::size_t partner = 0, give = 0, take = 0;
    bool found = false, exchange = false;
};

/// Returns the change that makes the longer of its two groups shortest. Samples with work in other sections
/// are exchanged for their like only, so that the work upstream for each group stays about level. on:
/// [anchor group], samples; end: [anchor group], seconds.
Change best_change(const Work& work, const std::vector<std::vector<int>>& on, const std::vector<double>& end,
                   std::size_t worst, bool all) {
    Change found;
    double best = end[worst] * (1 - kShorter);
    const auto consider = [&](double seconds, const Change& change) {
        if (seconds >= best) return;
        best = seconds;
        found = change;
    };
    for (std::size_t r = 0; r < on.size(); ++r) {
        // Their sum stays the same, so that the longer of the two cannot become shorter than their mean.
        if (r == worst || (end[worst] + end[r]) / 2 >= best) continue;
        for (std::size_t g = 0; g < on[worst].size(); ++g) {
            const int i = on[worst][g];
            const bool other_work = work.other_work[i] != 0;
            if (other_work && !all) continue;
            const double out = at(work.anchor_s, i);
            const auto longer_s = [&](double in) {
                return std::max(end[worst] - out + in, end[r] + out - in);
            };
            // Only text may move without an exchange: the number of samples that wait for inputs stays the
            // same.
            if (!other_work) consider(longer_s(0), {.partner = r, .give = g, .found = true});
            for (std::size_t t = 0; t < on[r].size(); ++t)
                if ((work.other_work[on[r][t]] != 0) == other_work)
                    consider(longer_s(at(work.anchor_s, on[r][t])),
                             {.partner = r, .give = g, .take = t, .found = true, .exchange = true});
        }
    }
    return found;
}

SamplesByWork samples_by_work(const Work& work) {
    SamplesByWork kinds;
    for (int i = 0; i < work.items(); ++i) (work.other_work[i] ? kinds.heavy : kinds.light).push_back(i);
    // With at least one text sample per group, that sample runs while the first inputs are on their way.
    kinds.bare = static_cast<int>(kinds.light.size()) < work.groups &&
                 static_cast<int>(kinds.heavy.size()) >= kBareKinds * work.groups;
    return kinds;
}

}  // namespace

void Work::set(int item, const Instance& instance, std::span<const int> samples) {
    anchor_s[item] = head_s[item] = tail_s[item] = 0;
    other_work[item] = 0;
    const int section = instance.section_of(instance.anchor), parts = instance.shape(instance.anchor).parts;
    double longest_s = 0, common_s = 0;
    for (const int i : samples) {
        double sample_s = 0;
        double alone_s = 0;
        for (const int s : instance.bottleneck) {
            sample_s += instance.total(s, i);
            alone_s += instance.alone(s, i) * instance.total(s, i);
        }
        anchor_s[item] += sample_s / parts;
        longest_s = std::max(longest_s, alone_s);
        common_s += (sample_s - alone_s) / parts;
        other_work[item] |= instance.other_work[i];
        // The keys of sorting need not be exact: sums over all sections stand for the longest path through
        // them.
        for (int s = 0; s < static_cast<int>(instance.stages.size()); ++s) {
            if (instance.section_of(s) == section) continue;
            head_s[item] += instance.forward[instance.at(s, i)];
            tail_s[item] += instance.backward[instance.at(s, i)];
        }
    }
    // What the parts do not do in common, they do for whole samples.
    anchor_s[item] = std::max(anchor_s[item], longest_s + common_s);
}

Work measure(const Instance& instance, const MicroBatches& items) {
    Work work;
    const std::size_t count = items.size();
    work.anchor_s.resize(count);
    work.head_s.resize(count);
    work.tail_s.resize(count);
    work.other_work.resize(count);
    work.groups = instance.shape(instance.anchor).groups;
    for (std::size_t item = 0; item < count; ++item)
        work.set(static_cast<int>(item), instance, items.samples(item));
    work.mean_s = count > 0 ? std::accumulate(work.anchor_s.begin(), work.anchor_s.end(), 0.0) /
                                  static_cast<double>(count)
                            : 0;
    return work;
}

std::vector<int> spread(const Work& work) {
    const int groups = work.groups;
    auto [heavy, light, bare] = samples_by_work(work);
    const auto sort = [](auto first, auto last, auto less) { std::stable_sort(first, last, less); };
    std::vector<int> group_of(work.anchor_s.size(), 0);
    std::vector<double> load_s(groups, 0.0);
    const auto assign = [&](int sample, int group) {
        load_s[group] += at(work.anchor_s, sample);
        group_of[sample] = group;
    };
    auto begin = heavy.begin(), end = heavy.end();
    if (bare) {
        sort(begin, end, [&](int a, int b) { return at(work.head_s, a) < at(work.head_s, b); });
        for (int k = 0; k < groups; ++k, ++begin) assign(*begin, k);
        sort(begin, end, [&](int a, int b) { return at(work.tail_s, a) > at(work.tail_s, b); });
        for (int k = 0; k < groups; ++k) {
            --end;
            assign(*end, k);
        }
    }
    const auto longer = [&](int a, int b) { return at(work.anchor_s, a) > at(work.anchor_s, b); };
    sort(begin, end, longer);
    sort(light.begin(), light.end(), longer);
    std::vector<int> order(begin, end);
    order.insert(order.end(), light.begin(), light.end());
    const auto to_least = [&](std::vector<int> groups_of) {
        LoadHeap loads(load_s);
        for (const int i : order) groups_of[i] = loads.add_to_least(at(work.anchor_s, i));
        return std::pair(groups_of, loads.largest());
    };
    // With work in other sections first, each group has a similar share of it, and text, which may run at
    // any time, levels the rest. Where that leaves a longer group than LPT over all samples does, level
    // work is worth more.
    const auto [kinds_apart, kinds_apart_s] = to_least(group_of);
    sort(order.begin(), order.end(), longer);
    const auto [together, together_s] = to_least(group_of);
    return together_s * kLevel < kinds_apart_s ? together : kinds_apart;
}

std::vector<std::vector<int>> orders(const Work& work) {
    const int groups = work.groups;
    auto [heavy, light, bare] = samples_by_work(work);
    std::stable_sort(light.begin(), light.end(),
                     [&](int a, int b) { return at(work.anchor_s, a) > at(work.anchor_s, b); });
    // Text is last in every order: it is ready at any time, and would take the place of a sample whose
    // backward others wait for. The sorts are stable, so that equal keys keep the order of the samples.
    std::vector<std::vector<int>> all(kOrders, heavy);
    // Johnson, "Optimal two- and three-stage production schedules" (1954): stages are the head and the
    // anchor's work.
    std::stable_sort(all[0].begin(), all[0].end(), [&](int a, int b) {
        const bool short_a = at(work.head_s, a) < at(work.anchor_s, a),
                   short_b = at(work.head_s, b) < at(work.anchor_s, b);
        if (short_a != short_b) return short_a;
        return short_a ? at(work.head_s, a) < at(work.head_s, b)
                       : at(work.anchor_s, a) > at(work.anchor_s, b);
    });
    // Longest chain first, the order in which the NEH heuristic takes jobs (Nawaz, Enscore and Ham, 1983).
    const auto chain = [&](int i) { return at(work.head_s, i) + at(work.anchor_s, i) + at(work.tail_s, i); };
    std::stable_sort(all[1].begin(), all[1].end(), [&](int a, int b) { return chain(a) > chain(b); });
    // Much work that follows after a short head, as in the slope order of Palmer (1965).
    const auto rest = [&](int i) { return at(work.anchor_s, i) + at(work.tail_s, i) - at(work.head_s, i); };
    std::stable_sort(all[2].begin(), all[2].end(), [&](int a, int b) { return rest(a) > rest(b); });
    // Longest tail first: optimal for one machine with delivery times (Jackson 1955).
    std::stable_sort(all[3].begin(), all[3].end(),
                     [&](int a, int b) { return at(work.tail_s, a) > at(work.tail_s, b); });
    if (bare) {
        // Each group starts with the sample whose inputs arrive first and ends with one whose tail is
        // short.
        std::vector<int> kind(work.anchor_s.size(), 1);
        std::vector<int> quick = heavy;
        std::stable_sort(quick.begin(), quick.end(),
                         [&](int a, int b) { return at(work.head_s, a) < at(work.head_s, b); });
        for (int k = 0; k < groups; ++k) kind[quick[k]] = 0;
        std::stable_sort(quick.begin() + groups, quick.end(),
                         [&](int a, int b) { return at(work.tail_s, a) < at(work.tail_s, b); });
        for (int k = 0; k < groups; ++k) kind[quick[groups + k]] = 2;
        for (auto& order : all)
            std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return kind[a] < kind[b]; });
    }
    for (auto& order : all) order.insert(order.end(), light.begin(), light.end());
    return all;
}

bool level(const Work& work, const std::vector<double>& extra_s, bool all, std::vector<int>& group_of) {
    const int groups = work.groups;
    std::vector<std::vector<int>> on(groups);
    std::vector<double> end = extra_s;
    for (int i = 0; i < work.items(); ++i) {
        on[group_of[i]].push_back(i);
        end[group_of[i]] += at(work.anchor_s, i);
    }
    bool changed = false;
    // Each change leaves both of its groups shorter than the longest was, so that the longest never grows
    // and no state repeats. The rounds are limited because a change takes time proportional to the samples of
    // the longest group times all samples.
    for (int round = 0; round < 2 * groups; ++round) {
        const std::size_t worst = std::max_element(end.begin(), end.end()) - end.begin();
        const Change change = best_change(work, on, end, worst, all);
        if (!change.found) break;
        changed = true;
        const std::size_t partner = change.partner;
        const auto move = [&](int sample, std::size_t from, std::size_t to) {
            group_of[sample] = static_cast<int>(to);
            end[from] -= at(work.anchor_s, sample);
            end[to] += at(work.anchor_s, sample);
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
