#include "train/step/routes.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/check.hpp"

namespace maestro::train {

namespace {

using Rows = std::vector<parallel::RowPlacement>;  // of one sample

std::vector<channel::Piece> pieces(std::int64_t sample, const Rows& produced, const Rows& consumed) {
    std::vector<channel::Piece> found;
    std::int64_t row = 0;
    auto p = produced.begin();
    auto c = consumed.begin();
    while (p != produced.end() && c != consumed.end()) {
        const std::int64_t p_end = p->first + p->count, c_end = c->first + c->count;
        MAESTRO_CHECK(p->first <= row && c->first <= row, "nobody holds row {} of sample {}", row, sample);
        const std::int64_t end = std::min(p_end, c_end);
        found.push_back({p->rank, c->rank, p->local + row - p->first, c->local + row - c->first, end - row});
        row = end;
        if (p_end == end) ++p;
        if (c_end == end) ++c;
    }
    MAESTRO_CHECK(p == produced.end() && c == consumed.end(), "the ends of an edge differ after row {} of {}",
                  row, sample);
    return found;
}

}  // namespace

std::vector<channel::Route> routes(const schedule::StepPlan& plan, int from, int to, const Held& produced,
                                   const Held& consumed) {
    struct Consumer {
        int replica;
        Rows rows;
    };
    std::unordered_map<std::int64_t, Consumer> consumers;  // by sample
    const auto& down = plan.batches[to];
    for (std::size_t r = 0; r < down.size(); ++r)
        for (const auto& batch : down[r]) {
            workload::RowPlacements held = consumed(batch.samples);
            for (std::size_t i = 0; i < held.size(); ++i)
                consumers.emplace(batch.samples[i], Consumer{static_cast<int>(r), std::move(held[i])});
        }
    std::vector<channel::Route> found;
    const auto& up = plan.batches[from];
    for (std::size_t r = 0; r < up.size(); ++r)
        for (std::size_t k = 0; k < up[r].size(); ++k) {
            const auto& samples = up[r][k].samples;
            const workload::RowPlacements held = produced(samples);
            for (std::size_t i = 0; i < held.size(); ++i)
                if (const auto at = consumers.find(samples[i]); at != consumers.end())
                    found.push_back({.sample = samples[i],
                                     .producer_replica = static_cast<int>(r),
                                     .producer_micro_batch = static_cast<int>(k),
                                     .consumer_replica = at->second.replica,
                                     .pieces = pieces(samples[i], held[i], at->second.rows)});
        }
    return found;
}

std::vector<channel::Route> routes(const schedule::StepPlan& plan, EdgeSide from, EdgeSide to,
                                   const workload::SampleTable& table) {
    const auto produced = [&](std::span<const std::int64_t> samples) {
        return workload::outputs_of(workload::packing_of(table, from.section, samples), from.degrees);
    };
    const auto consumed = [&](std::span<const std::int64_t> samples) {
        std::vector<std::vector<Range>> places;
        for (const std::int64_t sample : samples)
            places.push_back(workload::places_of(table, from.section, to.section, sample, to.degrees));
        return workload::inputs_of(workload::packing_of(table, to.section, samples), places, to.degrees);
    };
    return routes(plan, from.section, to.section, produced, consumed);
}

}  // namespace maestro::train
