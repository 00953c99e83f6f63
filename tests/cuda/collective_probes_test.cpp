// The probes of collectives that `maestro calibrate` runs, by NCCL on GPUs: they end, and find times of every
// kind.
#include <numeric>
#include <vector>

#include "backend/backend.hpp"
#include "base/check.hpp"
#include "calibration/collective_probes.hpp"
#include "collective/process_group.hpp"
#include "mpi/mpi_main.hpp"

namespace {

using namespace maestro;

void every_kind_is_measured(const comm::Communicator& world) {
    const auto device = backend::make_cuda(world.rank());
    const auto group = collective::make_process_group(world.split(0, world.rank(), "ranks"), *device);
    MAESTRO_CHECK(group->transport().starts_with("NCCL "), "{}", group->transport());
    constexpr std::int64_t kSizes[] = {1 << 12, 1 << 16};
    backend::Arena memory(*device, 2 * kSizes[1] + (std::size_t{64} << 20));
    std::vector<int> node_of(static_cast<std::size_t>(world.size()), 0);
    const auto rows = calibration::measure_collectives(world, node_of, *device, memory, kSizes);
    const std::size_t forms = calibration::probed_groups(node_of).size();
    MAESTRO_CHECK(forms > 0 && rows.size() == 4 * std::size(kSizes) * forms, "{} rows of {} forms",
                  rows.size(), forms);
    for (const collective::CollectiveRow& row : rows)
        MAESTRO_CHECK(row.seconds > 0 && row.seconds < 10 && row.bytes > 0, "{} s", row.seconds);
    const double sum = std::accumulate(rows.begin(), rows.end(), 0.0,
                                       [](double s, const auto& row) { return s + row.seconds; });
    MAESTRO_CHECK(world.sum(sum) == sum * world.size(), "unlike rows");
}

}  // namespace

int main(int argc, char** argv) {
    return test::run(argc, argv, every_kind_is_measured);
}
