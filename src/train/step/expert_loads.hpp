// How often the routers of a step chose each expert, over all ranks, and the rows of metrics that say how
// even this was. Every rank has the numbers of all sections and layers, whichever it runs, so that all send
// the same message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.hpp"
#include "io/metrics_file.hpp"
#include "model/module.hpp"

namespace maestro::train {

/// The row of a layer whose experts were chosen `counts` times [E]. A single expert is balanced.
/// Error(broken_invariant) where nothing was chosen.
io::ExpertRow expert_row(std::int64_t step, int section, int layer, std::span<const std::int64_t> counts);

class ExpertLoads {
public:
    /// `models` by section, with which all ranks agree which layers have experts.
    explicit ExpertLoads(std::span<const model::ModelSpec> models);
    /// Adds what this rank has counted in its layers of a section. Error(broken_invariant) for a layer
    /// without experts, or with another number of them.
    void add(int section, std::span<const model::ExpertLoad> loads);
    /// Collective: replaces this rank's numbers by the sums over all ranks, which are exact and thus the same
    /// in every layout. Sends nothing where no section has experts.
    void sum_over(const comm::Communicator& world);
    /// Replaces the choices of these layers of a section by the numbers of this object.
    void look_up(int section, std::span<model::ExpertLoad> loads) const;
    /// The rows of a step, by section and layer, without layers that reported no choices (of sections that
    /// are not trained).
    std::vector<io::ExpertRow> rows(std::int64_t step) const;

private:
    struct Layer {
        int section = 0, layer = 0;
        std::size_t first = 0, experts = 0;  ///< in counts_
    };

    /// Error(broken_invariant) for a layer without experts, or with another number of them than in `load`.
    const Layer& place_of(int section, const model::ExpertLoad& load) const;

    std::vector<Layer> layers_;
    std::vector<std::int64_t> counts_;
};

}  // namespace maestro::train
