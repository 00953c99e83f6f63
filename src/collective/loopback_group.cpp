// A process group of one process on a real device: what its ranks would receive is a copy of what this rank
// sends.
#include <algorithm>
#include <utility>

#include "collective/process_group.hpp"
#include "comm/environment.hpp"
#include "ops/elementwise.hpp"

namespace maestro::collective {

namespace {

class LoopbackGroup final : public ProcessGroup {
public:
    LoopbackGroup(int rank, Nodes nodes, backend::Backend& backend)
        : ProcessGroup(rank, std::move(nodes), "loopback"), backend_(backend) {}
    void wait(Request) override {}
    bool test(Request) override { return true; }

protected:
    Request begin(std::span<const Message> sends, std::span<const Message> receives) override {
        const double start_s = comm::now_s();
        std::size_t next = 0;
        for (const Message& to : receives)
            for (std::size_t done = 0; done < to.bytes && !sends.empty();) {
                const Message& from = sends[next++ % sends.size()];
                const std::size_t bytes = std::min(from.bytes, to.bytes - done);
                ops::copy(backend_, bytes_at(from.data, 0, bytes), bytes_at(to.data, done, bytes));
                done += bytes;
            }
        traffic_.seconds += comm::now_s() - start_s;
        return 0;
    }

private:
    static Tensor bytes_at(void* data, std::size_t offset, std::size_t bytes) {
        return Tensor(static_cast<std::byte*>(data) + offset, DType::u8, {static_cast<std::int64_t>(bytes)});
    }
    backend::Backend& backend_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_loopback_group(int rank, Nodes nodes, backend::Backend& backend) {
    return std::make_unique<LoopbackGroup>(rank, std::move(nodes), backend);
}

}  // namespace maestro::collective
