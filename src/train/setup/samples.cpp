#include "train/setup/samples.hpp"

#include <span>

#include "comm/agree.hpp"

namespace maestro::train {

std::shared_ptr<data::SampleFile> open_samples(const comm::Communicator& world, const std::string& path,
                                               Pulse& pulse) {
    std::shared_ptr<data::SampleFile> samples;
    comm::agree(world, [&] { samples = std::make_shared<data::SampleFile>(path, pulse); });
    return samples;
}

void find_markers(const comm::Communicator& world, data::SampleFile& samples, Pulse& pulse) {
    std::span<std::int32_t> markers;
    comm::agree(world, [&] {
        markers = samples.find_markers(data::Share{world.rank(), world.size()}, pulse);
    });
    world.allreduce_sum(markers);
}

}  // namespace maestro::train
