#include <algorithm>
#include <bit>
#include <deque>
#include <unordered_map>

#include "comm/environment.hpp"
#include "transport/transport.hpp"

namespace maestro::transport {

namespace {
class DelayedTransport final : public Transport {
public:
    DelayedTransport(std::unique_ptr<Transport> inner, LinkDelay delay)
        : inner_(std::move(inner)), delay_(delay) {}

    std::byte* memory() override { return inner_->memory(); }

    void put(int peer, std::size_t offset, const void* source, std::size_t bytes) override {
        links_[peer].bytes += bytes;
        inner_->put(peer, offset, source, bytes);
    }

    void signal(int peer, std::size_t offset, std::uint64_t flag) override {
        // A rank reaches itself without delay: delivery times that are never set stay at zero, in the past.
        if (peer == delay_.self) return inner_->signal(peer, offset, flag);
        // The link carries one message after another. This one starts when it has been signalled and the link
        // is free, and occupies it for its bytes. The latency delays a message but does not occupy the link.
        PeerLink& link = links_[peer];
        link.free_s = std::max(link.free_s, comm::now_s()) + delay_.byte_s * static_cast<double>(link.bytes);
        link.bytes = 0;
        // A put, not a signal: the time has to arrive before the flag, or the peer would compare with an
        // older time and see the flag too early.
        const double& delivery_s = link.delivery_s.emplace_back(link.free_s + delay_.latency_s);
        inner_->put(peer, delay_.delivery_times + offset, &delivery_s, sizeof delivery_s);
        inner_->signal(peer, offset, flag);
    }

    void flush(int peer) override {
        inner_->flush(peer);
        links_[peer].delivery_s.clear();
    }

    std::uint64_t load(std::size_t offset) override {
        // The flag is read first. A flag that has arrived makes its delivery time visible; in the other order
        // a new flag could be read with an older time. Zero is what a flag is before it is ever set.
        const std::uint64_t flag = inner_->load(offset);
        const auto delivery_s = std::bit_cast<double>(inner_->load(delay_.delivery_times + offset));
        return comm::now_s() >= delivery_s ? flag : 0;
    }
    int find(std::size_t offset, int count, std::uint64_t flag) override {
        const int place = inner_->find(offset, count, flag);
        const bool seen = place >= 0 && load(offset + sizeof flag * static_cast<std::size_t>(place)) == flag;
        return seen ? place : -1;
    }

private:
    struct PeerLink {
        double free_s = 0;      ///< when the link has carried everything that was signalled so far
        std::size_t bytes = 0;  ///< put since the last signal
        /// Sources of puts until the flush; a deque, so that their addresses stay valid when it grows.
        std::deque<double> delivery_s;
    };
    std::unique_ptr<Transport> inner_;
    LinkDelay delay_;
    std::unordered_map<int, PeerLink> links_;  ///< by peer
};
}  // namespace

std::unique_ptr<Transport> make_delayed(std::unique_ptr<Transport> inner, LinkDelay delay) {
    return std::make_unique<DelayedTransport>(std::move(inner), delay);
}

}  // namespace maestro::transport
