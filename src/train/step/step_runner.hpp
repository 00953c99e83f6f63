// Runs the tasks of one step on this rank, in the order of its agenda, and records when each ran. A training
// step has forward and backward tasks, a step of an evaluation forward tasks alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/pulse.hpp"
#include "comm/communicator.hpp"
#include "data/prefetcher.hpp"
#include "io/metrics_file.hpp"
#include "schedule/problem/step_plan.hpp"
#include "train/step/local_stage.hpp"
#include "train/step/routes.hpp"
#include "workload/sample_table.hpp"

namespace maestro::train {

/// An edge between two stages as this rank sees it. `channel` is null where the rank is at neither end.
struct EdgeEnd {
    int from = 0, to = 0;  ///< stages
    EdgeSide producers = {}, consumers = {};
    channel::Channel* channel = nullptr;
};

/// What the forward passes of a step need to know besides their samples.
struct StepOptions {
    double loss_scale = 1;  ///< 1 / sum of the loss weights that the loss is averaged over
    bool train = true;      ///< false: an evaluation, whose plans have no backward tasks
};

class StepRunner {
public:
    /// The caller owns everything that is passed by reference or pointer, and keeps it alive. `lane` is the
    /// number of this rank's lane in the plans; `lane_comm` holds the lane's ranks, the leader first. Times
    /// are recorded relative to `origin_s`. `ready`: see run_ready().
    StepRunner(const comm::Communicator& world, int lane, const comm::Communicator& lane_comm,
               double origin_s, std::vector<LocalStage*> stages, std::vector<EdgeEnd> edges,
               const workload::SampleTable& table, data::Prefetcher& prefetcher, Pulse& pulse, bool ready);

    /// Collective over the lane: runs its agenda of the plan. The sums of gradients have begun at its end.
    /// The first rank of each replica on the lane appends one row for each task in which the replica has
    /// samples. read_times() fills in the times.
    model::Result run(const schedule::StepPlan& plan, const StepOptions& options,
                      std::vector<io::TaskRow>& rows);
    /// Fills in when the tasks of the last run() ran. Waits until the device has finished them.
    void read_times(std::vector<io::TaskRow>& rows);
    /// To be called every step after the sums of its gradients. Returns what has ended since the last call:
    /// on the first rank of a replica, a row for the sums of `step` and one for the gathers of the step
    /// before, for each of its stages that had any; elsewhere none.
    std::vector<io::SyncRow> take_syncs(std::int64_t step);

private:
    /// A task of this lane with what it refers to, looked up once at the step's start.
    struct LocalTask {
        schedule::Task task;
        LocalStage* stage;
        const schedule::MicroBatch* micro_batch;
        std::int64_t ticket;  ///< of the prefetcher; -1 for a backward and a part without samples
        bool forward() const { return task.phase == schedule::Phase::forward; }
        std::string describe() const;  ///< "section language stage 1, forward of micro-batch 3"
    };
    struct Step {
        const schedule::StepPlan& plan;
        std::vector<LocalTask> agenda;
        StepOptions options;
        model::Result& result;
        std::vector<io::TaskRow>& rows;
        std::map<LocalStage*, int> backwards;  ///< that have not run yet
    };
    /// A task that has run, and the index of its row among the recorded ones.
    struct Done {
        LocalStage* stage;
        TaskMarks marks;
        std::optional<std::size_t> row;  ///< none on ranks that record nothing
    };
    /// Which task the lane runs now, and in which slots of its outputs' channels.
    struct TaskDispatch {
        std::size_t task = 0;
        std::vector<int> slots;
    };

    /// Looks up what the tasks of the lane's agenda refer to, and queues the reads of their samples.
    std::vector<LocalTask> local_tasks(const schedule::StepPlan& plan);
    void begin_edges(const schedule::StepPlan& plan);
    void begin_sums(Step& step);
    /// dispatch = "ready", see schedule::ReadyAgenda.
    void run_ready(Step& step);
    static bool can_start(const LocalTask& task);
    /// Waits until the task can run. For a forward, returns the slot of each outgoing channel: `slots`, or a
    /// free one of each where `slots` is empty.
    static std::vector<int> await(const LocalTask& task, std::span<const int> slots);
    /// Collective over the lane: the leader waits until `task` can run, then broadcasts it with its slots.
    /// If every rank chose by what has arrived in its own memory, they would choose different tasks and wait
    /// for each other forever.
    TaskDispatch broadcast_task(Step& step, std::size_t task);
    /// Collective over the lane: runs the task `chosen` of the leader, who alone has to pass it.
    void run_task(Step& step, std::size_t chosen, double requested_s);
    void announce(const Step& step, std::size_t task);  ///< to the watchdog and the other ranks
    static bool records(LocalStage& stage);
    /// Returns the rows of a micro-batch on each rank of the lane, in their order.
    std::vector<std::int64_t> lane_rows(const schedule::MicroBatch& micro_batch, LocalStage& stage) const;

    const comm::Communicator& world_;
    int lane_;
    const comm::Communicator& lane_comm_;
    bool ready_;
    double origin_s_;
    std::vector<LocalStage*> stages_;
    std::vector<EdgeEnd> edges_;
    const workload::SampleTable& table_;
    data::Prefetcher& prefetcher_;
    Pulse& pulse_;
    std::vector<Done> done_;            ///< tasks whose times have not been read, in the order they ran
    std::vector<backend::Mark> begun_;  ///< by stage: the mark before its first task
};

}  // namespace maestro::train
