// A communicator as a move-only value, freed at the end of its scope. Every collective is a non-blocking MPI
// call that is waited for with the Waiter; on one rank it costs nothing.
#pragma once

#define OMPI_SKIP_MPICXX 1  // the removed C++ bindings would need another library
#include <mpi.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/waiter.hpp"

namespace maestro::comm {

template <class T>
concept Plain = std::is_trivially_copyable_v<T>;

/// Owns its MPI_Comm; points to the Waiter, which must outlive it. A default-constructed one is empty: this
/// rank is not a member. Collectives are called by all members in the same order. Errors: Error(peer_lost)
/// after the Waiter's timeout.
class Communicator {
public:
    Communicator() = default;
    ~Communicator();
    Communicator(Communicator&& other) noexcept { swap(other); }
    Communicator& operator=(Communicator&& other) noexcept {
        swap(other);
        return *this;
    }
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    static Communicator world(Waiter& waiter, std::string name = "world");  ///< a duplicate of MPI_COMM_WORLD

    /// Collective. Ranks of one colour, ordered by key; empty on ranks with a colour < 0.
    Communicator split(int colour, int key, std::string name = "split") const;
    /// Collective over `ranks` (of this communicator, in the new order) only; empty on other ranks. Groups
    /// that are made at the same time need different tags.
    Communicator group(const std::vector<int>& ranks, int tag, std::string name = "group") const;
    Communicator same_node() const;  ///< collective; the ranks that share memory with this one

    explicit operator bool() const { return handle_ != MPI_COMM_NULL; }
    int rank() const { return rank_; }
    int size() const { return size_; }
    MPI_Comm handle() const { return handle_; }
    Waiter& waiter() const { return *waiter_; }
    /// Returns the rank in MPI_COMM_WORLD of a rank of this communicator.
    int world_rank_of(int rank) const;
    const std::string& name() const { return name_; }  ///< also set in MPI, cut to the length that MPI allows

    void barrier() const;
    /// In place, element-wise, the same bits on every rank.
    void allreduce_sum(std::span<double> values) const;
    void allreduce_sum(std::span<std::int32_t> values) const;
    void allreduce_sum(std::span<std::int64_t> values) const;
    void allreduce_max(std::span<double> values) const;
    double sum(double value) const;
    std::int64_t sum(std::int64_t value) const;
    double max(double value) const;
    bool any(bool value) const;  ///< true on all ranks if true on one
    static constexpr int kNotifyTag = 3;
    struct Notice {
        int rank = 0, tag = 0;  ///< `rank`: its sender
    };
    /// Sends `rank` an empty message, which next_notice() or notified() finds there. Not collective, and does
    /// not wait.
    void notify(int rank, int tag = kNotifyTag) const;
    /// Takes the next such message; nothing if none has arrived. MPI_ANY_TAG takes those of any tag, on a
    /// communicator on which no other messages travel.
    std::optional<Notice> next_notice(int tag = kNotifyTag) const;
    bool notified() const;  ///< takes all that have arrived; true if there were any

    /// Collective; other ranks' vectors are resized.
    template <Plain T>
    void broadcast(std::vector<T>& values, int root = 0) const {
        std::uint64_t count = values.size();
        broadcast_bytes(&count, sizeof count, root);
        values.resize(count);
        broadcast_bytes(values.data(), count * sizeof(T), root);
    }
    void broadcast(std::string& text, int root = 0) const;
    template <Plain T>
    void broadcast(std::span<T> values, int root = 0) const {
        broadcast_bytes(values.data(), values.size_bytes(), root);
    }
    /// One value of every rank, in rank order, on every rank.
    template <Plain T>
    std::vector<T> allgather(const T& value) const {
        std::vector<T> all(static_cast<std::size_t>(size_));
        allgather_bytes(&value, all.data(), sizeof(T));
        return all;
    }
    std::vector<std::string> gather(const std::string& text, int root = 0) const;
    /// On root: every rank's values (lengths may differ), in rank order; elsewhere an empty vector.
    template <Plain T>
    std::vector<std::vector<T>> gather(std::span<const T> values, int root = 0) const {
        const std::vector<std::vector<std::byte>> raw = gather_bytes(std::as_bytes(values), root);
        std::vector<std::vector<T>> all(raw.size());
        for (std::size_t i = 0; i < raw.size(); ++i) {
            all[i].resize(raw[i].size() / sizeof(T));
            if (!raw[i].empty()) std::memcpy(all[i].data(), raw[i].data(), raw[i].size());
        }
        return all;
    }

private:
    Communicator(MPI_Comm handle, Waiter& waiter, std::string name);
    void swap(Communicator& other) noexcept;
    void wait(MPI_Request& request, const char* what) const;
    template <class T>
    void allreduce(std::span<T> values, MPI_Datatype type, MPI_Op op) const;
    void broadcast_bytes(void* data, std::size_t bytes, int root) const;
    void allgather_bytes(const void* value, void* all, std::size_t bytes) const;
    std::vector<std::vector<std::byte>> gather_bytes(std::span<const std::byte> bytes, int root) const;

    MPI_Comm handle_ = MPI_COMM_NULL;
    Waiter* waiter_ = nullptr;
    int rank_ = 0;
    int size_ = 0;
    std::string name_;
};

}  // namespace maestro::comm
