// A stage of a section as this rank holds it: its shards of the module, the optimizer, the ends of the edges
// and the memory of micro-batches in flight. It works for one replica of the section and runs one task at a
// time, together with the other ranks of its lane. StepRunner decides which.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/arena.hpp"
#include "channel/channel.hpp"
#include "comm/communicator.hpp"
#include "model/module.hpp"
#include "train/step/activation_slots.hpp"
#include "train/step/optimizer.hpp"
#include "train/step/parameter_sync.hpp"
#include "train/step/timing.hpp"

namespace maestro::train {

/// Marks in the device's work where a task began, had computed and ended. `requested_s` (comm::now_s()) is
/// when the host requested it.
struct TaskMarks {
    double requested_s = 0;
    backend::Mark start, computed, end;
    /// Around each wait for updated weights between `start` and `computed`.
    std::vector<std::pair<backend::Mark, backend::Mark>> weights = {};
};

/// When a task ran, in seconds of comm::now_s(), how long it waited before, and how long for updated weights
/// while it ran.
struct TaskTimes {
    double start_s = 0;
    double end_s = 0;
    double wait_s = 0;
    double weights_s = 0;
};

class LocalStage {
public:
    struct Settings {
        int section = 0;              ///< colour
        int stage = 0;                ///< among the stages of all sections
        int index = 0;                ///< among the stages of the section
        std::string name = {};        ///< of the section
        std::string label = {};       ///< of the stage, for messages; empty: the name
        int replica = 0;              ///< index of the replica that this rank works for
        int lane_replicas = 1;        ///< replicas that share its lane
        bool shares_experts = false;  ///< with the other replicas of its lane
        int window = 1;               ///< micro-batches in flight
        bool backward = true;         ///< every forward has a backward
        DType dtype = DType::f32;
        std::size_t saved_bytes = 0;  ///< activations kept for the largest micro-batch
        EmulatedSync emulated = {};
    };
    /// The caller owns the channels, the backend and `scratch`, and keeps them alive. `inputs` are in the
    /// order of the module's inputs. `scratch` is used within tasks; stages that share a backend may share
    /// it. Allocates memory and sends nothing.
    LocalStage(backend::Backend& backend, Settings settings, std::unique_ptr<model::Module> module,
               comm::Waiter& waiter, std::vector<channel::Channel*> inputs,
               std::vector<channel::Channel*> outputs, backend::Arena& scratch);
    LocalStage(const LocalStage&) = delete;  // the optimizer refers to members of the module
    LocalStage& operator=(const LocalStage&) = delete;

    int section() const { return settings_.section; }  ///< colour
    int number() const { return settings_.stage; }     ///< among the stages of all sections
    int replica() const { return settings_.replica; }
    /// The replica group of its lane, and which part of the lane the replica is.
    int replica_group() const { return settings_.replica / settings_.lane_replicas; }
    int part() const { return settings_.replica % settings_.lane_replicas; }
    bool shares_experts() const { return settings_.shares_experts; }
    int index() const { return settings_.index; }  ///< among the stages of the section
    const std::string& name() const { return settings_.name; }
    const std::string& label() const { return settings_.label; }
    bool sends() const { return !outputs_.empty(); }  ///< has an outgoing edge
    model::Module& module() { return *module_; }
    const backend::Backend& backend() const { return backend_; }
    backend::Clock& clock() { return backend_.clock(); }
    Optimizer* optimizer() { return optimizer_.get(); }
    backend::Arena& scratch() { return scratch_; }
    /// See ParameterSync; reduce() is finish_sums(), and take_syncs() is take_spans(). For a frozen section
    /// they do nothing and return 0.
    void set_between_steps(ParameterSync::BetweenSteps which);
    void gradients_final();
    double reduce();
    /// See Optimizer::balance(). To be called before update().
    void balance(std::span<const model::ExpertLoad> loads);
    void update(const AdamSettings& settings, std::int64_t step, double gradient_scale);
    void await_weights();
    std::vector<SyncSpan> take_syncs();
    /// The times measured so far. Waits until the device has finished its work.
    const SectionTimes& times();
    std::size_t bytes() const;       ///< allocated: weights, gradients, moments, activations
    std::size_t used_bytes() const;  ///< the most that was in use

    /// Whether forward() would start without waiting: all inputs of these samples have arrived, and a credit
    /// and a slot are free.
    bool can_forward(std::span<const std::int64_t> samples);
    /// Whether the forward is done and backward() would start without waiting.
    bool can_backward(int micro_batch);
    /// Waits until forward() can run these samples, and returns the slots of the output channels that it will
    /// use, one for each channel: `slots`, or free ones where it is empty. All ranks of a lane have
    /// to use the same.
    std::vector<int> await_forward(std::span<const std::int64_t> samples, std::span<const int> slots = {});
    /// Waits for the gradients of the micro-batch's outputs.
    void await_backward(int micro_batch);
    /// Runs this replica's part of the micro-batch, sends its outputs and adds to `result`. Call
    /// await_forward() before. `lane_samples`: those of all parts. A part without samples computes
    /// nothing, unless replicas share experts.
    /// Waiting time counts from `requested_s` (comm::now_s()) on.
    TaskMarks forward(int micro_batch, std::span<const std::int64_t> lane_samples, const model::Batch& batch,
                      std::span<const int> slots, model::Result& result, double requested_s);
    /// Runs backward and sends the gradients of the inputs. Call await_backward() before. `last`: no other
    /// backward of this step follows, and the sums of gradients begin within it.
    TaskMarks backward(int micro_batch, double requested_s, bool last = false);
    /// Waits until the device has finished its work. After that measured() may be called.
    void read_clock();
    /// Returns when a task ran, and adds it to times(). At `free_s` the device had finished its earlier work:
    /// the task has waited since then, or since it was requested, whichever is later.
    TaskTimes measured(const TaskMarks& task, double free_s = 0);
    /// Waits for the consumers of a forward-only section. Nothing else may be in flight (checked).
    void end_step();

private:
    /// Frees the slots whose outputs all consumers have read, where nothing comes back for them. Returns
    /// whether a slot is free.
    bool collect_drained();
    std::vector<std::vector<Tensor>> input_rows(std::span<const model::SampleView> samples);
    Tensor no_rows() const;  ///< an output
    /// The gradients of the micro-batch's output, one from each edge that carries one.
    std::vector<Tensor> output_gradients(int micro_batch);

    backend::Backend& backend_;
    Settings settings_;
    std::unique_ptr<model::Module> module_;
    comm::Waiter& waiter_;
    std::vector<channel::Channel*> inputs_;
    std::vector<channel::Channel*> outputs_;
    backend::Arena& scratch_;
    std::unique_ptr<Optimizer> optimizer_;
    std::unique_ptr<ParameterSync> sync_;  ///< where there is an optimizer
    ActivationSlots slots_;
    SectionTimes times_;
    std::vector<std::pair<backend::Mark, backend::Mark>> reducing_;  ///< begin and end, not counted yet
};

}  // namespace maestro::train
