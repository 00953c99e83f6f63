#include "comm/communicator.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "base/check.hpp"
#include "comm/check.hpp"

namespace maestro::comm {

namespace {
constexpr std::size_t kChunkElements = std::size_t{1} << 28;  // counts of MPI are int
constexpr std::size_t kChunkBytes = std::size_t{1} << 30;
constexpr int kGatherTag = 1;
}  // namespace

Communicator::Communicator(MPI_Comm handle, Waiter& waiter, std::string name)
    : handle_(handle), waiter_(&waiter), name_(std::move(name)) {
    if (handle_ == MPI_COMM_NULL) return;
    MAESTRO_MPI(MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN));
    MAESTRO_MPI(MPI_Comm_rank(handle_, &rank_));
    MAESTRO_MPI(MPI_Comm_size(handle_, &size_));
    // For debuggers, and for tools that count what MPI is asked for.
    MAESTRO_MPI(MPI_Comm_set_name(handle_, name_.substr(0, MPI_MAX_OBJECT_NAME - 1).c_str()));
}

Communicator::~Communicator() {
    // Freeing is collective: not while an exception flies, the others may never come.
    if (handle_ != MPI_COMM_NULL && std::uncaught_exceptions() == 0) MPI_Comm_free(&handle_);
}

void Communicator::swap(Communicator& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(waiter_, other.waiter_);
    std::swap(rank_, other.rank_);
    std::swap(size_, other.size_);
    std::swap(name_, other.name_);
}

Communicator Communicator::world(Waiter& waiter, std::string name) {
    MPI_Comm handle = MPI_COMM_NULL;
    MAESTRO_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &handle));
    return {handle, waiter, std::move(name)};
}

Communicator Communicator::split(int colour, int key, std::string name) const {
    MPI_Comm handle = MPI_COMM_NULL;
    MAESTRO_MPI(MPI_Comm_split(handle_, colour < 0 ? MPI_UNDEFINED : colour, key, &handle));
    return {handle, *waiter_, std::move(name)};
}

Communicator Communicator::group(const std::vector<int>& ranks, int tag, std::string name) const {
    if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) return {};
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group part = MPI_GROUP_NULL;
    MPI_Comm handle = MPI_COMM_NULL;
    MAESTRO_MPI(MPI_Comm_group(handle_, &all));
    MAESTRO_MPI(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &part));
    MAESTRO_MPI(MPI_Comm_create_group(handle_, part, tag, &handle));
    MPI_Group_free(&part);
    MPI_Group_free(&all);
    return {handle, *waiter_, std::move(name)};
}

Communicator Communicator::same_node() const {
    MPI_Comm handle = MPI_COMM_NULL;
    MAESTRO_MPI(MPI_Comm_split_type(handle_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &handle));
    return {handle, *waiter_, name_ + " on this node"};
}

void Communicator::wait(MPI_Request& request, const char* what) const {
    const auto done = [&request] {
        int flag = 0;
        MAESTRO_MPI(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
        return flag != 0;
    };
    waiter_->wait_until(done, [&] { return fmt::format("{} of {} ({} ranks)", what, name_, size_); });
}

int Communicator::world_rank_of(int rank) const {
    MPI_Group here = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
    MAESTRO_MPI(MPI_Comm_group(handle_, &here));
    MAESTRO_MPI(MPI_Comm_group(MPI_COMM_WORLD, &world));
    int in_world = 0;
    MAESTRO_MPI(MPI_Group_translate_ranks(here, 1, &rank, world, &in_world));
    MAESTRO_MPI(MPI_Group_free(&here));
    MAESTRO_MPI(MPI_Group_free(&world));
    return in_world;
}

void Communicator::barrier() const {
    if (size_ <= 1) return;
    MPI_Request request = MPI_REQUEST_NULL;
    MAESTRO_MPI(MPI_Ibarrier(handle_, &request));
    wait(request, "a barrier");
}

template <class T>
void Communicator::allreduce(std::span<T> values, MPI_Datatype type, MPI_Op op) const {
    if (size_ <= 1) return;
    for (std::size_t begin = 0; begin < values.size(); begin += kChunkElements) {
        const auto part = values.subspan(begin, std::min(kChunkElements, values.size() - begin));
        MPI_Request request = MPI_REQUEST_NULL;
        MAESTRO_MPI(MPI_Iallreduce(MPI_IN_PLACE, part.data(), static_cast<int>(part.size()), type, op,
                                   handle_, &request));
        wait(request, "a reduction");
    }
}

void Communicator::allreduce_sum(std::span<double> values) const {
    allreduce(values, MPI_DOUBLE, MPI_SUM);
}
void Communicator::allreduce_sum(std::span<std::int32_t> values) const {
    allreduce(values, MPI_INT32_T, MPI_SUM);
}
void Communicator::allreduce_sum(std::span<std::int64_t> values) const {
    allreduce(values, MPI_INT64_T, MPI_SUM);
}
void Communicator::allreduce_max(std::span<double> values) const {
    allreduce(values, MPI_DOUBLE, MPI_MAX);
}

double Communicator::sum(double value) const {
    allreduce_sum(std::span(&value, 1));
    return value;
}

std::int64_t Communicator::sum(std::int64_t value) const {
    allreduce_sum(std::span(&value, 1));
    return value;
}

double Communicator::max(double value) const {
    allreduce_max(std::span(&value, 1));
    return value;
}

bool Communicator::any(bool value) const {
    return max(value ? 1.0 : 0.0) > 0;
}

void Communicator::notify(int rank, int tag) const {
    MPI_Request request = MPI_REQUEST_NULL;
    MAESTRO_MPI(MPI_Isend(nullptr, 0, MPI_BYTE, rank, tag, handle_, &request));
    MAESTRO_MPI(MPI_Request_free(&request));  // an empty message has no buffer to wait for
}

std::optional<Communicator::Notice> Communicator::next_notice(int tag) const {
    int there = 0;
    MPI_Status status;
    MAESTRO_MPI(MPI_Iprobe(MPI_ANY_SOURCE, tag, handle_, &there, &status));
    if (there == 0) return std::nullopt;
    MAESTRO_MPI(
        MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, handle_, MPI_STATUS_IGNORE));
    return Notice{status.MPI_SOURCE, status.MPI_TAG};
}

