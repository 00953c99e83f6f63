// An edge at run time: the rows of each sample go from the producer's replica straight into the memory of the
// consumer's replica, their gradient comes back the same way. Nothing in a step is collective.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/tensor.hpp"
#include "channel/spec.hpp"
#include "channel/transport.hpp"
#include "comm/waiter.hpp"

namespace maestro::channel {

/// One sample on this edge. Every rank of the edge gets the same list, from the step plan and the metadata.
struct Route {
    std::int64_t sample;  ///< unique in the step
    int producer_replica;
    int producer_micro_batch;  ///< of that replica, in this step
    int consumer_replica;
    std::int64_t first_row;  ///< in the output of the producer's micro-batch
    std::int64_t rows;       ///< may be 0
};

/// Who sends what, and how much may be on its way; how it travels is the transport's. Made by
/// open_channels(). Owns its transport; points to the waiter. One thread. Memory: window x max_rows x width
/// on every consumer, and on every producer if it carries gradients. A micro-batch occupies one of `window`
/// slots from put() to retire(); on a forward-only edge the slot comes back by itself once all its samples
/// are released. Nothing but the wait_ functions and end_step() waits for a peer. Misuse throws
/// Error(broken_invariant).
class Channel {
public:
    /// `rank` of the world is this one; the transport's memory has rank_bytes(spec, rank).
    Channel(ChannelSpec spec, int rank, comm::Waiter& waiter, std::unique_ptr<Transport> transport);
    ~Channel();
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    const ChannelSpec& spec() const { return spec_; }
    int producer_replica() const { return producer_; }  ///< -1: this rank is no producer
    int consumer_replica() const { return consumer_; }  ///< -1: this rank is no consumer

    /// Not collective, moves nothing. Called by every rank of the edge, also for a step without routes.
    void begin_step(std::int64_t step, std::span<const Route> routes);
    /// Everything of the step is put, released and retired (checked); waits for the last releases of a
    /// forward-only edge.
    void end_step();

    // Producer. `micro_batch` counts this replica's micro-batches in the step.
    bool has_credit();  ///< a slot is free: the forward of one more may start
    /// output [rows, width]: sends each routed sample's rows and frees the caller's tensor - except
    /// colocated, where it stays valid until drained(). Needs a credit. Rows without a route are not sent and
    /// get a zero gradient.
    void put(int micro_batch, const Tensor& output);
    bool drained(int micro_batch);  ///< all its gradients are here, or forward-only: all released
    /// [rows, width] in this channel's memory, writable, valid until retire(). Needs drained().
    Tensor gradient(int micro_batch);
    void retire(int micro_batch);  ///< needs drained(); frees the slot

    // Consumer.
    bool expects(std::int64_t sample) const;          ///< routed to this replica in this step
    std::int64_t rows_of(std::int64_t sample) const;  ///< row count, known before arrival
    bool arrived(std::int64_t sample);
    /// [rows, width], read-only, valid until release() or put_gradient(). Needs arrived().
    Tensor rows(std::int64_t sample);
    /// The rows of these are no longer read. On a gradient edge optional: put_gradient() implies it.
    void release(std::span<const std::int64_t> samples);
    /// gradient [rows of all these samples in their order, width]; once per sample, also with 0 rows. The
    /// caller's tensor is free on return. As one message: for all samples of a micro-batch at once.
    void put_gradient(std::span<const std::int64_t> samples, const Tensor& gradient);

    // The same conditions, waited for with the Waiter's deadline; an error names edge, sample or micro-batch
    // and peer.
    void wait_credit();
    void wait_drained(int micro_batch);
    void wait_arrived(std::int64_t sample);

private:
    struct Inbound {  // a sample that this consumer gets
        Route route;
        std::size_t word = 0;  // position in the step's routes
        int slot = -1;
        bool released = false;
        bool answered = false;  // gradient or release is sent
    };
    struct Outbound {                    // a micro-batch of this producer
        std::vector<std::size_t> words;  // its samples, as positions in routes_
        Tensor output;
        std::int64_t rows = 0;
        int slot = -1;
        bool put = false;
        bool retired = false;
    };
    std::size_t arrival_offset(std::size_t word) const;
    std::size_t answer_offset(std::size_t word) const;
    std::size_t row_offset(int slot, std::int64_t row) const;
    int producer_peer(int replica) const;
    int consumer_peer(int replica) const;
    std::uint64_t tagged(int slot) const;
    Inbound& inbound(std::int64_t sample);
    const Inbound& inbound(std::int64_t sample) const;
    Outbound& outbound(int micro_batch);
    void answer(Inbound& in);
    void push_answers(std::span<const std::int64_t> samples);
    void send(const Outbound& out);
    std::string unanswered(int micro_batch, const Outbound& out);

    ChannelSpec spec_;
    comm::Waiter* waiter_;
    std::unique_ptr<Transport> transport_;
    int producer_ = -1;
    int consumer_ = -1;
    int fanout_ = 1;
    std::int64_t step_ = -1;
    bool open_ = false;
    std::uint64_t epoch_ = 0;  // begin_step calls so far: tags the words
    std::vector<Route> routes_;
    std::unordered_map<std::int64_t, Inbound> inbound_;
    std::unordered_map<int, Outbound> outbound_;
    std::vector<int> free_slots_;
};

}  // namespace maestro::channel
