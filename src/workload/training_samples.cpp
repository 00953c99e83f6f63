#include "workload/training_samples.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "data/sample_file.hpp"
#include "data/sample_lengths.hpp"

namespace maestro::workload {

std::unique_ptr<data::Samples> sample_lengths(const config::Deck& deck, const Scenario& scenario,
                                              Pulse& pulse) {
    const config::Lengths& lengths = deck.data.lengths;
    std::int32_t marker = 0;
    for (const graph::Edge& e : scenario.graph.edges)
        if (e.tensor == EdgeTensor::embeddings)
            marker = std::max(marker, scenario.models[e.to].picture_token);
    const bool listed = !lengths.file.empty();
    const std::string name = listed ? lengths.file : "[data.lengths]";
    pulse.doing("the lengths of all samples of " + name);
    data::SampleIndex index =
        listed ? data::read_lengths(lengths.file, pulse) : data::draw_lengths(lengths.drawn, pulse);
    return std::make_unique<data::SampleLengths>(name, std::move(index), marker);
}

std::unique_ptr<data::Samples> training_samples(const config::Deck& deck, const Scenario& scenario) {
    Pulse silent;
    if (deck.data.lengths.requested()) return sample_lengths(deck, scenario, silent);
    return std::make_unique<data::SampleFile>(deck.data.train);
}

}  // namespace maestro::workload
