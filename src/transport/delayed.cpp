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
        if (peer == delay_.self) return inner_->signal(peer, offset, flag);  // and due since the start
        Link& link = links_[peer];
        link.free_s = std::max(link.free_s, comm::now_s()) + delay_.byte_s * static_cast<double>(link.bytes);
        link.bytes = 0;
        // A put, not a signal: it has to be there before the flag.
        inner_->put(peer, delay_.due_at + offset, &link.due_s.emplace_back(link.free_s + delay_.latency_s),
                    sizeof(double));
        inner_->signal(peer, offset, flag);
    }

    void flush(int peer) override {
        inner_->flush(peer);
        links_[peer].due_s.clear();
    }

    std::uint64_t load(std::size_t offset) override {
        const std::uint64_t flag = inner_->load(offset);
        return comm::now_s() >= std::bit_cast<double>(inner_->load(delay_.due_at + offset)) ? flag : 0;
    }

private:
    struct Link {
        double free_s = 0;         ///< when what was signalled so far is through
        std::size_t bytes = 0;     ///< put since
        std::deque<double> due_s;  ///< sources of puts until the push
    };
    std::unique_ptr<Transport> inner_;
    LinkDelay delay_;
    std::unordered_map<int, Link> links_;  ///< by peer
};
}  // namespace

std::unique_ptr<Transport> make_delayed(std::unique_ptr<Transport> inner, LinkDelay delay) {
    return std::make_unique<DelayedTransport>(std::move(inner), delay);
}

}  // namespace maestro::transport
