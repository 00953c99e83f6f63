// An edge at run time: each row of a sample goes from the rank of the producer's replica that holds it
// straight into the memory of the rank of the consumer's that needs it, its gradient comes back the same way.
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

/// Who sends what, and how much may be on its way; how it travels is the transport's. Made by
/// open_channels(). Owns its transport; points to the waiter. One thread. Memory: window x max_received x
/// width on every consumer, window x max_sent x width on every producer if it carries gradients. A
/// micro-batch occupies one of `window` slots from put() to retire(); on a forward-only edge the slot comes
/// back by itself once all its samples are released. All ranks of a producer's replica must take the same
/// slot for a micro-batch, because they fill one slot of each consumer's. Nothing but the wait_ functions and
/// end_step() waits for a peer. Misuse throws Error(broken_invariant).
class Channel {
public:
    /// `rank` of the world is this one; the transport's memory has rank_bytes(spec, rank).
    Channel(ChannelSpec spec, int rank, comm::Waiter& waiter,
            std::unique_ptr<transport::Transport> transport);
    ~Channel();
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    const ChannelSpec& spec() const { return spec_; }
    /// Where this rank is on either side, if it is there.
    std::optional<Seat> producer() const { return producer_; }
    std::optional<Seat> consumer() const { return consumer_; }

    /// Not collective, moves nothing. Called by every rank of the edge, also for a step without routes.
    void begin_step(std::int64_t step, std::span<const Route> routes);
    /// Everything of the step is put, released and retired (checked); waits for the last releases of a
    /// forward-only edge.
    void end_step();

    // Producer. `micro_batch` counts this replica's micro-batches in the step.
    bool has_credit();         ///< a slot is free: the forward of one more may start
    bool slot_free(int slot);  ///< this one is
    int free_slot();           ///< the one that put() would take; needs a credit
    /// output [rows that this rank puts out, width]: sends the routed rows and frees the caller's tensor -
    /// except where a pointer is passed or a GPU's rows get gradients: there it stays valid until drained().
    /// Of a GPU, what operations given so far write there is sent once they are done, and freed for those
    /// given later; where the rank is at both ends, each has operations of its own. Rows without a route are
    /// not sent and get a zero gradient. `slot` has to be free; -1: the lowest that is, for replicas of one
    /// rank, and where all ranks of a replica put and retire in one order (never on a forward-only edge of
    /// several: its slots come back when each rank looks).
    void put(int micro_batch, const Tensor& output, int slot = -1);
    /// Every rank that got rows of the micro-batch, from any rank of this replica, has sent their gradients,
    /// which are here, or forward-only: has released them.
    bool drained(int micro_batch);
    /// [rows of the output, width] in this channel's memory, writable, valid until retire(). Needs drained().
    Tensor gradient(int micro_batch);
    void retire(int micro_batch);  ///< needs drained(); frees the slot

    // Consumer.
    bool expects(std::int64_t sample) const;          ///< routed to this replica in this step
    std::int64_t rows_of(std::int64_t sample) const;  ///< that this rank gets, known before arrival
    bool arrived(std::int64_t sample);
    /// [rows of this rank, width], read-only, valid until release() or put_gradient(). Needs arrived().
    Tensor rows(std::int64_t sample);
    /// The rows of these are no longer read. On a gradient edge optional: put_gradient() implies it.
    void release(std::span<const std::int64_t> samples);
    /// gradient [this rank's rows of all these samples in their order, width]; once per sample, also with 0
    /// rows. The caller's tensor is free on return. As one message: for all samples of a micro-batch at once.
    void put_gradient(std::span<const std::int64_t> samples, const Tensor& gradient);

    // The same conditions, waited for with the Waiter's deadline; an error names edge, sample or micro-batch
    // and peer.
    void wait_credit(int slot = -1);  ///< -1: any
    void wait_drained(int micro_batch);
    void wait_arrived(std::int64_t sample);

private:
    struct Receipt {  // what has become of a sample that this rank gets
        Inbound due;
        int slot = -1;
        bool arrived = false;
        bool released = false;
        bool answered = false;  // gradient or release is sent
    };
    struct Flight {  // a micro-batch of this producer
        std::vector<Outbound> samples;
        Tensor output;
        std::int64_t rows = 0;
        int slot = -1;
        bool put = false;
        bool drained = false;
        bool retired = false;
    };
    struct Peer {
        int number = 0;             // in the edge's communicator
        std::size_t gradients = 0;  // where its slots of gradients begin
    };
    std::size_t row_in_slot(int slot, std::int64_t row) const;  // of rows that came in
    std::size_t row_in_gradient(const Peer& peer, int slot, std::int64_t row) const;
    std::uint64_t tagged(int slot) const;
    Receipt& receipt(std::int64_t sample);
    const Receipt& receipt(std::int64_t sample) const;
    Flight& flight(int micro_batch);
    const Pair* missing_arrival(const Receipt& receipt);
    bool answered(const Pair& pair);
    void collect_drained();
    void send(const Flight& flight);
    void answer(Receipt& receipt, std::vector<int>& told);
    void push(const std::vector<int>& told, bool reuse);
    void fetch_gradient(const Flight& flight);
    void follow_answers(const Flight& flight);
    std::string unanswered(int micro_batch, const Flight& flight);

    ChannelSpec spec_;
    comm::Waiter* waiter_;
    std::unique_ptr<transport::Transport> transport_;
    int rank_;
    std::optional<Seat> producer_, consumer_;
    std::unordered_map<int, Peer> peers_;  // by rank of the world
    std::int64_t step_ = -1;
    bool open_ = false;
    std::uint64_t epoch_ = 0;  // begin_step calls so far: tags the words
    std::unordered_map<std::int64_t, Receipt> receipts_;
    std::unordered_map<int, Flight> flights_;
    std::vector<bool> free_;  // by slot
};

}  // namespace maestro::channel
