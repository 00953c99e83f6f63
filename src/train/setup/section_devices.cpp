#include "train/setup/section_devices.hpp"

#include <algorithm>

#include "graph/grid.hpp"
#include "train/setup/device.hpp"

namespace maestro::train {

SectionDevices::SectionDevices(const RunContext& context, const workload::MemoryPlan& plan) {
    const graph::SectionGraph& graph = context.scenario.graph;
    std::vector<double> bytes;  // of scratch, by place
    for (int s = 0; s < static_cast<int>(graph.sections.size()); ++s) {
        place_.push_back(-1);
        if (!graph::holds(graph.sections[s], context.world.rank())) continue;
        // Sections that share scratch take turns, so the largest need is enough for all.
        if (bytes.empty() || !plan.shares_scratch) bytes.push_back(0);
        place_.back() = static_cast<int>(bytes.size()) - 1;
        for (int stage = graph.sections[s].first_stage; stage <= graph.last_stage(s); ++stage)
            if (graph::holds(graph, stage, context.world.rank()))
                bytes.back() = std::max(bytes.back(), workload::scratch_of(plan, stage));
    }
    for (const double size : bytes) {
        auto backend = open_device(context);
        backend::Arena scratch(*backend, static_cast<std::size_t>(size));
        entries_.push_back({std::move(backend), std::move(scratch)});
    }
}

SectionDevices::Entry& SectionDevices::entry(int section) {
    MAESTRO_CHECK(place_[section] >= 0, "section {} is not on this rank", section);
    return entries_[place_[section]];
}

backend::Backend* SectionDevices::find(int section) {
    return place_[section] < 0 ? nullptr : entry(section).backend.get();
}

std::size_t SectionDevices::scratch_bytes() const {
    std::size_t bytes = 0;
    for (const Entry& entry : entries_) bytes += entry.scratch.capacity();
    return bytes;
}

std::size_t SectionDevices::used_scratch_bytes() const {
    std::size_t bytes = 0;
    for (const Entry& entry : entries_) bytes += entry.scratch.peak();
    return bytes;
}

}  // namespace maestro::train
