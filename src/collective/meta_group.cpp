// A process group that sends nothing, counts what one rank of a real group would send and computes the time
// that it would take.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "collective/process_group.hpp"

namespace maestro::collective {

namespace {

/// Keeps a clock. An exchange begins when it is started or when its links are free, and wait() moves the
/// clock on to its end; Traffic::seconds are those of waits. The messages of an exchange share the bandwidth
/// of their link, in either direction. Latencies overlap with each other and with what the link does next
/// (LogP, Culler et al., PPoPP 1993). Links within a node and between nodes work at the same time. Of a
/// measured time, the latency is that of a collective of no bytes.
class MetaGroup final : public ProcessGroup {
public:
    MetaGroup(int rank, Nodes nodes, const LinkCost& within, const LinkCost& across,
              const MeasuredGroup& measured)
        : ProcessGroup(rank, std::move(nodes), "meta"),
          links_{Link(within), Link(across)},
          measured_(measured) {
        if (measured_.nodes == 0) measured_.nodes = this->nodes().count();
    }

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
        return begin_as(Exchange::messages, sends, receives);
    }
    Request begin_as(Exchange exchange, std::span<const Message> sends,
                     std::span<const Message> receives) override {
        if (exchange == Exchange::part) return ending(clock_s_);
        if (exchange == Exchange::all_gather) {
            const double each = std::max(bytes(sends), bytes(receives));
            if (const auto whole =
                    each > 0 ? begin_whole(CollectiveKind::all_gather, whole_of(each, size())) : std::nullopt)
                return *whole;
        }
        double end_s = clock_s_;
        for (const bool across : {false, true}) {
            const double each = std::max(bytes(sends, across), bytes(receives, across));
            if (each == 0) continue;
            std::optional<Time> time;
            if (exchange == Exchange::all_to_all) time = time_of_all_to_all(each, across);
            Link& link = links_[across ? 1 : 0];
            const double begin_s = std::max(link.free_s, clock_s_);
            link.free_s = time ? begin_s + time->busy_s : begin_s + each * link.byte_s;
            end_s = std::max(end_s, link.free_s + (time ? time->latency_s : link.latency_s));
        }
        return ending(end_s);
    }
    std::optional<Request> begin_whole(CollectiveKind kind, double bytes) override {
        const std::optional<Time> time = time_of_all(kind, bytes);
        if (!time) return {};
        const double free_s = std::max({clock_s_, links_[0].free_s, links_[1].free_s}) + time->busy_s;
        links_[0].free_s = links_[1].free_s = free_s;
        return ending(free_s + time->latency_s);
    }

    void computed(double seconds) override { clock_s_ += seconds; }

private:
    struct Link {
        explicit Link(const LinkCost& cost)
            : latency_s(cost.latency_s), byte_s(cost.bandwidth > 0 ? 1 / cost.bandwidth : 0) {}
        double latency_s, byte_s;
        double free_s = 0;  ///< on the clock
    };
    struct Time {
        double latency_s, busy_s;
    };
    Request ending(double end_s) {
        ends_s_.push_back(end_s);
        return ends_s_.size() - 1;
    }
    /// Returns the bytes of a collective of `ranks` in which each exchanges `each`.
    static double whole_of(double each, int ranks) { return each * ranks / (ranks - 1); }
    /// As measured.
    std::optional<Time> time_of(CollectiveKind kind, int ranks, int nodes, double bytes) const {
        const std::optional<double> seconds =
            measured_.times.seconds(kind, ranks, nodes, bytes * measured_.load);
        if (!seconds) return {};
        const double latency_s = std::min(*seconds, *measured_.times.seconds(kind, ranks, nodes, 0));
        return Time{latency_s, *seconds - latency_s};
    }
    /// The same among all ranks.
    std::optional<Time> time_of_all(CollectiveKind kind, double bytes) const {
        std::optional<Time> least = time_of(kind, size(), measured_.nodes, bytes);
        for (int nodes = measured_.nodes + 1; least && nodes <= measured_.most_nodes; ++nodes)
            if (const std::optional<Time> time = time_of(kind, size(), nodes, bytes);
                time && time->latency_s + time->busy_s < least->latency_s + least->busy_s)
                least = time;
        return least;
    }
    /// Of what an all-to-all exchanges within the node, which is one of the node's ranks, or across nodes:
    /// as long as that of the whole group takes in which all parts are equal and as much crosses.
    std::optional<Time> time_of_all_to_all(double each, bool across) const {
        if (nodes().count() == 1) return time_of_all(CollectiveKind::all_to_all, whole_of(each, size()));
        const int here = static_cast<int>(nodes().on(nodes().of(rank())).size());
        if (!across) return time_of(CollectiveKind::all_to_all, here, 1, whole_of(each, here));
        return time_of(CollectiveKind::all_to_all, size(), nodes().count(), each * size() / (size() - here));
    }
    double bytes(std::span<const Message> messages, bool across) const {
        std::size_t total = 0;
        for (const Message& m : messages)
            if ((nodes().of(m.peer) != nodes().of(rank())) == across) total += m.bytes;
        return static_cast<double>(total);
    }
    double bytes(std::span<const Message> messages) const {
        return bytes(messages, false) + bytes(messages, true);
    }

    std::array<Link, 2> links_;
    MeasuredGroup measured_;
    double clock_s_ = 0;
    std::vector<double> ends_s_;  ///< by request
    std::size_t waited_for_ = 0;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_meta_group(int rank, int size, const LinkCost& link,
                                              const MeasuredGroup& measured) {
    return make_meta_group(rank, Nodes(size), link, {}, measured);
}

std::unique_ptr<ProcessGroup> make_meta_group(int rank, Nodes nodes, const LinkCost& within,
                                              const LinkCost& across, const MeasuredGroup& measured) {
    return std::make_unique<MetaGroup>(rank, std::move(nodes), within, across, measured);
}

}  // namespace maestro::collective
