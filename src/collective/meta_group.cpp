// A process group that sends nothing and counts what one rank of a real group would send.
#include <algorithm>

#include "collective/process_group.hpp"

namespace maestro::collective {

namespace {

class MetaGroup final : public ProcessGroup {
public:
    MetaGroup(int rank, int size, double latency_s, double bandwidth)
        : ProcessGroup(rank, size, "meta"),
          latency_s_(latency_s),
          byte_s_(bandwidth > 0 ? 1 / bandwidth : 0) {}

    // begin() has counted the seconds.
    void wait(Request) override {}

protected:
    /// The messages of an operation share the link's bandwidth, in either direction, and their latencies
    /// overlap.
    Request begin(std::span<const Message> sends, std::span<const Message> receives) override {
        if (sends.empty() && receives.empty()) return 0;
        std::size_t sent = 0, received = 0;
        for (const Message& m : sends) sent += m.bytes;
        for (const Message& m : receives) received += m.bytes;
        traffic_.seconds += latency_s_ + static_cast<double>(std::max(sent, received)) * byte_s_;
        return 0;
    }

private:
    double latency_s_, byte_s_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_meta_group(int rank, int size, double latency_s, double bandwidth) {
    return std::make_unique<MetaGroup>(rank, size, latency_s, bandwidth);
}

}  // namespace maestro::collective
