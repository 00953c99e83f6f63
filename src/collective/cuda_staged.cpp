// Collectives of GPUs through the host: a message goes in pieces, each by a copy to pinned memory, a message
// of MPI, and a copy from there. The copies have streams of their own, so that neither the computing stream
// nor the host waits for more than a piece's own way; the pinned memory is a few pieces large and used again
// and again.
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

#include "backend/cuda_stream.hpp"
#include "base/check.hpp"
#include "collective/exchanges.hpp"
#include "collective/ways.hpp"
#include "comm/check.hpp"

namespace maestro::collective {

namespace {

constexpr std::int64_t kSlots = 8;  ///< pieces that are on their way in one direction

struct Piece {
    int peer;
    std::byte* data;  ///< on the device
    int bytes;
};
/// Pinned memory, and the piece in it.
struct Slot {
    Piece piece;
    backend::PinnedMemory memory;
    backend::CudaEvent copied;
    MPI_Request request = MPI_REQUEST_NULL;
};

/// Pieces in the order in which all ranks know them. Numbers count from the group's first piece on.
struct Line {
    std::deque<Piece> pieces;  ///< that have no slot yet
    std::array<Slot, kSlots> slots;
    backend::CudaStream stream;  ///< of the copies
    std::int64_t given = 0;      ///< pieces that were handed over
    std::int64_t begun = 0;      ///< that have taken a slot
    std::int64_t posted = 0;     ///< outgoing ones that MPI has
    std::int64_t done = 0;       ///< that were sent, or whose copy to the device is queued
    Slot& slot(std::int64_t piece) { return slots[static_cast<std::size_t>(piece % kSlots)]; }
};

class StagedGroup final : public Group {
public:
    StagedGroup(comm::Communicator members, backend::Backend& backend, std::string way)
        : Group(members.rank(), members.size(), std::move(way)),
          members_(std::move(members)),
          backend_(backend) {
        MAESTRO_CUDA_CALL(cudaGetDevice(&device_));
        turn_ = members_.waiter().progress().add([this] { return take_turn(); });
    }
    ~StagedGroup() override {
        members_.waiter().progress().remove(turn_);
        for (Line* line : {&out_, &in_})
            cudaStreamSynchronize(line->stream);  // it reads and writes the slots
    }

    void finish(Ticket ticket) override {
        Exchange& exchange = exchanges_.open(ticket, members_.name());
        members_.waiter().wait_until(
            [&] {
                const std::lock_guard lock(mutex_);
                advance();
                return out_.done >= exchange.out && (error_ || in_.done >= exchange.in);
            },
            [&] { return fmt::format("the other {} ranks of {}", size() - 1, members_.name()); });
        const std::lock_guard lock(mutex_);
        if (error_) std::rethrow_exception(error_);
        if (exchange.receives) {
            arrived_.record(in_.stream);
            arrived_.hold(backend_.stream());
        }
        exchange.open = false;
    }

protected:
    Ticket begin(std::span<const Message> out, std::span<const Message> in) override {
        const std::lock_guard lock(mutex_);
        if (!out.empty() || !in.empty()) {
            computed_.record(backend_.stream());
            computed_.hold(out_.stream);
            computed_.hold(in_.stream);
        }
        for (const Message& m : out) cut(m, out_);
        for (const Message& m : in) cut(m, in_);
        const Ticket ticket = exchanges_.begin();
        exchanges_[ticket] = {.open = true, .receives = !in.empty(), .out = out_.given, .in = in_.given};
        advance();
        return ticket;
    }

private:
    struct Exchange {
        bool open = false;
        bool receives = false;
        std::int64_t out = 0, in = 0;  ///< pieces that have to be done, counted from the group's first
    };
    static void cut(const Message& m, Line& line) {
        in_pieces(m.data, m.bytes, kStagedPiece, [&](std::byte* data, int bytes) {
            line.pieces.push_back({m.peer, data, bytes});
            ++line.given;
        });
    }
    /// Also called while this rank computes, or waits for others.
    bool take_turn() {
        const std::lock_guard lock(mutex_);
        if (out_.done == out_.given && in_.done == in_.given) return false;
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
    static bool ended(Slot& slot, MPI_Status* status = MPI_STATUS_IGNORE) {
        int flag = 0;
        MAESTRO_MPI(MPI_Test(&slot.request, &flag, status));
        return flag != 0;
    }
    /// Gives the next piece the next slot.
    static Slot& take_slot(Line& line) {
        Slot& slot = line.slot(line.begun);
        slot.memory.reserve(room_for(line.pieces.front()));
        slot.piece = line.pieces.front();
        line.pieces.pop_front();
        ++line.begun;
        return slot;
    }
    static void copy(Line& line, Slot& slot, void* to, const void* from, cudaMemcpyKind kind) {
        MAESTRO_CUDA_CALL(
            cudaMemcpyAsync(to, from, static_cast<std::size_t>(slot.piece.bytes), kind, line.stream));
        slot.copied.record(line.stream);
    }
    void advance_out() {
        Line& line = out_;
        while (line.done < line.posted && ended(line.slot(line.done))) ++line.done;
        while (!line.pieces.empty() && line.begun - line.done < kSlots) {
            Slot& slot = take_slot(line);
            copy(line, slot, slot.memory.data(), slot.piece.data, cudaMemcpyDeviceToHost);
        }
        for (; line.posted < line.begun && line.slot(line.posted).copied.reached(); ++line.posted) {
            Slot& slot = line.slot(line.posted);
            MAESTRO_MPI(MPI_Isend(slot.memory.data(), slot.piece.bytes, MPI_BYTE, slot.piece.peer,
                                  kMessageTag, members_.handle(), &slot.request));
        }
    }
    void advance_in() {
        Line& line = in_;
        MPI_Status status;
        for (; line.done < line.begun && ended(line.slot(line.done), &status); ++line.done) {
            Slot& slot = line.slot(line.done);
            int bytes = 0;
            MAESTRO_MPI(MPI_Get_count(&status, MPI_BYTE, &bytes));
            MAESTRO_CHECK(bytes == slot.piece.bytes, "{}: {} bytes came where {} were due", members_.name(),
                          bytes, slot.piece.bytes);
            copy(line, slot, slot.piece.data, slot.memory.data(), cudaMemcpyHostToDevice);
        }
        // A slot is free once what came in it has been copied.
        while (!line.pieces.empty() && line.begun - line.done < kSlots &&
               line.slot(line.begun).copied.reached()) {
            Slot& slot = take_slot(line);
            MAESTRO_MPI(MPI_Irecv(slot.memory.data(), slot.piece.bytes, MPI_BYTE, slot.piece.peer,
                                  kMessageTag, members_.handle(), &slot.request));
        }
    }
    /// Growing waits for the device: twice as much each time.
    static std::size_t room_for(const Piece& piece) {
        return std::bit_ceil(std::max(static_cast<std::size_t>(piece.bytes), std::size_t{64} << 10));
    }

    comm::Communicator members_;
    backend::Backend& backend_;
    int device_ = 0;
    std::mutex mutex_;
    std::exception_ptr error_;    ///< of what came; what others wait for still goes
    std::exception_ptr failure_;  ///< met while this rank did other things: nothing goes on
    Line out_, in_;
    backend::CudaEvent computed_, arrived_;
    Exchanges<Exchange> exchanges_;
    comm::Progress::Id turn_;
};

}  // namespace

std::unique_ptr<Group> make_staged_group(comm::Communicator members, backend::Backend& backend,
                                         std::string way) {
    return std::make_unique<StagedGroup>(std::move(members), backend, std::move(way));
}

}  // namespace maestro::collective
