// Collectives on tensors, over the ranks that share the work of a replica or a gradient's sum. On real ranks
// they are messages, on paper they are counted: model code calls the same verbs on both.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/arena.hpp"
#include "base/tensor.hpp"
#include "comm/communicator.hpp"
#include "ops/reduce.hpp"

namespace maestro::collective {

/// What this rank has sent.
struct Traffic {
    std::int64_t messages = 0;
    std::int64_t bytes = 0;
    double seconds = 0;  ///< of a group on paper, by its link; 0 of a real one
};

/// Ranks in an order of their own. Every verb is called by all members in the same order with the same sizes,
/// and means the same whatever the timing: sums are taken in the order of ranks, so that they have the same
/// bits on every rank and in every run. `rows` says how many rows each rank has; they may differ and be 0.
/// Tensors are [rows, columns], alike but for their rows. Errors: Error(peer_lost) after the deadline. On one
/// rank a verb moves nothing, or copies.
class ProcessGroup {
public:
    virtual ~ProcessGroup() = default;
    ProcessGroup(const ProcessGroup&) = delete;
    ProcessGroup& operator=(const ProcessGroup&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    /// By what messages travel, and why, for the log.
    const std::string& transport() const { return transport_; }
    const Traffic& traffic() const { return traffic_; }
    void reset_traffic() { traffic_ = {}; }

    /// A verb that has begun. Until wait() its tensors are not to be touched.
    using Request = std::size_t;
    virtual void wait(Request request) = 0;

    /// whole = the `own` of all ranks, one below the other.
    Request start_all_gather(backend::Backend& b, const Tensor& own, const Tensor& whole,
                             std::span<const std::int64_t> rows);
    void all_gather(backend::Backend& b, const Tensor& own, const Tensor& whole,
                    std::span<const std::int64_t> rows) {
        wait(start_all_gather(b, own, whole, rows));
    }
    /// The same where this rank's rows are in their place already.
    Request start_all_gather_in_place(const Tensor& whole, std::span<const std::int64_t> rows);
    /// Rank r gets send_rows[r] rows of `send`, which lie in the order of ranks; likewise `received` is
    /// filled.
    Request start_all_to_all(backend::Backend& b, const Tensor& send, std::span<const std::int64_t> send_rows,
                             const Tensor& received, std::span<const std::int64_t> received_rows);
    void all_to_all(backend::Backend& b, const Tensor& send, std::span<const std::int64_t> send_rows,
                    const Tensor& received, std::span<const std::int64_t> received_rows) {
        wait(start_all_to_all(b, send, send_rows, received, received_rows));
    }
    /// `send` goes to the rank `distance` further in the ring, `received` comes from the one as far back; its
    /// rows may be others.
    Request start_shift(backend::Backend& b, const Tensor& send, const Tensor& received, int distance);

    /// own = this rank's rows of the sum, or maximum, of all ranks' `whole`. It is no part of that, or these
    /// very rows. Takes scratch, see reduce_scratch().
    void reduce_scatter(backend::Backend& b, const Tensor& whole, const Tensor& own,
                        std::span<const std::int64_t> rows, ops::Reduction how, backend::Arena& scratch);
    /// In place; scratch as for part_of(size of `values`, 0, size()) elements.
    void all_reduce(backend::Backend& b, const Tensor& values, ops::Reduction how, backend::Arena& scratch);

protected:
    ProcessGroup(int rank, int size, std::string transport)
        : rank_(rank), size_(size), transport_(std::move(transport)) {}

    struct Message {
        int peer = 0;
        void* data = nullptr;
        std::size_t bytes = 0;  ///< > 0
    };
    virtual Request begin(std::span<const Message> out, std::span<const Message> in) = 0;
    Traffic traffic_;

private:
    Request exchange(std::vector<Message> out, std::vector<Message> in);
    /// outgoing(r) goes to every other rank r, whose own comes into incoming(r).
    Request exchange_with_all(const std::function<Tensor(int)>& outgoing,
                              const std::function<Tensor(int)>& incoming);

    int rank_, size_;
    std::string transport_;
};

/// Bytes of scratch that reduce_scatter takes at most, where no rank gets more `elements`.
std::size_t reduce_scratch(int ranks, std::int64_t elements, DType type);

/// Collective. Of these ranks, in the communicator's order. Tensors are the backend's, which must outlive it.
/// How they travel is chosen here, and said by way(): by NCCL where every rank has a GPU of its own, through
/// pinned memory of the host where GPUs are shared or NCCL is not there, straight where the host computes.
/// With NCCL, and for what a device computes, wait() lets the device wait and not the host.
std::unique_ptr<ProcessGroup> make_process_group(comm::Communicator members, backend::Backend& backend);
/// Of a rank on paper: messages and bytes are counted, and the seconds that they take on a link.
std::unique_ptr<ProcessGroup> make_meta_group(int rank, int size, double latency_s = 0, double bandwidth = 0);

}  // namespace maestro::collective
