// A section whose tasks take the time that its model's own code would take on another device.
#pragma once

#include <cstdint>
#include <memory>

#include "model/module.hpp"
#include "workload/step_end.hpp"

namespace maestro::emulation {

struct Scales {
    double time = 1;      ///< seconds of this run for one of the device
    double messages = 1;  ///< share of the elements of a row that really moves
    /// Elements of a row or an array of `width`, at least 1.
    std::int64_t of(std::int64_t width) const;
};

/// `mesh` has the real ranks of the section, of which those of a replica begin every task together;
/// `meta_mesh` counts what its collectives take on the emulated device. `spec` and `role` are those of the
/// real section, `trainable` its weights with a gradient, `end` the seconds of this run that the end of a
/// step takes. `backend` holds the small tensors that really move: rows of scaled width, zeros.
std::unique_ptr<model::Module> make_emulated_module(backend::Backend& backend, const model::ModelSpec& spec,
                                                    const model::Role& role, std::int64_t trainable,
                                                    const backend::DeviceRates& rates, const Scales& scales,
                                                    const workload::StepEnd& end, parallel::Mesh mesh,
                                                    parallel::Mesh meta_mesh);

}  // namespace maestro::emulation
