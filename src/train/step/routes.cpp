#include "train/step/routes.hpp"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/check.hpp"
#include "channel/spec.hpp"

namespace maestro::train {

namespace {

using Rows = std::vector<parallel::RowPlacement>;  // of one sample

/// Both ends hold the same rows of the sample, in ascending ranges. A segment is what two of these ranges
/// have in common, so each row is in one segment.
std::vector<channel::RowSegment> segments_of(std::int64_t sample, const Rows& produced,
                                             const Rows& consumed) {
    std::vector<channel::RowSegment> found;
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

/// Where a sample is at the consuming end.
struct Consumer {
    int group = 0;
    int micro_batch = 0;       ///< among those of all groups
    std::size_t position = 0;  ///< in the micro-batch
};

/// The micro-batches of groups of the consuming section. Each is laid out when the first of its samples is
/// asked for.
class Consumers {
public:
    explicit Consumers(const RowLayout& layout) : layout_(layout) {}
    void add(int group, const std::vector<schedule::MicroBatch>& micro_batches) {
        for (const schedule::MicroBatch& micro_batch : micro_batches) {
            for (std::size_t i = 0; i < micro_batch.samples.size(); ++i)
                of_sample_.emplace(micro_batch.samples[i],
                                   Consumer{group, static_cast<int>(micro_batches_.size()), i});
            micro_batches_.push_back(&micro_batch);
        }
        rows_.resize(micro_batches_.size());
    }
    /// Null where the section does not work on the sample.
    const Consumer* find(std::int64_t sample) const {
        const auto at = of_sample_.find(sample);
        return at == of_sample_.end() ? nullptr : &at->second;
    }
    const Rows& rows(const Consumer& consumer) {
        auto& rows = rows_[consumer.micro_batch];
        if (!rows) rows = layout_(*micro_batches_[consumer.micro_batch]);
        return (*rows)[consumer.position];
    }

private:
    const RowLayout& layout_;
    std::unordered_map<std::int64_t, Consumer> of_sample_;
    std::vector<const schedule::MicroBatch*> micro_batches_;
    std::vector<std::optional<workload::RowPlacements>> rows_;  ///< by micro-batch
};

/// Returns where the ranks of a lane have the rows of a micro-batch, each part of the lane those of its
/// samples. `rows_of(samples)`: the same for one part, whose ranks are numbered from 0.
template <class RowsOf>
RowLayout of_parts(parallel::Degrees degrees, RowsOf rows_of) {
    return [degrees, rows_of](const schedule::MicroBatch& micro_batch) {
        workload::RowPlacements all;
        for (int part = 0; part < micro_batch.parts(); ++part)
            for (Rows& rows : rows_of(micro_batch.of_part(part))) {
                for (parallel::RowPlacement& placement : rows) placement.rank += part * degrees.ranks();
                all.push_back(std::move(rows));
            }
        return all;
    };
}

}  // namespace

std::vector<channel::Route> routes(const schedule::StepPlan& plan, int from, int to,
                                   const RowLayout& produced, const RowLayout& consumed,
                                   const std::optional<EndGroups>& local) {
    const auto &up = plan.batches[from], &down = plan.batches[to];
    const auto serves = [&](int producer, int consumer) {
        return channel::serves(up.size(), down.size(), producer, consumer);
    };
    const auto is_local = [&](int producer, int consumer) {
        return !local || local->producer == producer || local->consumer == consumer;
    };
    // Groups of which none serves or is served by a local one are not looked at, because there are as many
    // as the batch is large.
    std::vector<bool> produces(up.size(), !local), consumes(down.size(), !local);
    const auto look_at = [&](int producer, int consumer) {
        if (serves(producer, consumer)) produces[producer] = consumes[consumer] = true;
    };
    if (local && local->producer)
        for (int c = 0; c < static_cast<int>(down.size()); ++c) look_at(*local->producer, c);
    if (local && local->consumer)
        for (int p = 0; p < static_cast<int>(up.size()); ++p) look_at(p, *local->consumer);
    Consumers consumers(consumed);
    for (std::size_t c = 0; c < down.size(); ++c)
        if (consumes[c]) consumers.add(static_cast<int>(c), down[c]);
    std::vector<channel::Route> found;
    for (int p = 0; p < static_cast<int>(up.size()); ++p)
        for (std::size_t k = 0; produces[p] && k < up[p].size(); ++k) {
            const auto& samples = up[p][k].samples;
            std::optional<workload::RowPlacements> rows;
            for (std::size_t i = 0; i < samples.size(); ++i) {
                const Consumer* consumer = consumers.find(samples[i]);
                if (!consumer) continue;
                MAESTRO_CHECK(serves(p, consumer->group),
                              "sample {} from replica group {}, which does not serve group {}", samples[i], p,
                              consumer->group);
                if (!is_local(p, consumer->group)) continue;
                // Laid out once for all samples of the micro-batch, and not at all if none of them has a
                // local end.
                if (!rows) rows = produced(up[p][k]);
                found.push_back({.sample = samples[i],
                                 .producer_group = p,
                                 .producer_micro_batch = static_cast<int>(k),
                                 .consumer_group = consumer->group,
                                 .segments = segments_of(samples[i], (*rows)[i], consumers.rows(*consumer))});
            }
        }
    return found;
}

std::vector<channel::Route> routes(const schedule::StepPlan& plan, EdgeSide from, EdgeSide to,
                                   const workload::SampleTable& table,
                                   const std::optional<EndGroups>& local) {
    if (from.section == to.section) {
        const auto stream = [&](bool by_sample) {
            return of_parts(from.degrees, [&, by_sample](std::span<const std::int64_t> samples) {
                return workload::stream_of(workload::pack_sequences(table, from.section, samples),
                                           from.degrees, by_sample);
            });
        };
        return routes(plan, from.section, to.section, stream(false), stream(true), local);
    }
    const RowLayout produced = of_parts(from.degrees, [&](std::span<const std::int64_t> samples) {
        return workload::outputs_of(workload::pack_sequences(table, from.section, samples), from.degrees);
    });
    const RowLayout consumed = of_parts(to.degrees, [&](std::span<const std::int64_t> samples) {
        std::vector<std::vector<Range>> places;
        for (const std::int64_t sample : samples)
            places.push_back(workload::places_of(table, from.section, to.section, sample, to.degrees));
        return workload::inputs_of(workload::pack_sequences(table, to.section, samples), places, to.degrees);
    });
    return routes(plan, from.section, to.section, produced, consumed, local);
}

}  // namespace maestro::train
