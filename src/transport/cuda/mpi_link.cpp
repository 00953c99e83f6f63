#include <algorithm>
#include <vector>

#include "comm/check.hpp"
#include "transport/link.hpp"

namespace maestro::transport {

namespace {

constexpr int kTag = 5;
constexpr std::size_t kLargest = std::size_t{1} << 30;  // a count is an int in MPI

/// Ordinary messages straight from and to the device's memory, by a CUDA-aware MPI, which keeps their order.
/// They are posted once the rows have been computed, and flags announce rows that have been received, so that
/// nothing on the device waits for another rank.
class MpiLink final : public Link {
public:
    MpiLink(MPI_Comm edge, bool outgoing, int peer) : Link(outgoing, peer), edge_(edge) {}

    void post(std::span<const Run> runs) override {
        for (const Run& run : runs)
            for (std::size_t at = 0; at < run.bytes; at += kLargest) {
                const int bytes = static_cast<int>(std::min(kLargest, run.bytes - at));
                MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
                if (outgoing())
                    MAESTRO_MPI(MPI_Isend(run.data + at, bytes, MPI_BYTE, peer(), kTag, edge_, &request));
                else
                    MAESTRO_MPI(MPI_Irecv(run.data + at, bytes, MPI_BYTE, peer(), kTag, edge_, &request));
            }
    }
    bool ready() override {
        // All have to end, so any order will do, and the last one is the cheapest to remove.
        for (; !requests_.empty(); requests_.pop_back()) {
            int flag = 0;
            MAESTRO_MPI(MPI_Test(&requests_.back(), &flag, MPI_STATUS_IGNORE));
            if (flag == 0) return false;
        }
        return true;
    }

private:
    MPI_Comm edge_;
    std::vector<MPI_Request> requests_;
};

}  // namespace

Links open_mpi_links(const comm::Communicator& edge, const DirectEnd& end) {
    Links links;
    for (int peer = 0; peer < edge.size(); ++peer)
        for (const bool outgoing : {true, false})
            if (outgoing ? end.sends[peer] : end.receives[peer])
                links.push_back(std::make_unique<MpiLink>(edge.handle(), outgoing, peer));
    return links;
}

}  // namespace maestro::transport