bool Communicator::notified() const {
    bool any = false;
    while (next_notice()) any = true;
    return any;
}

void Communicator::broadcast(std::string& text, int root) const {
    std::vector<char> letters(text.begin(), text.end());
    broadcast(letters, root);
    text.assign(letters.begin(), letters.end());
}

std::vector<std::string> Communicator::gather(const std::string& text, int root) const {
    std::vector<std::string> all;
    for (const auto& letters : gather(std::span<const char>(text.data(), text.size()), root))
        all.emplace_back(letters.begin(), letters.end());
    return all;
}

void Communicator::broadcast_bytes(void* data, std::size_t bytes, int root) const {
    if (size_ <= 1) return;
    for (std::size_t begin = 0; begin < bytes; begin += kChunkBytes) {
        MPI_Request request = MPI_REQUEST_NULL;
        MAESTRO_MPI(MPI_Ibcast(static_cast<std::byte*>(data) + begin,
                               static_cast<int>(std::min(kChunkBytes, bytes - begin)), MPI_BYTE, root,
                               handle_, &request));
        wait(request, "a broadcast");
    }
}

void Communicator::allgather_bytes(const void* value, void* all, std::size_t bytes) const {
    MAESTRO_CHECK(bytes <= kChunkBytes, "{} bytes a rank", bytes);
    if (size_ <= 1) {
        std::memcpy(all, value, bytes);
        return;
    }
    MPI_Request request = MPI_REQUEST_NULL;
    MAESTRO_MPI(MPI_Iallgather(value, static_cast<int>(bytes), MPI_BYTE, all, static_cast<int>(bytes),
                               MPI_BYTE, handle_, &request));
    wait(request, "an allgather");
}

std::vector<std::vector<std::byte>> Communicator::gather_bytes(std::span<const std::byte> bytes,
                                                               int root) const {
    const std::vector<std::uint64_t> sizes = allgather(static_cast<std::uint64_t>(bytes.size()));
    if (rank_ != root) {
        for (std::size_t begin = 0; begin < bytes.size(); begin += kChunkBytes) {
            const auto part = bytes.subspan(begin, std::min(kChunkBytes, bytes.size() - begin));
            MPI_Request request = MPI_REQUEST_NULL;
            MAESTRO_MPI(MPI_Isend(part.data(), static_cast<int>(part.size()), MPI_BYTE, root, kGatherTag,
                                  handle_, &request));
            wait(request, "a gather");
        }
        return {};
    }
    std::vector<std::vector<std::byte>> all(sizes.size());
    for (int from = 0; from < size_; ++from) {
        auto& target = all[from];
        target.resize(sizes[from]);
        if (from == rank_) {
            std::copy(bytes.begin(), bytes.end(), target.begin());
            continue;
        }
        for (std::size_t begin = 0; begin < target.size(); begin += kChunkBytes) {
            MPI_Request request = MPI_REQUEST_NULL;
            MAESTRO_MPI(MPI_Irecv(target.data() + begin,
                                  static_cast<int>(std::min(kChunkBytes, target.size() - begin)), MPI_BYTE,
                                  from, kGatherTag, handle_, &request));
            wait(request, fmt::format("rank {}'s part of a gather", world_rank_of(from)).c_str());
        }
    }
    return all;
}

}  // namespace maestro::comm
