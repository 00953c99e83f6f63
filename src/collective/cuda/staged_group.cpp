// A process group of GPUs through host memory. A tensor is sent in segments: each is copied to pinned memory,
// sent as an MPI message, and copied to the other GPU. The copies have dedicated streams, so that neither the
// computing stream nor the host waits for more than one segment. A few segments of pinned memory are reused
// in turn.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/cuda/staging_ring.hpp"
#include "base/check.hpp"
#include "collective/implementations.hpp"
#include "collective/pending_exchanges.hpp"
#include "comm/check.hpp"

namespace maestro::collective {

namespace {

/// Segments in flight in one direction. Enough that copies and messages of different segments overlap; 8
/// segments of kMaxStagedMessage pin 32 MiB in each direction.
constexpr std::int64_t kSlots = 8;

struct Segment {
    int peer;
    std::byte* data;  ///< on the device
    int bytes;
};
/// The segments in one direction, numbered from the group's first segment on. They are sent and received in
/// this order, and few slots cannot deadlock: every operation has rounds, in which each rank sends to rank +
/// i and receives from rank - i, so the earliest segment that is not done is next on both its ranks.
struct Line {
    std::deque<Segment> segments;  ///< those without a slot
    backend::StagingRing staging{kSlots};
    std::array<Segment, kSlots> staged;  ///< by slot
    std::array<MPI_Request, kSlots> requests = no_requests();
    backend::CudaStream stream;  ///< of the copies
    std::int64_t queued = 0;     ///< number of segments that were queued
    std::int64_t started = 0;    ///< number of segments that got a slot
    std::int64_t posted = 0;     ///< number of sends that were posted
    std::int64_t done = 0;       ///< number of segments that were sent, or whose copy to the device is queued

    static std::array<MPI_Request, kSlots> no_requests() {
        std::array<MPI_Request, kSlots> none;
        none.fill(MPI_REQUEST_NULL);
        return none;
    }
    backend::StagingRing::Slot& slot(std::int64_t segment) {
        return staging[static_cast<std::uint64_t>(segment)];
    }
    Segment& segment(std::int64_t number) { return staged[static_cast<std::size_t>(number % kSlots)]; }
    MPI_Request& request(std::int64_t segment) {
        return requests[static_cast<std::size_t>(segment % kSlots)];
    }
};

class StagedGroup final : public ProcessGroup {
public:
    StagedGroup(comm::Communicator members, Nodes nodes, backend::Backend& backend, std::string transport)
        : ProcessGroup(members.rank(), std::move(nodes), std::move(transport)),
          members_(std::move(members)),
          backend_(backend) {
        MAESTRO_CUDA_CALL(cudaGetDevice(&device_));
        poll_id_ = members_.waiter().progress().add([this] { return poll(); });
    }
    ~StagedGroup() override {
        members_.waiter().progress().remove(poll_id_);
        for (Line* line : {&out_, &in_})
            cudaStreamSynchronize(line->stream);  // their copies read and write the slots
    }

