#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <vector>

#include "base/check.hpp"
#include "base/error.hpp"
#include "comm/agree.hpp"
#include "comm/check.hpp"
#include "transport/transport.hpp"

namespace maestro::transport {

namespace {
constexpr std::size_t kChunk = std::size_t{1} << 30;  // a count is an int in MPI

class MpiWindowTransport final : public Transport {
public:
    MpiWindowTransport(comm::Communicator edge, std::size_t bytes, bool reaches)
        : edge_(std::move(edge)), reaches_(reaches) {
        // The allocation may fail on one rank alone, while the others would wait in the barrier. So all ranks
        // agree before they use the window, and before anybody frees it, which is collective.
        try {
            comm::agree(edge_, [&] { allocate(bytes); });
        } catch (const Error& error) {
            // A window that some ranks have and others do not can never be freed: MPI keeps it.
            if (error.scope() == Scope::all_ranks && !edge_.any(window_ == MPI_WIN_NULL))
                MPI_Win_free(&window_);
            throw;
        }
        // One access epoch for the whole run, so that no rank has to enter MPI for another to put. No rank
        // ever locks exclusively, which makes the check for conflicting locks unnecessary.
        MAESTRO_MPI(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_));
        // Takes the pages now, and not within a step. The barrier keeps peers from putting before this is
        // done.
        std::memset(memory_, 0, size_of_window(bytes));
        MAESTRO_MPI(MPI_Win_sync(window_));
        edge_.barrier();
    }

    ~MpiWindowTransport() override {
        // Freeing is collective. While an exception is handled, the other ranks may never call it.
        if (window_ == MPI_WIN_NULL || std::uncaught_exceptions() > 0) return;
        MPI_Win_unlock_all(window_);
        MPI_Win_free(&window_);
    }
    MpiWindowTransport(const MpiWindowTransport&) = delete;
    MpiWindowTransport& operator=(const MpiWindowTransport&) = delete;

    std::byte* memory() override { return memory_; }
    std::byte* peer_memory(int peer) override {
        if (!reaches_) return nullptr;
        MPI_Aint size = 0;
        int unit = 0;
        std::byte* memory = nullptr;
        MAESTRO_MPI(MPI_Win_shared_query(window_, peer, &size, &unit, &memory));
        return memory;
    }

    void put(int peer, std::size_t offset, const void* source, std::size_t bytes) override {
        for (std::size_t done = 0; done < bytes; done += kChunk) {
            const int count = static_cast<int>(std::min(kChunk, bytes - done));
            MAESTRO_MPI(MPI_Put(static_cast<const std::byte*>(source) + done, count, MPI_BYTE, peer,
                                static_cast<MPI_Aint>(offset + done), count, MPI_BYTE, window_));
        }
    }

    void signal(int peer, std::size_t offset, std::uint64_t flag) override {
        signals_.push_back({peer, offset, flag});
    }

    void flush(int peer) override {
        // MPI does not order puts. Only after a flush are the rows there that the flags announce.
        MAESTRO_MPI(MPI_Win_flush(peer, window_));
        bool any = false;
        for (const Signal& s : signals_) {
            if (s.peer != peer) continue;
            put(peer, s.offset, &s.flag, sizeof s.flag);
            any = true;
        }
        if (!any) return;
        // The second flush makes the flags arrive now: the peer may be waiting for them, and this rank may
        // next compute for a long time. MPI reads them from signals_ until it is done.
        MAESTRO_MPI(MPI_Win_flush(peer, window_));
        std::erase_if(signals_, [&](const Signal& s) { return s.peer == peer; });
    }

    // A peer's put is a store of another process. MPI_Win_sync is MPI's memory barrier for it. The first call
    // makes the flag visible; the second keeps reads of the rows, which the flag announces, from being moved
    // before it, and the atomic load keeps the compiler from reading the flag only once in a polling loop.
    std::uint64_t load(std::size_t offset) override {
        MAESTRO_MPI(MPI_Win_sync(window_));
        const std::uint64_t value = read(offset);
        MAESTRO_MPI(MPI_Win_sync(window_));
        return value;
    }
    int find(std::size_t offset, int count, std::uint64_t flag) override {
        MAESTRO_MPI(MPI_Win_sync(window_));
        int place = 0;
        while (place < count && read(offset + sizeof flag * static_cast<std::size_t>(place)) != flag) ++place;
        MAESTRO_MPI(MPI_Win_sync(window_));
        return place < count ? place : -1;
    }

private:
    std::uint64_t read(std::size_t offset) {
        auto* flag = reinterpret_cast<std::uint64_t*>(memory_ + offset);
        return std::atomic_ref<std::uint64_t>(*flag).load(std::memory_order_acquire);
    }
    static std::size_t size_of_window(std::size_t bytes) { return std::max<std::size_t>(bytes, 64); }

    /// Calls no collective operation but the allocation itself, because a rank that fails leaves it early.
    void allocate(std::size_t bytes) {
        const auto size = static_cast<MPI_Aint>(size_of_window(bytes));
        MPI_Info info = MPI_INFO_NULL;
        MAESTRO_MPI(MPI_Info_create(&info));
        // Each rank's part begins on a new page. Without the second key MPI gathers displacement units.
        MAESTRO_MPI(MPI_Info_set(info, "alloc_shared_noncontig", "true"));
        MAESTRO_MPI(MPI_Info_set(info, "same_disp_unit", "true"));
        MAESTRO_MPI(reaches_ ? MPI_Win_allocate_shared(size, 1, info, edge_.handle(), &memory_, &window_)
                             : MPI_Win_allocate(size, 1, info, edge_.handle(), &memory_, &window_));
        MPI_Info_free(&info);
        MAESTRO_MPI(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN));
        int* model = nullptr;
        int found = 0;
        MAESTRO_MPI(MPI_Win_get_attr(window_, MPI_WIN_MODEL, &model, &found));
        // load() reads flags as plain memory. Only in the unified model is that the memory that peers put to.
        MAESTRO_CHECK(found != 0 && *model == MPI_WIN_UNIFIED,
                      "{}: MPI keeps separate public and private copies of the window's memory",
                      edge_.name());
    }

    struct Signal {
        int peer;
        std::size_t offset;
        std::uint64_t flag;
    };
    comm::Communicator edge_;
    bool reaches_;
    std::vector<Signal> signals_;  ///< since the last flush to their peer
    MPI_Win window_ = MPI_WIN_NULL;
    std::byte* memory_ = nullptr;
};
}  // namespace

std::unique_ptr<Transport> make_mpi_window(comm::Communicator edge, std::size_t bytes, bool reaches) {
    return std::make_unique<MpiWindowTransport>(std::move(edge), bytes, reaches);
}

}  // namespace maestro::transport
