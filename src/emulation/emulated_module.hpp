// A section whose tasks sleep for the time that its model would take on another device.
#pragma once

#include <cstdint>
#include <memory>

#include "model/module.hpp"
#include "workload/step_end.hpp"

namespace maestro::emulation {

struct Scales {
    double time = 1;      ///< seconds of this run for one second of the device
    double messages = 1;  ///< share of the elements of a row that is really sent
    /// The scaled number of elements of a row or array of `width`, at least 1.
    std::int64_t of(std::int64_t width) const;
};

/// `mesh` has the real ranks of the section; those of a replica begin every task together. `meta_mesh` counts
/// what the collectives take on the emulated device. `spec` and `role` are those of the real section,
/// `trainable` is its number of weights with a gradient, and `end` the end of a step in seconds of this run.
/// `backend` holds the small tensors that really are sent: rows of scaled width, filled with zeros.
std::unique_ptr<model::Module> make_emulated_module(backend::Backend& backend, const model::ModelSpec& spec,
                                                    const model::Role& role, std::int64_t trainable,
                                                    const backend::DeviceRates& rates, const Scales& scales,
                                                    const workload::StepEnd& end, parallel::Mesh mesh,
                                                    parallel::Mesh meta_mesh);

}  // namespace maestro::emulation
