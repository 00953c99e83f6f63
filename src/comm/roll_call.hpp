// Finds the ranks that do not answer. Ranks wait for each other in chains, so a rank whose wait reaches its
// deadline often waits for one that waits itself.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace maestro::comm {

/// The roll call of Waiter::set_roll_call(). A wait that is over its deadline sends an empty message to every
/// other rank, P - 1 in all, and each that waits, or polls between two tasks, answers with another one. A
/// rank that is stopped, in a call that never returns, or in a task longer than the roll call does not
/// answer.
///
/// Owns a duplicate of `world`; points to its Waiter, which must outlive it. Main thread only.
class RollCall {
public:
    /// Collective. `host`: the one of this rank, for messages.
    RollCall(const Communicator& world, const std::string& host);
    ~RollCall();
    RollCall(const RollCall&) = delete;
    RollCall& operator=(const RollCall&) = delete;

private:
    Waiter::Missing ask();
    void answer() noexcept;
    void receive() noexcept;
    std::string missing_since(double time_s) const;

    Communicator world_;
    std::vector<std::string> hosts_;  ///< of each rank
    /// When this rank last heard from each. Waits nest, and each compares it with the time when it asked.
    std::vector<double> heard_s_;
    double polled_s_ = 0;  ///< when it last looked for messages
};

/// "rank 2 (a)" or "ranks 2 (a), 5 (b)"; of many, the first 8 and the number of the others. `hosts`: of each
/// rank of the world.
std::string list_ranks(std::span<const int> ranks, std::span<const std::string> hosts);

}  // namespace maestro::comm
