// The routes of a step as one rank sees them: what it sends and receives, and which flags it sets and waits
// for. A pure function, so both ends of an edge compute the same layout without exchanging a message.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "channel/route.hpp"
#include "channel/spec.hpp"

namespace maestro::channel {

/// Consecutive rows that are copied between this rank and a peer on the other side of the edge.
struct CopySegment {
    int peer = 0;             ///< rank of the world
    std::int64_t local = 0;   ///< first row. Producer: in its output; consumer: among the sample's rows here
    std::int64_t remote = 0;  ///< Producer: in the consumer's slot; consumer: in the producer's output
    std::int64_t rows = 0;
};

/// The two flags of a sample between a producer rank and a consumer rank: the producer sets `arrival` when
/// the rows of the micro-batch have been put, the consumer sets `ack` when it no longer needs those of the
/// sample or has sent their gradient. Both are flags of a slot, see spec.hpp.
///
/// A consumer rank that receives rows has a pair with every rank of the producer's group, even with those
/// that send it nothing. All of them use the same slot for a micro-batch, and no rank may fill the slot again
/// before every consumer has read it. A rank that waited for its own consumers alone could run a micro-batch
/// ahead. The two leaders always have a pair, so that the consumer's leader learns of samples without rows
/// for it.
struct FlagPair {
    int peer = 0;             ///< rank of the world, on the other side
    std::size_t arrival = 0;  ///< byte offset in the consumer's memory, of slot 0
    std::size_t ack = 0;      ///< byte offset in the producer's memory, of slot 0
};

struct SampleSend {  ///< a sample that this rank's group sends
    std::int64_t sample = 0;
    std::vector<CopySegment> segments;
    std::vector<FlagPair> flags;
};

struct SampleReceive {  ///< a sample that this rank's group receives
    int producer_micro_batch = 0;
    int source = 0;              ///< which of the fan_in() groups that serve this one has sent it
    std::int64_t first_row = 0;  ///< of its rows in this rank's slot for that group
    std::int64_t rows = 0;       ///< that this rank receives
    std::vector<CopySegment> segments;
    std::vector<FlagPair> flags;
};

struct Manifest {
    std::unordered_map<int, std::vector<SampleSend>> sends;    ///< by micro-batch
    std::unordered_map<std::int64_t, SampleReceive> receives;  ///< by sample
};

/// A consumer rank has slots for each group that serves it. In a slot, the samples of a micro-batch are
/// consecutive, in the order of the routes. Routes between other groups may be left out. Throws
/// Error(broken_invariant) if they do not fit.
Manifest manifest_of(const ChannelSpec& spec, int rank, std::span<const Route> routes);

}  // namespace maestro::channel
