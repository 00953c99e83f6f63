// Memory that forked processes share, as the ranks of MPI's stand-in.
#pragma once

#include <memory>

namespace maestro::gpu_check {

constexpr int kMostRanks = 8;

struct SharedWorld;
struct UnmapWorld {
    void operator()(SharedWorld* world) const;
};
/// For `size` ranks, at most kMostRanks, that wait for each other for so long. Made before they are forked.
/// Throws Error(broken_invariant).
std::unique_ptr<SharedWorld, UnmapWorld> make_shared_world(int size, double timeout_s);
/// This process becomes rank `rank` of MPI_COMM_WORLD.
void join_world(SharedWorld& world, int rank);

}  // namespace maestro::gpu_check