    void wait(Request request) override {
        members_.waiter().wait_until(
            [&] { return test(request); },
            [&] { return fmt::format("the other {} ranks of {}", size() - 1, members_.name()); });
    }
    bool test(Request request) override {
        Exchange& exchange = exchanges_.open(request, members_.name());
        const std::lock_guard lock(mutex_);
        advance();
        // Sends end before an error is thrown: the ranks that wait for them did nothing wrong.
        if (out_.done < exchange.out || (!error_ && in_.done < exchange.in)) return false;
        if (error_) std::rethrow_exception(error_);
        // The copies to the device have been queued. The device waits for them, and the host goes on.
        if (exchange.receives) {
            arrived_.record(in_.stream);
            arrived_.block(backend_.stream());
        }
        exchange.open = false;
        return true;
    }

protected:
    Request begin(std::span<const Message> out, std::span<const Message> in) override {
        const std::lock_guard lock(mutex_);
        // Copies to the host read what has been computed so far. Copies to the device overwrite tensors that
        // operations issued earlier may still be reading.
        if (!out.empty() || !in.empty()) {
            computed_.record(backend_.stream());
            computed_.block(out_.stream);
            computed_.block(in_.stream);
        }
        for (const Message& m : out) cut(m, out_);
        for (const Message& m : in) cut(m, in_);
        const Request request = exchanges_.begin();
        exchanges_[request] = {.open = true, .receives = !in.empty(), .out = out_.queued, .in = in_.queued};
        advance();
        return request;
    }

private:
    struct Exchange {
        bool open = false;
        bool receives = false;
        std::int64_t out = 0, in = 0;  ///< the numbers of segments that have to be done
    };
    static void cut(const Message& m, Line& line) {
        in_segments(m.data, m.bytes, kMaxStagedMessage, [&](std::byte* data, int bytes) {
            line.segments.push_back({m.peer, data, bytes});
            ++line.queued;
        });
    }
    /// Called by whichever thread drives Progress. While the main thread computes, this moves segments from
    /// copy to message and back; without it an exchange would stop after kSlots segments until wait(). An
    /// error is kept for the main thread to throw.
    bool poll() {
        const std::lock_guard lock(mutex_);
        if (out_.done == out_.queued && in_.done == in_.queued) return false;
        try {
            MAESTRO_CUDA_CALL(cudaSetDevice(device_));
            advance();
        } catch (...) {
            failure_ = std::current_exception();
            return false;
        }
        return true;
    }
    void advance() {
        if (failure_) std::rethrow_exception(failure_);
        advance_out();
        if (error_) return;
        try {
            advance_in();
        } catch (...) {
            error_ = std::current_exception();
        }
    }
    static bool is_done(MPI_Request& request, MPI_Status* status = MPI_STATUS_IGNORE) {
        int flag = 0;
        MAESTRO_MPI(MPI_Test(&request, &flag, status));
        return flag != 0;
    }
    /// Assigns the next slot to the next segment; returns the segment's number.
    static std::int64_t assign_slot(Line& line) {
        const std::int64_t number = line.started++;
        line.segment(number) = line.segments.front();
        line.slot(number).memory.reserve(room_for(line.segments.front()));
        line.segments.pop_front();
        return number;
    }
    /// Copies between the segment's memory on the device and its slot.
    static void copy(Line& line, std::int64_t number, cudaMemcpyKind kind) {
        const Segment& segment = line.segment(number);
        backend::StagingRing::Slot& slot = line.slot(number);
        const bool down = kind == cudaMemcpyDeviceToHost;
        MAESTRO_CUDA_CALL(cudaMemcpyAsync(down ? slot.memory.data() : segment.data,
                                          down ? segment.data : slot.memory.data(),
                                          static_cast<std::size_t>(segment.bytes), kind, line.stream));
        slot.copied.record(line.stream);
    }
    void advance_out() {
        Line& line = out_;
        while (line.done < line.posted && is_done(line.request(line.done))) ++line.done;
        while (!line.segments.empty() && line.started - line.done < kSlots)
            copy(line, assign_slot(line), cudaMemcpyDeviceToHost);
        // A segment is sent once the device has copied it, and in order: MPI matches the messages of two
        // ranks in the order in which they are posted.
        for (; line.posted < line.started && line.slot(line.posted).copied.reached(); ++line.posted) {
            const Segment& segment = line.segment(line.posted);
            MAESTRO_MPI(MPI_Isend(line.slot(line.posted).memory.data(), segment.bytes, MPI_BYTE, segment.peer,
                                  kMessageTag, members_.handle(), &line.request(line.posted)));
        }
    }
    void advance_in() {
        Line& line = in_;
        MPI_Status status;
        for (; line.done < line.started && is_done(line.request(line.done), &status); ++line.done) {
            const Segment& segment = line.segment(line.done);
            int bytes = 0;
            MAESTRO_MPI(MPI_Get_count(&status, MPI_BYTE, &bytes));
            MAESTRO_CHECK(bytes == segment.bytes, "{}: received {} bytes, expected {}", members_.name(),
                          bytes, segment.bytes);
            copy(line, line.done, cudaMemcpyHostToDevice);
        }
        // A slot is free once the last segment in it has been copied to the device.
        while (!line.segments.empty() && line.started - line.done < kSlots &&
               line.slot(line.started).copied.reached()) {
            const std::int64_t number = assign_slot(line);
            const Segment& segment = line.segment(number);
            MAESTRO_MPI(MPI_Irecv(line.slot(number).memory.data(), segment.bytes, MPI_BYTE, segment.peer,
                                  kMessageTag, members_.handle(), &line.request(number)));
        }
    }
    /// A power of two: growing may synchronize with the device, and what is outgrown is kept.
    static std::size_t room_for(const Segment& segment) {
        return std::bit_ceil(std::max(static_cast<std::size_t>(segment.bytes), std::size_t{64} << 10));
    }

    comm::Communicator members_;
    backend::Backend& backend_;
    int device_ = 0;
    std::mutex mutex_;
    std::exception_ptr error_;    ///< of a receive; sends continue, because other ranks wait for them
    std::exception_ptr failure_;  ///< of a poll by Progress's thread; nothing continues
    Line out_, in_;
    backend::CudaEvent computed_, arrived_;
    PendingExchanges<Exchange> exchanges_;
    comm::Progress::Id poll_id_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_staged_group(comm::Communicator members, Nodes nodes,
                                                backend::Backend& backend, std::string transport) {
    return std::make_unique<StagedGroup>(std::move(members), std::move(nodes), backend, std::move(transport));
}

}  // namespace maestro::collective
