#include "train/routes.hpp"

#include <unordered_map>

namespace maestro::train {

std::vector<channel::Route> routes(const schedule::StepPlan& plan, int from, int to,
                                   const std::function<std::int64_t(std::int64_t)>& rows_of) {
    std::unordered_map<std::int64_t, int> consumer;  // sample -> replica of the downstream section
    const auto& down = plan.batches[to];
    for (std::size_t r = 0; r < down.size(); ++r)
        for (const auto& batch : down[r])
            for (const std::int64_t sample : batch.samples) consumer.emplace(sample, static_cast<int>(r));
    std::vector<channel::Route> found;
    const auto& up = plan.batches[from];
    for (std::size_t r = 0; r < up.size(); ++r)
        for (std::size_t k = 0; k < up[r].size(); ++k) {
            std::int64_t row = 0;
            for (const std::int64_t sample : up[r][k].samples) {
                const std::int64_t rows = rows_of(sample);
                if (const auto at = consumer.find(sample); at != consumer.end())
                    found.push_back({.sample = sample,
                                     .producer_replica = static_cast<int>(r),
                                     .producer_micro_batch = static_cast<int>(k),
                                     .consumer_replica = at->second,
                                     .first_row = row,
                                     .rows = rows});
                row += rows;
            }
        }
    return found;
}

}  // namespace maestro::train
