// The routes of a step as one rank sees them: what it sends and gets, and which words it sets and waits for.
// Pure.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "channel/route.hpp"
#include "channel/spec.hpp"

namespace maestro::channel {

/// Rows that go between this rank and another in one stretch.
struct Stretch {
    int rank = 0;            ///< of the world, on the other side
    std::int64_t own = 0;    ///< producer: row of its output; consumer: among the sample's rows here
    std::int64_t other = 0;  ///< producer: row of the consumer's slot; consumer: row of the producer's output
    std::int64_t rows = 0;
};

/// Two words by which this rank and one on the other side tell each other of a sample: the producer that its
/// rows are there, the consumer that it is done with them. A consumer rank that gets rows has a pair with
/// every rank of the producer's replica, also with those that send it nothing: they all fill the same slot
/// again, and may not before it is read; and none may be taken for ready that is still in the step before.
/// Leaders are always a pair, so that the consumer's knows of samples without rows for it.
struct Pair {
    int rank = 0;             ///< of the world, on the other side
    std::size_t arrival = 0;  ///< byte of that word in the consumer's memory
    std::size_t answer = 0;   ///< and of this one in the producer's
};

struct Outbound {  ///< a sample that this rank's replica sends
    std::int64_t sample = 0;
    std::vector<Stretch> stretches;
    std::vector<Pair> pairs;
};

struct Inbound {  ///< a sample that this rank's replica gets
    int producer_micro_batch = 0;
    std::int64_t first_row = 0;  ///< of its rows in this rank's slot
    std::int64_t rows = 0;       ///< that this rank gets
    std::vector<Stretch> stretches;
    std::vector<Pair> pairs;
};

struct Manifest {
    std::unordered_map<int, std::vector<Outbound>> out;  ///< by micro-batch
    std::unordered_map<std::int64_t, Inbound> in;        ///< by sample
};

/// Rows of one producer's micro-batch lie in a consumer rank's slot one sample after another, in the order of
/// the routes. Checks that they fit; throws Error(broken_invariant).
Manifest manifest_of(const ChannelSpec& spec, int rank, std::span<const Route> routes);

}  // namespace maestro::channel
