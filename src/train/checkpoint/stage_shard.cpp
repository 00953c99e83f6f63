#include "train/checkpoint/stage_shard.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "backend/host_access.hpp"
#include "io/checkpoint_reader.hpp"
#include "train/checkpoint/block_walk.hpp"
#include "train/checkpoint/weights.hpp"

namespace maestro::train {

namespace {

/// Returns which of the elements of `p` held here this rank writes. Ranks that hold copies of an element
/// leave it to the first of them.
std::vector<Range> written_here(const StageShard& shard, const parallel::Parameter& p) {
    const parallel::ParameterGroup& group = shard.store.group_of(p);
    const Range range = group.shard_of(p);
    return range.size() > 0 ? group.first_copies(p, range) : std::vector<Range>{};
}

[[noreturn]] void refuse(const StageShard& shard, const parallel::Parameter& p, Range range,
                         const float* weights, std::int64_t step) {
    for (const Extent& extent : extents_of(p.shape, p.shard, range))
        for (std::int64_t i = 0; i < extent.count; ++i)
            if (const float weight = weights[extent.local - range.begin + i]; !std::isfinite(weight))
                throw Error(
                    ExitCode::not_finite,
                    fmt::format("section {}: element {} of {} is {} after step {}; this checkpoint is not "
                                "kept. Go on from the last one with a smaller optimizer.learning_rate",
                                shard.name, extent.logical + i, p.name, weight, step));
    MAESTRO_FAIL("section {}: {} was not finite, and now is", shard.name, p.name);
}

}  // namespace

// Training waits for it at every checkpoint. The sum reaches the sign bit exactly where all bits of the
// exponent are set, so that the loop needs no comparison and is limited by the memory.
bool all_finite(const float* values, std::int64_t count) {
    constexpr std::uint32_t kExponent = 0x7f800000, kLowest = 0x00800000, kSign = 0x80000000;
    std::uint32_t carries = 0;
    for (std::int64_t i = 0; i < count; ++i)
        carries |= (std::bit_cast<std::uint32_t>(values[i]) & kExponent) + kLowest;
    return (carries & kSign) == 0;
}

std::vector<Share> shares_of(const StageShard& shard) {
    std::vector<Share> shares;
    for (const parallel::Parameter& p : shard.store.parameters())
        for (const Range& range : written_here(shard, p)) {
            shares.push_back(
                {&p, io::Stored::weight, range, shard.store.group_of(p).shard_weights(p, range)});
            if (!p.trainable) continue;
            const std::int64_t first = shard.store.group_of(p).shard_of(p).begin;
            const auto moments = [&](io::Stored what, const Tensor& all) {
                shares.push_back({&p, what, range, all.slice(range.begin - first, range.end - first)});
            };
            moments(io::Stored::first, shard.optimizer->first_moments(p));
            moments(io::Stored::second, shard.optimizer->second_moments(p));
        }
    return shares;
}

void check_finite(const StageShard& shard, std::int64_t step) {
    if (!shard.store.backend().shares_memory() &&
        (!shard.optimizer || shard.optimizer->all_finite(*shard.scratch)))
        return;
    for (const Share& share : shares_of(shard)) {
        if (share.what != io::Stored::weight || !share.parameter->trainable) continue;
        const backend::HostCopy copy(shard.store.backend(), share.values);
        const float* weights = copy.tensor().as<float>();
        if (!all_finite(weights, share.range.size()))
            refuse(shard, *share.parameter, share.range, weights, step);
    }
}

void load_moments(const std::string& checkpoint, const std::string& section,
                  const parallel::ParameterStore& store, Optimizer& optimizer, Pulse& pulse) {
    const io::SectionReader stored(checkpoint, section_in(checkpoint, section), pulse);
    for (const parallel::Parameter& p : store.parameters()) {
        if (!p.trainable) continue;
        for_blocks(store.group_of(p).shard_of(p), kCheckpointBlock, [&](Range block) {
            optimizer.set_moments(p, block, stored.read(p.name, p.shape, io::Stored::first, p.shard, block),
                                  stored.read(p.name, p.shape, io::Stored::second, p.shard, block));
        });
    }
}

}  // namespace maestro::train
