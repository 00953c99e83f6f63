// Keeps the parameters of a stage equal on all of its replicas, group by group and beside the tasks:
// gradients are summed while the step's last backward still runs, and updated weights are gathered while the
// next step's first tasks run. PyTorch's DistributedDataParallel overlaps the former (Li et al., VLDB 2020),
// Megatron-LM's distributed optimizer both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/arena.hpp"
#include "backend/clock.hpp"
#include "collective/operation.hpp"
#include "comm/waiter.hpp"
#include "train/step/optimizer.hpp"
#include "workload/step_end.hpp"

namespace maestro::train {

/// The seconds that sums, updates and gathers take on an emulated cluster, in seconds of this run.
struct EmulatedSync {
    std::vector<workload::GroupTimes> groups = {};  ///< by trainable group; empty: nothing is emulated
    /// When the rank's network is free, in comm::now_s(). The stages of a rank share it.
    std::shared_ptr<double> network_free_s = {};
};

/// When an operation of a group ran, in comm::now_s().
struct SyncSpan {
    bool sum = true;  ///< of gradients; false: a gather of weights
    double begin_s = 0, end_s = 0;
};

/// Several of them: how many, when the first began and the last ended, and the seconds in which at least one
/// was under way. Without any, all are 0.
struct SyncTotal {
    int operations = 0;
    double begin_s = 0, end_s = 0, busy_s = 0;
};
/// The sums, or the gathers, among `spans`, which are in the order in which they began.
SyncTotal total_of(std::span<const SyncSpan> spans, bool sums);

/// The operations of a stage form one queue, the same on all of its ranks: in a step the sums of its groups,
/// in the order in which backward finishes them, then the gathers of their weights, in the order in which
/// forward needs them. One is under way at a time. Every wait of the rank advances it (comm::Waiter), and so
/// does each layer of a pass.
class ParameterSync : private parallel::PassObserver {
public:
    /// All arguments outlive it; `label` names the stage in messages. Allocates scratch memory for sums.
    ParameterSync(parallel::ParameterStore& store, Optimizer& optimizer, comm::Waiter& waiter,
                  std::string label, EmulatedSync emulated = {});
    /// Gives up what is still under way, which only happens while an error ends the program.
    ~ParameterSync() override;
    ParameterSync(const ParameterSync&) = delete;
    ParameterSync& operator=(const ParameterSync&) = delete;

    /// In which steps sums begin when all tasks have ended, and weights are gathered before the tasks of the
    /// next step: in none, in the first one, in all. To be called on all ranks.
    enum class BetweenSteps { never, first, always };
    void set_between_steps(BetweenSteps which) { between_steps_ = which; }
    /// The backward pass that follows is the last one of this step on this rank: the gradients of a group are
    /// final, and their sum begins, when it has finished the group's layers.
    void begin_last_backward();
    /// All gradients of this rank are final: at the end of that pass, or at once where the rank has no
    /// backward in this step. Collective over the replica.
    void gradients_final();
    /// Collective over the stage. Waits for the sums, and returns the sum of squares of what counts on this
    /// rank.
    double finish_sums();
    /// Updates all groups with the gradients times `gradient_scale`, sets the gradients to zero, and begins
    /// to gather the weights. Forward passes wait for the groups that they need.
    void update(const AdamSettings& settings, std::int64_t step, double gradient_scale);
    /// A forward pass begins now: waits until this rank has the weights of the first layer. The pass itself
    /// waits for those of the others.
    void begin_forward();
    /// Throws Error(broken_invariant) if the pass may have computed with old weights: a group was still being
    /// gathered when it began, and its module never asked for it (ParameterStore::layer_needed()).
    void end_forward() const;
    /// Waits until this rank has all weights of the stage.
    void await_weights();

    /// What has ended since the last call, in the order in which it began and ended. To be called every step.
    std::vector<SyncSpan> take_spans();
    /// Before and after each wait for weights within a forward pass since the last call.
    std::vector<std::pair<backend::Mark, backend::Mark>> take_waits();
    std::size_t scratch_bytes() const { return copies_scratch_.capacity() + scratch_.capacity(); }
    std::size_t used_scratch_bytes() const { return copies_scratch_.peak() + scratch_.peak(); }

private:
    struct Group {
        /// What its gradients are on this rank.
        enum class Gradients {
            accumulating,  ///< backward passes add to them
            final,         ///< all of this rank are in, and their sum is in the queue or under way
            summed,        ///< in this rank's shard: those of all ranks
        };
        parallel::ParameterGroup* group;
        /// Its sum may begin while tasks still run. Not that of a tied embedding, which waits for the tasks
        /// of the other stage that holds it.
        bool beside_tasks = true;
        Gradients gradients = Gradients::accumulating;
        /// This rank has the weights of all shards. Not from an update until the end of the gather.
        bool has_weights = true;
        /// The forward pass began with these weights, or has asked for them.
        bool usable = true;
    };
    /// An operation of the queue.
    struct Entry {
        std::size_t group;
        bool sum;
    };

    struct Ending {
        Entry entry;
        double begin_s, end_s;
    };

    void weights_needed(const parallel::ParameterGroup& group) override;
    void gradients_final(const parallel::ParameterGroup& group) override;
    void layer_passed(int /*layer*/) override { waiter_.poll(); }
    bool awaits_weights() const override;
    bool awaits_gradients() const override { return last_backward_; }

    void queue_sums();
    void set_final(Group& group);
    /// Launches what can be launched and advances what is under way. Returns whether anything is.
    bool advance();
    void launch_next();
    /// When an operation whose messages have arrived just now ends: now, or later on an emulated cluster.
    double end_of(const Entry& entry) const;
    void finish_ended();
    void finish(const Entry& entry);
    void await(const Group& group);
    Group& group_of(const parallel::ParameterGroup& group);
    std::string describe() const;

    comm::Waiter& waiter_;
    parallel::ParameterStore& store_;
    Optimizer& optimizer_;
    std::string label_;
    EmulatedSync emulated_;
    backend::Arena copies_scratch_,
        scratch_;                ///< for sums within the replica; for those that run beside tasks
    std::vector<Group> groups_;  ///< in the order of the optimizer
    std::vector<std::size_t> sum_order_;
    BetweenSteps between_steps_ = BetweenSteps::never;
    bool last_backward_ = false;  ///< the last one of the step on this rank is under way
    bool tasks_ended_ = false;
    std::deque<Entry> queue_;
    bool launched_ = false;  ///< the first of the queue
    collective::Operation operation_;
    double begin_s_ = 0;
    std::deque<Ending> ending_;
    bool advancing_ = false;  ///< a launch may wait, and waits advance the queue
    std::vector<SyncSpan> spans_;
    std::vector<std::pair<backend::Mark, backend::Mark>> waits_;
    comm::Waiter::PollId poll_id_;
};

}  // namespace maestro::train
