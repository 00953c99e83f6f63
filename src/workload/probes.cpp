#include "workload/probes.hpp"

#include <string>

namespace maestro::workload {

namespace {

parallel::Mesh mesh_of(const Probe& probe) {
    return parallel::make_meta_mesh(probe.rank, probe.shape, probe.links);
}

}  // namespace

void Probe::add(const model::SampleShape& sample, int count) {
    if (!samples.empty() && samples.back().first == sample)
        samples.back().second += count;
    else
        samples.emplace_back(sample, count);
}

const model::Footprint& Probes::footprint(const Probe& probe) {
    const auto at = footprints_.find(probe);
    if (at != footprints_.end()) return at->second;
    std::vector<model::SampleShape> samples;
    for (const auto& [sample, count] : probe.samples)
        samples.insert(samples.end(), static_cast<std::size_t>(count), sample);
    return footprints_
        .emplace(probe, model::measure(probe.spec, probe.role, samples, probe.options, mesh_of(probe)))
        .first->second;
}

const StepEnd& Probes::step_end(const Probe& probe) {
    const auto at = step_ends_.find(probe);
    if (at != step_ends_.end()) return at->second;
    return step_ends_
        .emplace(probe, measure_step_end(probe.spec, probe.role, mesh_of(probe), probe.options.rates))
        .first->second;
}

/// Hashes the fields in which the probes of a planner usually differ, mixed as by boost::hash_combine.
/// Equality compares all fields.
std::size_t Probes::Hash::operator()(const Probe& probe) const {
    std::size_t hash = std::hash<std::string>{}(probe.role.section);
    const auto mix = [&](auto value) {
        hash ^= std::hash<decltype(value)>{}(value) + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
    };
    mix(probe.shape.dp);
    mix(probe.shape.degrees.tp);
    mix(probe.shape.degrees.cp);
    mix(static_cast<int>(probe.shape.context_kind));
    mix(probe.shape.experts.ep);
    mix(probe.shape.experts.etp);
    mix(static_cast<int>(probe.role.recompute));
    mix(probe.role.recompute_layers);
    mix(probe.role.stage.index);
    mix(probe.role.stage.count);
    mix(probe.role.stage.first_layer);
    mix(probe.role.stage.layers);
    mix(probe.spec.layers);
    mix(probe.rank);
    mix(probe.links.tp.bandwidth);
    mix(probe.options.rates.element_flops);
    mix(probe.options.rates.bytes);
    for (const auto& [sample, count] : probe.samples) {
        mix(count);
        mix(sample.tokens);
        for (const Item& item : sample.items) {
            mix(item.height);
            mix(item.width);
        }
    }
    return hash;
}

}  // namespace maestro::workload
