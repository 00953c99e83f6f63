// Runs the tasks of one step on this rank, in the order of its agenda, and says when each ran.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/watchdog.hpp"
#include "data/prefetcher.hpp"
#include "io/metrics_file.hpp"
#include "schedule/step_plan.hpp"
#include "train/step/local_section.hpp"
#include "workload/sample_table.hpp"

namespace maestro::train {

/// An edge on this rank; channel is null where the rank takes no part in it.
struct EdgeEnd {
    int from = 0;  ///< colours
    int to = 0;
    channel::Channel* channel = nullptr;
    parallel::Degrees from_degrees = {}, to_degrees = {};  ///< of either end's replicas
};

class StepRunner {
public:
    /// All are owned by the caller and outlive it. `lane`: this rank's, `together` its ranks, the leader
    /// first; times are recorded from `origin_s` on; `ready`: see run_ready.
    StepRunner(const comm::Communicator& world, int lane, const comm::Communicator& together, double origin_s,
               std::vector<LocalSection*> sections, std::vector<EdgeEnd> edges,
               const workload::SampleTable& table, data::Prefetcher& prefetcher, comm::Watchdog& watchdog,
               bool ready);

    /// Collective over the lane: runs its agenda of the plan. Gradients are left in the parameter stores.
    /// The leader appends one row a task, whose times read_times() fills in.
    model::Result run(const schedule::StepPlan& plan, double loss_scale, std::vector<io::TaskRow>& rows);
    /// When the tasks of the last run() ran, in its rows; waits until the device has done what it was given.
    void read_times(std::vector<io::TaskRow>& rows);

private:
    LocalSection& section_of(const schedule::Task& task) const;
    const schedule::MicroBatch& batch_of(const schedule::StepPlan& plan, const schedule::Task& task) const;
    /// What a step needs at hand.
    struct Step {
        const schedule::StepPlan& plan;
        std::span<const schedule::Task> agenda;
        std::vector<std::int64_t> tickets;  ///< of the prefetcher, by task; -1 for a backward
        double loss_scale;
        model::Result& result;
        std::vector<io::TaskRow>& rows;
    };
    /// A task that was run, and where its row is.
    struct Done {
        LocalSection* section;
        TaskMarks marks;
        std::size_t row;
    };
    /// dispatch = "ready", see schedule::ReadyAgenda.
    void run_ready(Step& step);
    bool can_start(const Step& step, std::size_t task);
    /// Which task the lane runs now, and in which slots of its outputs' channels: the leader waits until it
    /// can, then tells the others, who would else choose by what has come to each of them.
    struct TaskDispatch {
        std::size_t task = 0;
        std::vector<int> slots;
    };
    /// Collective over the lane; `task` is the leader's.
    TaskDispatch broadcast_task(Step& step, std::size_t task);
    void run_task(Step& step, std::size_t task, double asked_s);
    void announce(const Step& step, std::size_t task);  ///< to the watchdog

    const comm::Communicator& world_;
    int lane_;
    const comm::Communicator& lane_comm_;
    bool ready_;
    double origin_s_;
    std::vector<LocalSection*> sections_;
    std::vector<EdgeEnd> edges_;
    const workload::SampleTable& table_;
    data::Prefetcher& prefetcher_;
    comm::Watchdog& watchdog_;
    std::vector<Done> done_;            ///< tasks whose times are not read, in their order
    std::vector<backend::Mark> begun_;  ///< where what each replica did before its tasks ends
};

}  // namespace maestro::train
