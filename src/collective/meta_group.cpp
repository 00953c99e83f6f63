// A process group that sends nothing, counts what one rank of a real group would send and computes the time
// that it would take.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "collective/process_group.hpp"

namespace maestro::collective {

namespace {

/// Keeps a clock. An exchange begins when it is started or when its links are free, and wait() moves the
/// clock on to its end; Traffic::seconds are those of waits. The messages of an exchange share the bandwidth
/// of their link, in either direction. Latencies overlap with each other and with what the link does next
/// (LogP, Culler et al., PPoPP 1993). Links within a node and between nodes work at the same time.
class MetaGroup final : public ProcessGroup {
public:
    MetaGroup(int rank, Nodes nodes, const LinkCost& within, const LinkCost& across)
        : ProcessGroup(rank, std::move(nodes), "meta"), links_{Link(within), Link(across)} {}

    void wait(Request request) override {
        const double waited_s = std::max(0.0, ends_s_[request] - clock_s_);
        clock_s_ += waited_s;
        traffic_.seconds += waited_s;
        // Operations that end in another order than they began are rare: room is given back when none is
        // left.
        if (++waited_for_ == ends_s_.size()) {
            ends_s_.clear();
            waited_for_ = 0;
        }
    }
    bool test(Request request) override {
        wait(request);
        return true;
    }
    void reset_traffic() override {
        ProcessGroup::reset_traffic();
        for (Link& link : links_) link.free_s = 0;
    }

protected:
    Request begin(std::span<const Message> sends, std::span<const Message> receives) override {
        double end_s = clock_s_;
        for (const bool across : {false, true}) {
            const std::size_t sent = bytes(sends, across), received = bytes(receives, across);
            if (sent == 0 && received == 0) continue;
            Link& link = links_[across ? 1 : 0];
            link.free_s =
                std::max(link.free_s, clock_s_) + static_cast<double>(std::max(sent, received)) * link.byte_s;
            end_s = std::max(end_s, link.free_s + link.latency_s);
        }
        ends_s_.push_back(end_s);
        return ends_s_.size() - 1;
    }

    void computed(double seconds) override { clock_s_ += seconds; }

private:
    struct Link {
        explicit Link(const LinkCost& cost)
            : latency_s(cost.latency_s), byte_s(cost.bandwidth > 0 ? 1 / cost.bandwidth : 0) {}
        double latency_s, byte_s;
        double free_s = 0;  ///< on the clock
    };
    std::size_t bytes(std::span<const Message> messages, bool across) const {
        std::size_t total = 0;
        for (const Message& m : messages)
            if ((nodes().of(m.peer) != nodes().of(rank())) == across) total += m.bytes;
        return total;
    }

    std::array<Link, 2> links_;
    double clock_s_ = 0;
    std::vector<double> ends_s_;  ///< by request
    std::size_t waited_for_ = 0;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_meta_group(int rank, int size, const LinkCost& link) {
    return make_meta_group(rank, Nodes(size), link, {});
}

std::unique_ptr<ProcessGroup> make_meta_group(int rank, Nodes nodes, const LinkCost& within,
                                              const LinkCost& across) {
    return std::make_unique<MetaGroup>(rank, std::move(nodes), within, across);
}

}  // namespace maestro::collective
