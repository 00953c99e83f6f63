#include "schedule/policies/buckets.hpp"

#include <algorithm>
#include <span>
#include <vector>

namespace maestro::schedule {

namespace {

/// Seconds of a sample in a section, all stages together.
double cost_in(const Instance& instance, int section, int sample) {
    double sum = 0;
    for (int s = instance.first_stage(section); s <= instance.last_stage(section); ++s)
        sum += instance.total(s, sample);
    return sum;
}

/// The sections of which a lane has several parts, those with the most parts first.
std::vector<int> sections_with_parts(const Instance& instance) {
    std::vector<int> sections;
    for (int section = 0; section < instance.sections(); ++section)
        if (instance.shape(instance.first_stage(section)).parts > 1) sections.push_back(section);
    std::stable_sort(sections.begin(), sections.end(), [&](int a, int b) {
        return instance.shape(instance.first_stage(a)).parts > instance.shape(instance.first_stage(b)).parts;
    });
    return sections;
}

/// Cuts samples into buckets for the first of the sections, and these into buckets for the next.
void divide(const Instance& instance, std::span<int> samples, std::span<const int> sections,
            MicroBatches& buckets) {
    if (samples.empty()) return;
    if (sections.empty()) {
        buckets.add(samples);
        return;
    }
    const int section = sections.front();
    std::stable_sort(samples.begin(), samples.end(), [&](int a, int b) {
        return cost_in(instance, section, a) > cost_in(instance, section, b);
    });
    const std::size_t parts = instance.shape(instance.first_stage(section)).parts;
    for (std::size_t first = 0; first < samples.size(); first += parts)
        divide(instance, samples.subspan(first, std::min(parts, samples.size() - first)), sections.subspan(1),
               buckets);
}

/// Samples with work outside the anchor's section are divided for `sections`, the others for the anchor.
MicroBatches buckets_of(const Instance& instance, std::span<const int> sections, Kinds kinds) {
    const int anchor = instance.section_of(instance.anchor);
    const bool anchor_has_parts = instance.shape(instance.anchor).parts > 1;
    MicroBatches buckets;
    std::vector<int> heavy, light;
    for (int i = 0; i < instance.samples; ++i)
        (instance.other_work[i] || kinds == Kinds::together ? heavy : light).push_back(i);
    const auto add = [&](std::vector<int>& samples, std::span<const int> of) {
        if (!of.empty()) return divide(instance, samples, of, buckets);
        for (const int& i : samples) buckets.add({&i, 1});
    };
    add(heavy, sections);
    add(light, anchor_has_parts ? std::span(&anchor, 1) : std::span<const int>());
    return buckets;
}

}  // namespace

Buckets make_buckets(const Instance& instance, Kinds kinds) {
    const std::vector<int> sections = sections_with_parts(instance);
    if (sections.empty()) return {MicroBatches(instance.samples), MicroBatches(instance.samples)};
    if (instance.shape(instance.anchor).parts == 1)
        return {buckets_of(instance, std::span(sections).first(1), kinds), MicroBatches(instance.samples)};
    const auto anchor = std::find(sections.begin(), sections.end(), instance.section_of(instance.anchor));
    const std::span down_to_anchor(sections.begin(), anchor + 1);
    return {buckets_of(instance, std::span(sections).first(1), kinds),
            buckets_of(instance, down_to_anchor, kinds)};
}

Instance bundle(const Instance& instance, const MicroBatches& items) {
    Instance bundled = instance;
    bundled.samples = static_cast<int>(items.size());
    const std::size_t count = instance.stages.size() * items.size();
    bundled.ids.assign(items.size(), 0);
    bundled.forward.assign(count, 0.0);
    bundled.backward.assign(count, 0.0);
    bundled.transfer.assign(count, 0.0);
    bundled.common.assign(count, 0.0);
    bundled.active.assign(count, 0);
    bundled.other_work.assign(items.size(), 0);
    for (int item = 0; item < bundled.samples; ++item)
        for (const int i : items.samples(item)) {
            bundled.ids[item] = instance.ids[i];
            bundled.other_work[item] |= instance.other_work[i];
            for (int s = 0; s < static_cast<int>(instance.stages.size()); ++s) {
                const std::size_t to = bundled.at(s, item), from = instance.at(s, i);
                bundled.forward[to] += instance.forward[from];
                bundled.backward[to] += instance.backward[from];
                bundled.transfer[to] += instance.transfer[from];
                bundled.active[to] |= instance.active[from];
            }
        }
    for (int s = 0; s < static_cast<int>(instance.stages.size()); ++s) {
        // An item is a micro-batch, and not a sample of one.
        bundled.stages[s].lacking_forward_s = bundled.stages[s].lacking_backward_s = 0;
        const int parts = instance.shape(s).parts;
        for (int item = 0; parts > 1 && item < bundled.samples; ++item) {
            double forward = 0, backward = 0, common_forward = 0, common_backward = 0;
            for (const int i : items.samples(item)) {
                const std::size_t at = instance.at(s, i);
                forward = std::max(forward, instance.alone(s, i) * instance.forward[at]);
                backward = std::max(backward, instance.alone(s, i) * instance.backward[at]);
                common_forward += instance.common[at] * instance.forward[at];
                common_backward += instance.common[at] * instance.backward[at];
            }
            const std::size_t to = bundled.at(s, item);
            bundled.forward[to] = std::max(bundled.forward[to], parts * forward + common_forward);
            bundled.backward[to] = std::max(bundled.backward[to], parts * backward + common_backward);
        }
    }
    return bundled;
}

}  // namespace maestro::schedule
