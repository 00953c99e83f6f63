// An edge at run time. Each row of a sample is copied from the rank of the producer's group that holds it
// into the memory of the rank of the consumer's group that needs it, and its gradient is copied back.
// Nothing in a step is collective.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/tensor.hpp"
#include "channel/manifest.hpp"
#include "channel/route.hpp"
#include "channel/spec.hpp"
#include "comm/waiter.hpp"
#include "transport/transport.hpp"

namespace maestro::channel {

/// Decides what is sent where, and limits how much is in flight; the transport copies. Made by
/// open_channels(). Owns its transport and points to the waiter. One thread.
///
/// The course of a micro-batch on an edge with gradients:
///
///   producer                                                consumer
///   wait_credit(): a slot is free
///   put()                   -- rows, arrival flags -->      arrived(), rows()
///   drained(), gradient()   <-- gradients, ack flags --     put_gradient()
///   retire(): the slot is free again
///
/// Without gradients, release() sends the ack flags, and the producer need not call retire().
///
/// A micro-batch occupies one of `window` slots from put() to retire(); a producer needs a free slot, its
/// credit, for each forward. On an edge without gradients the slot becomes free by itself once all its
/// samples are released. All ranks of a producer's group must use the same slot for a micro-batch, because
/// together they fill one slot of each consumer.
///
/// Memory: window x max_received x width on every consumer for each producer group that serves it (several
/// with fan-in, each with slots and credits apart), and window x max_sent x width on every producer
/// of an edge with gradients. Only end_step() and the wait_ functions wait for a peer. Misuse throws
/// Error(broken_invariant).
class Channel {
public:
    /// `rank`: this rank of the world. The transport has rank_bytes(spec, rank) bytes of memory.
    Channel(ChannelSpec spec, int rank, comm::Waiter& waiter,
            std::unique_ptr<transport::Transport> transport);
    ~Channel();
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    const ChannelSpec& spec() const { return spec_; }
    /// This rank's place on either side, if it has one.
    std::optional<GroupRank> producer() const { return producer_; }
    std::optional<GroupRank> consumer() const { return consumer_; }

    /// Not collective, sends nothing. Called by every rank of the edge, also for a step without routes.
    void begin_step(std::int64_t step, std::span<const Route> routes);
    /// Ends the step, all of whose micro-batches must have been put, released and retired (checked). Waits
    /// for the last releases of an edge without gradients.
    void end_step();

    // Producer. `micro_batch` counts this group's micro-batches in the step.
    bool has_credit();         ///< whether a slot is free, so that one more forward may start
    bool slot_free(int slot);  ///< whether this slot is free
    int free_slot();           ///< the slot that put() would use; needs a credit
    /// Sends the rows of `output` [rows, width] that have a route. Rows without a route are not sent and get
    /// a zero gradient. The caller may reuse the tensor on return, with two exceptions where it must stay
    /// valid until drained(): a pointer is passed, or the rows are on a GPU and the edge has gradients. On a
    /// GPU, the rows are sent when the operations issued so far are done, and operations issued later may
    /// overwrite them; a rank at both ends of the edge may have separate streams for them. `slot` has to be
    /// free. -1 selects the lowest free slot; that is the same one on all ranks of a group only if the
    /// group is one rank, or if its ranks put and retire in the same order. It never is on an edge without
    /// gradients between groups of several ranks, where slots become free whenever each rank looks.
    void put(int micro_batch, const Tensor& output, int slot = -1);
    /// Whether every rank that received rows of the micro-batch, from any rank of this group, has sent
    /// their gradients, which have arrived; without gradients, whether it has released them.
    bool drained(int micro_batch);
    /// [rows of the output, width] in this channel's memory, writable, valid until retire(). Needs drained().
    Tensor gradient(int micro_batch);
    void retire(int micro_batch);  ///< frees the slot; needs drained()

    // Consumer.
    bool expects(std::int64_t sample) const;  ///< whether it is routed to this group in this step
    std::int64_t rows_of(
        std::int64_t sample) const;  ///< rows that this rank receives, known before they arrive
    bool arrived(std::int64_t sample);
    /// [rows of this rank, width], read-only, valid until release() or put_gradient(). Needs arrived().
    Tensor rows(std::int64_t sample);
    /// Declares that the rows of these samples are no longer read. Optional on an edge with gradients, where
    /// put_gradient() implies it.
    void release(std::span<const std::int64_t> samples);
    /// Sends the gradients of these samples, [this rank's rows of all of them in their order, width]. Once
    /// per sample, also for 0 rows; all samples of a micro-batch in one call make one message. The caller may
    /// reuse the tensor on return.
    void put_gradient(std::span<const std::int64_t> samples, const Tensor& gradient);

    // These wait for the conditions above, with the Waiter's deadline. Errors name the edge, the sample or
    // micro-batch, and the peer.
    void wait_credit(int slot = -1);  ///< -1: any
    void wait_drained(int micro_batch);
    void wait_arrived(std::int64_t sample);

private:
    struct Received {  // the state of a sample that this rank receives
        SampleReceive plan;
        int slot = -1;
        bool arrived = false;
        bool released = false;
        bool acked = false;  // its gradient or release has been sent
    };
    struct InFlight {  // the state of a micro-batch of this producer
        std::vector<SampleSend> samples;
        Tensor output;
        std::int64_t rows = 0;
        int slot = -1;
        std::uint64_t flag = 0;  // the value of its flags
        bool put = false;
        bool drained = false;
        bool retired = false;
    };
    struct Peer {
        int number = 0;             // in the edge's communicator
        std::size_t gradients = 0;  // offset of its slots for gradients
    };
    /// Of received rows, in the slots for one of the groups that serve the consumer.
    std::size_t row_offset(int source, int slot, std::int64_t row) const;
    std::size_t gradient_offset(const Peer& peer, int slot, std::int64_t row) const;
    std::uint64_t flag_value(int micro_batch) const;
    static std::size_t arrival_of(const FlagPair& flag, int slot);  ///< offset
    std::size_t ack_of(const FlagPair& flag, int slot) const;
    Received& received(std::int64_t sample);
    const Received& received(std::int64_t sample) const;
    InFlight& in_flight(int micro_batch);
    const FlagPair* missing_arrival(Received& in);
    bool acked(const InFlight& batch, const FlagPair& flag);
    void retire_drained();
    void send(const InFlight& batch);
    void ack(Received& in, std::vector<int>& peers);
    void flush(const std::vector<int>& peers, bool reuse);
    void copy_gradient_to_device(const InFlight& batch);
    void wait_for_acks_on_device(const InFlight& batch);
    std::string describe_missing_acks(int micro_batch, const InFlight& batch);

    ChannelSpec spec_;
    comm::Waiter* waiter_;
    std::unique_ptr<transport::Transport> transport_;
    int rank_;
    std::optional<GroupRank> producer_, consumer_;
    std::unordered_map<int, Peer> peers_;  // by rank of the world
    std::int64_t step_ = -1;
    bool open_ = false;
    std::uint64_t epoch_ = 0;  // number of begin_step() calls, part of every flag's value
    std::unordered_map<std::int64_t, Received> received_;  // by sample
    std::unordered_map<int, InFlight> in_flight_;          // by micro-batch
    std::vector<bool> free_;                               // by slot
};

}  // namespace maestro::channel
