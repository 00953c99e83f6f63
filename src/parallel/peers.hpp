// The other ranks of a lane, as a rank talks to them while they run a task together.
#pragma once

#include <memory>
#include <string>

#include "base/context_kind.hpp"
#include "base/shard.hpp"
#include "collective/process_group.hpp"
#include "parallel/partition.hpp"

namespace maestro::parallel {

/// Which ranks of a lane hold a part of a parameter too. Each works out a part of its gradient: they sum
/// these, and the first of them counts it in norms and writes it.
enum class Sharing { none, tensor, keys };
inline constexpr Sharing kSharings[] = {Sharing::tensor, Sharing::keys};  ///< by several ranks

/// Of one rank. Groups of one rank where there is nobody else.
struct Peers {
    Degrees degrees;
    ContextKind kind = ContextKind::ring;
    std::unique_ptr<collective::ProcessGroup> tensor;   ///< tp ranks of this slice of the rows
    std::unique_ptr<collective::ProcessGroup> context;  ///< cp ranks with this one's share of the weights
    std::unique_ptr<collective::ProcessGroup> keys;     ///< of `tensor`, those that hold the same key heads

    int tp() const { return tensor->rank(); }
    int cp() const { return context->rank(); }
    /// This rank's part of `size` things that the tp ranks share out.
    Range tp_part(std::int64_t size) const { return part_of(size, tp(), degrees.tp); }
    /// `tensor` or `keys`.
    collective::ProcessGroup& group(Sharing sharing) const;
};

/// A replica of one rank.
Peers no_peers();
/// Collective over the ranks of the lane, ordered [cp][tp]; `kv_heads` of the model. `name` for messages.
Peers make_peers(const comm::Communicator& lane, backend::Backend& backend, Degrees degrees, ContextKind kind,
                 int kv_heads, const std::string& name);
/// Of a lane's rank on paper; its links to the tp and to the cp ranks.
struct PaperLink {
    double latency_s = 0, bandwidth = 0;  ///< bytes/s; 0: takes no time
};
Peers make_paper_peers(int rank, Degrees degrees, ContextKind kind, int kv_heads, PaperLink tensor = {},
                       PaperLink context = {});

/// Ranks that hold the same key heads where `tp` ranks share `kv_heads`; one is a multiple of the other.
inline int key_holders(int kv_heads, int tp) {
    return tp > kv_heads ? tp / kv_heads : 1;
}

}  // namespace maestro::parallel
