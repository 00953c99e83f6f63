// Compares the gradients and the losses of a section that several ranks share with those of the same section
// on one rank.
#pragma once

#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "comm/communicator.hpp"
#include "model/module.hpp"
#include "support/device.hpp"

namespace maestro::model::test {

constexpr double kNear = 1e-11;  ///< tolerance in double, relative to the norm of a gradient

/// Throws Error(broken_invariant) unless the shards of this rank's gradients in `part`, after they were
/// reduced, are the gradients of `whole`, and none of these is zero. `what` begins the message.
inline void compare_gradients(const Module& whole, const Module& part, const std::string& what) {
    for (const parallel::Parameter& p : part.parameters().parameters()) {
        if (!p.trainable || p.balance_step > 0) continue;  // a bias that balances experts has none
        const auto values = [](const Module& m, const Tensor& t) {
            return testing_support::read_elements(m.parameters().backend(), t);
        };
        const auto expected = values(whole, whole.parameters().find(p.name)->gradient),
                   found = values(part, p.gradient);
        double norm = 0;
        for (const double v : expected) norm += v * v;
        norm = std::sqrt(norm);
        MAESTRO_CHECK(norm > 1e-6, "{}: the gradient of {} is zero", what, p.name);
        for (const Extent& e : extents_of(p.shape, p.shard, part.parameters().group_of(p).shard_of(p)))
            for (std::int64_t i = 0; i < e.count; ++i)
                MAESTRO_CHECK(std::abs(found[e.local + i] - expected[e.logical + i]) < kNear * norm,
                              "{}: the gradient of {} is {:.15g} at {}, on one rank {:.15g}", what, p.name,
                              found[e.local + i], e.logical + i, expected[e.logical + i]);
    }
}

/// Throws Error(broken_invariant) unless what the ranks of the world have found of each term of the loss adds
/// up to what one rank has. Collective.
inline void compare_terms(const comm::Communicator& world, const std::map<std::string, double>& expected,
                          const std::map<std::string, double>& found, const std::string& what) {
    std::vector<double> sums;
    for (const auto& [term, value] : expected) sums.push_back(found.contains(term) ? found.at(term) : 0);
    world.allreduce_sum(std::span(sums));
    std::size_t at = 0;
    for (const auto& [term, value] : expected) {
        MAESTRO_CHECK(value > 1e-6, "{}: {} is {}", what, term, value);
        MAESTRO_CHECK(std::abs(sums[at] - value) < kNear * value, "{}: {} is {:.15g}, on one rank {:.15g}",
                      what, term, sums[at], value);
        ++at;
    }
    for (const auto& [term, value] : found)
        MAESTRO_CHECK(expected.contains(term), "{}: {}, which one rank does not have", what, term);
}

}  // namespace maestro::model::test
