// This rank's part of a replica: the section's module, its edges, its optimizer, and the memory of
// micro-batches in entry. It runs one task at a time, together with the other ranks of its lane; which, the
// step runner decides.
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
#include "train/step/timing.hpp"

namespace maestro::train {

/// Where a task began, had computed and ended, in what the device does; asked for at comm::now_s().
struct TaskMarks {
    double asked_s = 0;
    backend::Mark start, computed, end;
};

/// When a task ran, seconds of comm::now_s(), and how long it waited before.
struct TaskTimes {
    double start_s = 0;
    double end_s = 0;
    double wait_s = 0;
};

class LocalSection {
public:
    struct Settings {
        int section = 0;        ///< colour
        std::string name = {};  ///< of the section
        int replica = 0;        ///< index of the replica that this rank works for
        int window = 1;         ///< micro-batches in flight
        bool backward = true;   ///< its tasks come in pairs
        DType dtype = DType::f32;
        std::size_t saved_bytes = 0;  ///< activations of the worst micro-batch
    };
    /// Channels are owned by the caller: `inputs` in the order of the module's inputs. `scratch` is used
    /// within a task; replicas may share it that share the backend. All must outlive the replica. Nothing is
    /// sent here.
    LocalSection(backend::Backend& backend, Settings settings, std::unique_ptr<model::Module> module,
                 comm::Waiter& waiter, std::vector<channel::Channel*> inputs,
                 std::vector<channel::Channel*> outputs, backend::Arena& scratch);
    LocalSection(const LocalSection&) = delete;  // the optimizer refers to members of the module
    LocalSection& operator=(const LocalSection&) = delete;

    int colour() const { return settings_.section; }
    int replica() const { return settings_.replica; }
    const std::string& name() const { return settings_.name; }
    bool sends() const { return !outputs_.empty(); }  ///< has an outgoing edge
    model::Module& module() { return *module_; }
    const backend::Backend& backend() const { return backend_; }
    backend::Clock& clock() { return backend_.clock(); }
    Optimizer* optimizer() { return optimizer_.get(); }
    backend::Arena& scratch() { return scratch_; }
    /// Collective over the section: Optimizer's; 0 and nothing where the section is frozen.
    double reduce();
    void update(const AdamSettings& settings, std::int64_t step, double gradient_scale);
    /// Of what was measured. Waits until the device has done what it was given.
    const SectionTimes& times();
    std::size_t bytes() const;       ///< taken: weights, gradients, moments and activations
    std::size_t used_bytes() const;  ///< the part of them that was ever in use

    /// Would forward() start without waiting? Are all inputs of these samples here, and a credit and a slot
    /// free?
    bool can_forward(std::span<const std::int64_t> samples);
    /// Would backward() start without waiting, its forward being done?
    bool can_backward(int micro_batch);
    /// Waits until forward() can run these samples here, in these slots of the outputs' channels, one each;
    /// without, in any, which are returned: all ranks of a lane have to take the same.
    std::vector<int> await_forward(std::span<const std::int64_t> samples, std::span<const int> slots = {});
    /// Waits for the gradients of the micro-batch's outputs.
    void await_backward(int micro_batch);
    /// Runs the micro-batch and sends its outputs. Needs await_forward(). Adds to `result`. Waiting counts
    /// from `asked_s` (comm::now_s()) on.
    TaskMarks forward(int micro_batch, const model::Batch& batch, std::span<const int> slots,
                      model::Result& result, double asked_s);
    /// Runs backward and sends the gradients of the inputs. Needs await_backward().
    TaskMarks backward(int micro_batch, double asked_s);
    /// Waits until the device has done what it was given; then measured() may be asked.
    void read_clock();
    /// When a task ran; adds to times(). The device was done with what it began before at `free_s`: it waits
    /// from then on, or from when the task was asked for, unless it began this one meanwhile.
    TaskTimes measured(const TaskMarks& task, double free_s = 0);
    /// Nothing may be in flight any more (checked).
    void end_step();

private:
    /// A forward-only section keeps its output until all consumers are done with it. Is a slot free then?
    bool collect_drained();
    std::vector<std::vector<Tensor>> input_rows(std::span<const model::SampleView> samples);
    /// Those that come back over the edges.
    std::vector<Tensor> output_gradients(int micro_batch);

    backend::Backend& backend_;
    Settings settings_;
    std::unique_ptr<model::Module> module_;
    comm::Waiter& waiter_;
    std::vector<channel::Channel*> inputs_;
    std::vector<channel::Channel*> outputs_;
    backend::Arena& scratch_;
    std::unique_ptr<Optimizer> optimizer_;
    ActivationSlots slots_;
    SectionTimes times_;
    std::vector<std::pair<backend::Mark, backend::Mark>> reducing_;  ///< begin and end, not counted yet
};

}  // namespace maestro::train
