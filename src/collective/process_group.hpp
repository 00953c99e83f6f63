// Collective operations on tensors among the ranks of a process group: those that share the work of a
// replica, or those that sum a gradient. A group of real ranks sends messages, a meta group counts them, and
// model code calls the same functions on both.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/arena.hpp"
#include "base/tensor.hpp"
#include "collective/collective_times.hpp"
#include "collective/nodes.hpp"
#include "collective/operation.hpp"
#include "comm/communicator.hpp"
#include "ops/reduce.hpp"

namespace maestro::collective {

class RankRows;

/// The cost model of a link: a message of n bytes takes latency_s + n / bandwidth seconds.
struct LinkCost {
    double latency_s = 0;
    double bandwidth = 0;  ///< bytes per second; 0: infinite
    bool operator==(const LinkCost&) const = default;
};

/// Measured times of a meta group's collectives, which count in the place of its links' where there are any.
struct MeasuredGroup {
    CollectiveTimes times = {};
    int nodes = 0;  ///< on which its ranks are; 0: as many as its Nodes
    /// Where it may be on as many nodes as this: a collective takes the least of its times on `nodes` to
    /// these.
    int most_nodes = 0;
    /// How many times as many bytes as its tensors tell a collective exchanges.
    double load = 1;
};

/// What this rank has sent since the last reset.
struct Traffic {
    std::int64_t messages = 0;
    std::int64_t bytes = 0;
    /// Of a meta group, by its links or measured times: seconds in which operations wait for messages and
    /// compute nothing. Of a loopback group those of its copies. 0 for real ranks.
    double seconds = 0;
};

/// Who takes sums, which decides their order.
enum class Sums {
    /// The library that moves the tensors, where it has collectives (NCCL), in its order. It depends on the
    /// element's place, the number of ranks, the network and the library's version. An all-reduce has the
    /// same bits on all ranks.
    automatic,
    /// The ranks, in a fixed order that does not depend on who holds an element: that of ranks or, in a group
    /// that knows of several nodes with several ranks each, that of ranks within a node and then of nodes.
    ordered,
};

/// Collectives of a library. Each returns the request of the whole operation.
class NativeCollectives {
public:
    virtual ~NativeCollectives() = default;
    /// `parts`: of each rank, also of unequal size. `local` does not overlap them or is this rank's part.
    virtual std::size_t begin_sum_scatter(const RankRows& parts, const Tensor& local) = 0;
    /// `local` is this rank's part of `whole`, and all parts have its size.
    virtual std::size_t begin_all_gather(const Tensor& local, const Tensor& whole) = 0;
    virtual std::size_t begin_all_sum(const Tensor& values) = 0;
};

/// A fixed sequence of ranks. All members call the same operations in the same order with the same sizes.
/// Results do not depend on timing, so they have the same bits in every run; see Sums. The argument `rows` is
/// the number of rows of each rank; numbers may differ and may be 0. Tensors are [rows, columns], with the
/// same type and columns on all ranks. A rank that does not answer within the deadline is Error(peer_lost).
/// In a group of one rank nothing is sent.
class ProcessGroup {
public:
    virtual ~ProcessGroup() = default;
    ProcessGroup(const ProcessGroup&) = delete;
    ProcessGroup& operator=(const ProcessGroup&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    /// How messages travel, and why, for the log: "messages: no rank has a GPU".
    const std::string& transport() const { return transport_; }
    const Nodes& nodes() const { return nodes_; }
    const Traffic& traffic() const { return traffic_; }
    virtual void reset_traffic() { traffic_ = {}; }

    /// An exchange that has been started. Its tensors must not be read or written until wait() returns, or
    /// test() returns true.
    using Request = std::size_t;
    virtual void wait(Request request) = 0;
    /// Whether the exchange has ended, without waiting for other ranks. A request for which this has returned
    /// true is not waited for any more.
    virtual bool test(Request request) = 0;
    /// For messages about a long wait: which ranks the exchange waits for, "rank 3 of GROUP" where that is
    /// known.
    virtual std::string describe(Request request) const {
        static_cast<void>(request);
        return "its other ranks";
    }
    /// Whether these sums are taken in the order of Sums::ordered.
    bool ordered(Sums sums) const { return !native_sums_ || sums == Sums::ordered; }
    /// For operations that run beside other work. Ends when every rank has launched it and has computed what
    /// it had issued by then. The exchange that follows then waits for no rank, and only for what was issued
    /// before the rendezvous. A device would otherwise wait within NCCL's kernels, which occupy
    /// multiprocessors, and for work that was issued since. Ends at once where the host moves the tensors.
    virtual Operation launch_rendezvous() { return {}; }

    /// whole = the `local` tensors of all ranks, concatenated in the order of ranks.
    Request start_all_gather(backend::Backend& b, const Tensor& local, const Tensor& whole,
                             std::span<const std::int64_t> rows);
    void all_gather(backend::Backend& b, const Tensor& local, const Tensor& whole,
                    std::span<const std::int64_t> rows) {
        wait(start_all_gather(b, local, whole, rows));
    }
    /// The same when this rank's rows are already in their place in `whole`.
    Request start_all_gather_in_place(const Tensor& whole, std::span<const std::int64_t> rows);
    /// Sends send_rows[r] rows to each rank r. `send` holds them in the order of ranks, and `received` is
    /// filled in the order of ranks with received_rows[r] rows from each.
    Request start_all_to_all(backend::Backend& b, const Tensor& send, std::span<const std::int64_t> send_rows,
                             const Tensor& received, std::span<const std::int64_t> received_rows);
    void all_to_all(backend::Backend& b, const Tensor& send, std::span<const std::int64_t> send_rows,
                    const Tensor& received, std::span<const std::int64_t> received_rows) {
        wait(start_all_to_all(b, send, send_rows, received, received_rows));
    }
    /// A ring shift: sends `send` to rank + distance and receives `received` from rank - distance, both
    /// modulo the size of the group. The two may have different numbers of rows.
    Request start_shift(backend::Backend& b, const Tensor& send, const Tensor& received, int distance);

    /// local = this rank's rows of the sum, or of the maximum, of the `whole` tensors of all ranks. `local`
    /// either does not overlap `whole` or is exactly this rank's rows of it. Takes at most reduce_scratch()
    /// bytes of scratch, until the operation has ended. Across nodes each sum is taken within the nodes
    /// first, so that every node sends one partial sum of a shard to the shard's rank.
    Operation launch_reduce_scatter(backend::Backend& b, const Tensor& whole, const Tensor& local,
                                    std::span<const std::int64_t> rows, ops::Reduction reduction,
                                    backend::Arena& scratch, Sums sums = Sums::automatic);
    void reduce_scatter(backend::Backend& b, const Tensor& whole, const Tensor& local,
                        std::span<const std::int64_t> rows, ops::Reduction reduction,
                        backend::Arena& scratch) {
        launch_reduce_scatter(b, whole, local, rows, reduction, scratch).wait();
    }
    /// start_all_gather_in_place() as an operation, which across nodes sends the rows of a rank to each other
    /// node once and distributes them there.
    Operation launch_all_gather(const Tensor& whole, std::span<const std::int64_t> rows);
    /// The same where this rank's rows, `local`, are not in `whole` yet.
    Operation launch_all_gather(backend::Backend& b, const Tensor& local, const Tensor& whole,
                                std::span<const std::int64_t> rows);
    /// In place. Takes reduce_scratch() bytes of scratch for part_of(values.size(), 0, size()) elements.
    Operation launch_all_reduce(backend::Backend& b, const Tensor& values, ops::Reduction reduction,
                                backend::Arena& scratch, Sums sums = Sums::automatic);
    void all_reduce(backend::Backend& b, const Tensor& values, ops::Reduction reduction,
                    backend::Arena& scratch, Sums sums = Sums::automatic) {
        launch_all_reduce(b, values, reduction, scratch, sums).wait();
    }

protected:
    ProcessGroup(int rank, Nodes nodes, std::string transport)
        : rank_(rank), size_(nodes.ranks()), nodes_(std::move(nodes)), transport_(std::move(transport)) {}

    struct Message {
        int peer = 0;
        void* data = nullptr;
        std::size_t bytes = 0;  ///< > 0
    };
    virtual Request begin(std::span<const Message> sends, std::span<const Message> receives) = 0;
    /// What an exchange is, by which a meta group knows its time.
    enum class Exchange {
        messages,
        all_gather,  ///< the only exchange of one
        all_to_all,
        part,  ///< of a collective that begin_whole() has begun
    };
    virtual Request begin_as(Exchange exchange, std::span<const Message> sends,
                             std::span<const Message> receives) {
        static_cast<void>(exchange);
        return begin(sends, receives);
    }
    /// Begins a collective of several exchanges whose whole time a meta group knows; otherwise nothing.
    /// `bytes` as in CollectiveRow.
    virtual std::optional<Request> begin_whole(CollectiveKind kind, double bytes) {
        static_cast<void>(kind), static_cast<void>(bytes);
        return {};
    }
    /// The device has computed for so long while exchanges were under way. Only a meta group needs to know.
    virtual void computed(double seconds) { static_cast<void>(seconds); }
    /// Called by the constructor of a group whose library has collectives.
    void use(NativeCollectives& native, Sums sums) {
        native_ = &native;
        native_sums_ = sums == Sums::automatic;
    }
    Traffic traffic_;

private:
    /// ops::reduce() within an operation.
    void reduce(backend::Backend& b, std::span<const Tensor> terms, ops::Reduction reduction,
                const Tensor& result);
    Request exchange(std::vector<Message> sends, std::vector<Message> receives, Exchange what);
    /// Copies this rank's rows to their place in `whole`.
    void place_local(backend::Backend& b, const Tensor& local, const Tensor& whole,
                     std::span<const std::int64_t> rows) const;
    /// Sends outgoing(r) to every other rank r and receives incoming(r) from it.
    Request exchange_with_all(const std::function<Tensor(int rank)>& outgoing,
                              const std::function<Tensor(int rank)>& incoming, Exchange what);
    /// Returns algorithm(what), where `what` are its exchanges. If the whole time is known, the operation
    /// ends after it.
    Operation launch(CollectiveKind kind, double bytes,
                     const std::function<Operation(Exchange what)>& algorithm);
    Operation until_both(Operation algorithm, Request whole);
    /// Reduce-scatter by the ranks themselves, of parts that are not all empty.
    Operation reduce_scatter_by_ranks(backend::Backend& b, const RankRows& parts, const Tensor& local,
                                      ops::Reduction reduction, backend::Arena& scratch, Exchange what);
    Operation reduce_scatter_directly(backend::Backend& b, RankRows parts, Tensor local,
                                      ops::Reduction reduction, backend::Arena& scratch, Exchange what);
    Operation reduce_scatter_by_nodes(backend::Backend& b, RankRows parts, Tensor local,
                                      ops::Reduction reduction, backend::Arena& scratch, Exchange what);
    Operation all_reduce_in_parts(backend::Backend& b, Tensor flat, std::vector<std::int64_t> rows,
                                  ops::Reduction reduction, backend::Arena& scratch, Exchange what);
    Operation all_gather_directly(RankRows parts, Exchange what);
    Operation all_gather_by_nodes(RankRows parts, Exchange what);
    Request gather_in_place(const RankRows& parts, Exchange what);
    /// CollectiveRow::bytes of an all-gather or reduce-scatter in which this rank exchanges as much as it
    /// does with these parts, and all have equal ones.
    double bytes_of(const RankRows& parts) const;
    /// The operation whose only exchange this is.
    Operation until_ended(Request request);
    Request gather_natively(const RankRows& parts);
    void count_message(std::size_t bytes) {
        ++traffic_.messages;
        traffic_.bytes += static_cast<std::int64_t>(bytes);
    }
    /// What a native operation sends that sends `parts` parts of so many bytes to each other rank.
    void count(int parts, std::size_t bytes);

    int rank_, size_;
    NativeCollectives* native_ = nullptr;
    bool native_sums_ = false;
    Nodes nodes_;
    std::string transport_;
};

/// Bytes of scratch that a reduce-scatter takes at most, when no rank has more than `elements` elements.
/// About 64 MiB at most, whatever the number of ranks and nodes.
std::size_t reduce_scratch(int ranks, std::int64_t elements, DType type);
/// Estimates how many sums a rank computes one after another in a reduce-scatter among `nodes` with `ranks`
/// each, of which every rank gets so many elements.
double sums_by_nodes(double nodes, double ranks, double elements, DType type);

/// Makes the group of these ranks, in the communicator's order. Collective. `backend` owns the tensors and
/// must outlive the group. The transport is chosen here (transport::choose_for_group): NCCL where every rank
/// has a GPU to itself, pinned host memory where GPUs are shared or NCCL is missing, plain messages where the
/// host computes. With NCCL, wait() makes the device wait for the operation instead of the host, and test()
/// asks the device. `nodes`: what the launched operations go by; find_nodes() finds them.
std::unique_ptr<ProcessGroup> make_process_group(comm::Communicator members, backend::Backend& backend,
                                                 Sums sums = Sums::automatic,
                                                 std::optional<Nodes> nodes = {});
/// Collective: on which nodes the ranks of the communicator run.
Nodes find_nodes(const comm::Communicator& members);
/// A meta group stands for one rank of a group that does not exist: it counts messages and bytes, and the
/// seconds that they would take on a link of this latency and bandwidth.
std::unique_ptr<ProcessGroup> make_meta_group(int rank, int size, const LinkCost& link = {},
                                              const MeasuredGroup& measured = {});
/// The same where the ranks are on several nodes. Within nodes and across them messages travel at the same
/// time. The ranks of a collective whose time was measured work together: it takes that time, in which the
/// links are taken but for the latency. What they sum meanwhile is a part of it.
std::unique_ptr<ProcessGroup> make_meta_group(int rank, Nodes nodes, const LinkCost& within,
                                              const LinkCost& across, const MeasuredGroup& measured = {});
/// A loopback group stands for one rank of a group that does not exist, too, but on a device that computes:
/// what the other ranks would send are copies of what this rank sends, so that values stay in their range.
/// Traffic::seconds are those that copies take of the host, to be left out where a task is timed. The backend
/// outlives it.
std::unique_ptr<ProcessGroup> make_loopback_group(int rank, Nodes nodes, backend::Backend& backend);

}  // namespace maestro::collective
