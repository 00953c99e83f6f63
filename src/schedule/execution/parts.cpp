#include "schedule/execution/parts.hpp"

#include <algorithm>
#include <numeric>

namespace maestro::schedule {

namespace {

/// Assigns the samples `first` up to `last` of a micro-batch.
void assign_by_cost(const Instance& instance, int section, int first, int last, Batches& batches) {
    const StageShape& shape = instance.shape(instance.last_stage(section));
    const auto cost = [&](int k) {
        double sum = 0;
        for (int s = instance.first_stage(section); s <= instance.last_stage(section); ++s)
            sum += instance.total(s, batches.samples[k]);
        return sum;
    };
    std::vector<int> order(last - first);
    std::iota(order.begin(), order.end(), first);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return cost(a) > cost(b); });
    std::vector<double> load(shape.parts, 0.0);
    std::vector<int> samples(shape.parts, 0);
    for (const int k : order) {
        int least = -1;
        for (int part = 0; part < shape.parts; ++part)
            if (samples[part] < shape.micro_batch / shape.parts && (least < 0 || load[part] < load[least]))
                least = part;
        load[least] += cost(k);
        ++samples[least];
        batches.parts[k] = least;
    }
}

}  // namespace

void assign_parts(const Instance& instance, Sharing sharing, std::vector<Batches>& batches) {
    for (int section = 0; section < instance.sections(); ++section) {
        Batches& list = batches[section];
        const int parts = instance.shape(instance.first_stage(section)).parts;
        list.parts.assign(parts > 1 ? list.samples.size() : 0, 0);
        if (parts == 1) continue;
        int first = 0;
        for (const int last : list.ends) {
            if (sharing == Sharing::by_cost) assign_by_cost(instance, section, first, last, list);
            for (int k = first; k < last && sharing == Sharing::in_turn; ++k)
                list.parts[k] = (k - first) % parts;
            first = last;
        }
    }
}

}  // namespace maestro::schedule
