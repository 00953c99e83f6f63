#include "train/run/recorder.hpp"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "comm/environment.hpp"
#include "storage/file.hpp"
#include "train/checkpoint/full_disk.hpp"

namespace maestro::train {

namespace {
/// Rows of tasks and samples that wait for room on the disk, of some 100 bytes each.
constexpr std::size_t kMostWaiting = 4'000'000;
}  // namespace

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
                        waiting_.assignment.push_back(
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

void Recorder::losses_done(std::int64_t step, int section, std::span<const model::LossSum> sums) {
    for (const model::LossSum& sum : sums)
        losses_.push_back(io::loss_row(step, section, sum.term, sum.value));
}

std::vector<io::LossRow> add_loss_parts(std::vector<io::LossRow> parts) {
    const auto key = [](const io::LossRow& row) { return std::tie(row.step, row.section, row.name); };
    std::stable_sort(parts.begin(), parts.end(),
                     [&](const io::LossRow& a, const io::LossRow& b) { return key(a) < key(b); });
    std::vector<io::LossRow> rows;
    for (const io::LossRow& part : parts)
        if (!rows.empty() && key(rows.back()) == key(part))
            rows.back().value += part.value;
        else
            rows.push_back(part);
    return rows;
}

namespace {

/// Collective. Moves the rows of all ranks to the end of `all` on rank 0. Within a step they are in the order
/// of ranks, so that it does not depend on timing.
template <class Row>
void move_all(const comm::Communicator& world, std::vector<Row>& rows, std::vector<Row>& all) {
    const auto before = static_cast<std::ptrdiff_t>(all.size());
    for (const auto& part : world.gather(std::span<const Row>(rows)))
        all.insert(all.end(), part.begin(), part.end());
    rows.clear();
    std::stable_sort(all.begin() + before, all.end(),
                     [](const Row& a, const Row& b) { return a.step < b.step; });
}

}  // namespace

std::string Recorder::flush() {
    move_all(world_, tasks_, waiting_.tasks);
    move_all(world_, syncs_, waiting_.syncs);
    std::vector<io::LossRow> parts;
    move_all(world_, losses_, parts);
    const std::vector<io::LossRow> losses = add_loss_parts(std::move(parts));
    waiting_.losses.insert(waiting_.losses.end(), losses.begin(), losses.end());
    const std::string fault = agree_unless_full(world_, [&] {
        if (world_.rank() != 0) return;
        try {
            io::append_metrics(path_, waiting_, pulse_);
        } catch (const storage::NoRoom& error) {
            if (waiting_.tasks.size() + waiting_.assignment.size() < kMostWaiting) throw;
            throw Error(ExitCode::io_error, error.what());
        }
        waiting_ = {};
    });
    last_s_ = comm::now_s();
    return fault;
}

}  // namespace maestro::train
