#include "train/run/recorder.hpp"

#include <algorithm>
#include <iterator>

#include "comm/agree.hpp"
#include "comm/environment.hpp"

namespace maestro::train {

bool Recorder::due() const {
    return comm::now_s() - last_s_ >= interval_s_;
}

void Recorder::tasks_done(const schedule::StepPlan& plan, std::span<const io::TaskRow> rows) {
    if (!recorded(plan.step)) return;
    tasks_.insert(tasks_.end(), rows.begin(), rows.end());
    if (world_.rank() != 0) return;
    for (std::size_t s = 0; s < plan.batches.size(); ++s)
        for (std::size_t r = 0; r < plan.batches[s].size(); ++r)
            for (std::size_t k = 0; k < plan.batches[s][r].size(); ++k)
                for (int part = 0; part < plan.batches[s][r][k].parts(); ++part)
                    for (const std::int64_t sample : plan.batches[s][r][k].of_part(part))
                        assignment_.push_back(
                            {.step = plan.step,
                             .section = static_cast<int>(s),
                             .replica = static_cast<int>(r) * plan.batches[s][r][k].parts() + part,
                             .micro_batch = static_cast<int>(k),
                             .sample = sample});
}

void Recorder::syncs_done(std::span<const io::SyncRow> rows) {
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(syncs_),
                 [&](const io::SyncRow& row) { return recorded(row.step); });
}

namespace {

/// Collective. Returns the rows of all ranks on rank 0, and clears them on each. Within a step they are in
/// the order of ranks, so that it does not depend on timing.
template <class Row>
std::vector<Row> take_all(const comm::Communicator& world, std::vector<Row>& rows) {
    std::vector<Row> all;
    for (const auto& part : world.gather(std::span<const Row>(rows)))
        all.insert(all.end(), part.begin(), part.end());
    rows.clear();
    std::stable_sort(all.begin(), all.end(), [](const Row& a, const Row& b) { return a.step < b.step; });
    return all;
}

}  // namespace

void Recorder::flush() {
    const std::vector<io::TaskRow> tasks = take_all(world_, tasks_);
    const std::vector<io::SyncRow> syncs = take_all(world_, syncs_);
    comm::agree(world_, [&] {
        if (world_.rank() != 0) return;
        io::append_metrics(path_, {steps_, tasks, syncs, assignment_, experts_}, pulse_);
    });
    steps_.clear();
    assignment_.clear();
    experts_.clear();
    last_s_ = comm::now_s();
}

}  // namespace maestro::train
