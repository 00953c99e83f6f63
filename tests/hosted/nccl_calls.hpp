// What the calls of the simulated NCCL move and compute. A collective sends every block straight to the rank
// that needs it, and sums in the order of a ring, which is another one for each block, as NCCL's does.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "nccl_links.hpp"

namespace hosted {

/// Bytes of an element; 0 for a type that is not simulated.
std::size_t size_of(ncclDataType_t type);

/// A send or a receive, and its progress. A head precedes the data, so that the receiver can check what it
/// receives.
struct Transfer {
    struct Head {
        std::uint64_t bytes = 0;
        int type = 0;
        int call = 0;  ///< which kind of call it belongs to
        bool operator==(const Head&) const = default;
    };
    bool is_send;
    int peer;
    char* data;
    Head head;
    bool in_host_memory = false;  ///< of the library itself
    Head received_head = {};
    std::size_t head_bytes = 0, done_bytes = 0;
    bool done() const { return head_bytes == sizeof(Head) && done_bytes == head.bytes; }
};

/// Transfers that go on at the same time, and what is computed when all have ended.
struct Phase {
    std::vector<Transfer> transfers;
    std::function<void()> finish = {};
};

/// Adds the transfers of `other`, and what it computes, to `phase`.
void join(Phase& phase, const Phase& other);

/// A call, or a group of calls of one phase each, as its phases.
struct Call {
    std::vector<Phase> phases;
    std::size_t at = 0;  ///< the phase under way

    /// Does what can be done now. Returns whether the call is complete. Throws PeerGone.
    bool advance(Links& links, int rank);
};

Call message(bool is_send, void* data, std::size_t bytes, ncclDataType_t type, int peer);
/// `count`: elements of a rank's block.
Call reduce_scatter(const void* whole, void* block, std::size_t count, ncclDataType_t type, int rank,
                    int size);
/// `count`: elements of the tensor, whose sum the rank `root` writes to `result`.
Call reduce(const void* values, void* result, std::size_t count, ncclDataType_t type, int root, int rank,
            int size);
Call all_gather(const void* block, void* whole, std::size_t count, ncclDataType_t type, int rank, int size);
/// `count`: elements of the tensor.
Call all_reduce(const void* values, void* result, std::size_t count, ncclDataType_t type, int rank, int size);

}  // namespace hosted
