// A section whose tasks sleep for the time that its model would take on another device.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "model/module.hpp"

namespace maestro::emulation {

struct Scales {
    double time = 1;      ///< seconds of this run for one second of the device
    double messages = 1;  ///< share of the elements of a row that is really sent
    /// The scaled number of elements of a row or array of `width`, at least 1.
    std::int64_t of(std::int64_t width) const;
};

/// Sleeps until comm::now_s() is `time_s`.
using Sleep = std::function<void(double time_s)>;

/// Measured over predicted seconds of what the device computes for a micro-batch, forward and backward.
using Factors = std::function<std::array<double, 2>(const model::Batch& batch)>;

/// `mesh` has the real ranks of the section; those of a replica begin every task together. `meta_mesh` counts
/// what the collectives take on the emulated device. `spec` and `role` are those of the real section.
/// `backend` holds the small tensors that really are sent, filled with zeros: rows of scaled width, and one
/// parameter of scaled size for each trainable group of the real section.
std::unique_ptr<model::Module> make_emulated_module(backend::Backend& backend, const model::ModelSpec& spec,
                                                    const model::Role& role,
                                                    const backend::DeviceRates& rates, const Scales& scales,
                                                    Sleep sleep_until, Factors factors, parallel::Mesh mesh,
                                                    parallel::Mesh meta_mesh);

}  // namespace maestro::emulation
