// Colocated sections on a GPU: each has a dedicated stream and scratch memory, and only edges order their
// tasks.
#include "train/setup/section_devices.hpp"

#include <cuda_runtime_api.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>

#include "backend/backend.hpp"
#include "backend/cuda/stream.hpp"
#include "channel/open.hpp"
#include "comm/environment.hpp"
#include "comm/waiter.hpp"
#include "hosted/hosted.hpp"
#include "mpi/mpi_main.hpp"
#include "support/edges.hpp"
#include "train/step/local_stage.hpp"

namespace {

using namespace maestro;

constexpr int kUp = 0, kDown = 1;
constexpr double kTimeout_s = 5;  // s

/// Two sections on rank 0, and a third on another rank.
struct Colocated {
    explicit Colocated(const comm::Communicator& world, bool gpu)
        : context{.world = world,
                  .watchdog = watchdog,
                  .pulse = pulse,
                  .topology = {},
                  .device = {},
                  .deck = {}} {
        context.device.gpu = gpu;
        context.scenario.graph.sections.resize(3);
        context.scenario.graph.sections[2].first_rank = 1;
        for (int s = 0; s < 3; ++s) {
            context.scenario.graph.sections[static_cast<std::size_t>(s)].first_stage = s;
            context.scenario.graph.stages.push_back({.section = s});
        }
        plan.shares_scratch = !gpu;
        for (const std::size_t bytes : {1024, 4096, 8192}) {
            plan.stages.emplace_back();
            plan.stages.back().footprint.scratch = bytes;
        }
    }
    comm::Watchdog watchdog{{}};
    Pulse pulse;
    train::RunContext context;
    workload::MemoryPlan plan;
};

void sections_allocate_what_the_plan_counts(const comm::Communicator& world) {
    for (const bool gpu : {true, false}) {
        const Colocated on(world, gpu);
        train::SectionDevices devices(on.context, on.plan);
        const bool apart = &devices.backend(kUp) != &devices.backend(kDown);
        MAESTRO_CHECK(apart == gpu && (&devices.scratch(kUp) != &devices.scratch(kDown)) == gpu, "{}", apart);
        MAESTRO_CHECK(!gpu || devices.backend(kUp).stream() != devices.backend(kDown).stream(), "one stream");
        MAESTRO_CHECK(devices.find(2) == nullptr && devices.find(kDown) == &devices.backend(kDown), "found");
        const auto planned = workload::memory_of(on.plan, on.context.scenario.graph, world.rank()).scratch;
        MAESTRO_CHECK(
            planned == (gpu ? 1024 + 4096 : 4096) && planned == static_cast<double>(devices.scratch_bytes()),
            "{} planned, {} allocated", planned, devices.scratch_bytes());
    }
}

/// The tasks that ran, in order, such as "up forward". Tasks that are enqueued while `block` is set wait for
/// `go`.
class TaskLog {
public:
    void record(std::string what) {
        const std::lock_guard lock(mutex_);
        ran_.push_back(std::move(what));
    }
    std::vector<std::string> ran() {
        const std::lock_guard lock(mutex_);
        return ran_;
    }
    std::atomic<bool> go = false;
    bool block = false;

private:
    std::mutex mutex_;  ///< streams also run on a background thread
    std::vector<std::string> ran_;
};

class RecordingModule final : public model::Module {
public:
    RecordingModule(backend::Backend& b, std::string section, bool sends, TaskLog& log)
        : Module(b, role(section), parallel::single_rank_mesh()),
          b_(b),
          section_(std::move(section)),
          sends_(sends),
          log_(log) {
        store_.declare("weight", {8}, parallel::Init::zeros, true);
        store_.allocate(1);
    }
    std::unique_ptr<model::Saved> forward(const model::Batch&, std::span<const std::vector<Tensor>>,
                                          backend::Arena& saved, backend::Arena&, Tensor& output,
                                          model::Result&) override {
        if (sends_) output = saved.allocate(DType::f32, {1, 2});
        record("forward");
        return std::make_unique<model::Saved>();
    }
    void backward(model::Saved&, const Tensor&, std::span<const Tensor>, backend::Arena&) override {
        record("backward");
    }

private:
    void record(const std::string& phase) {
        const std::string what = section_ + " " + phase;
        hosted::enqueue_until(
            b_.stream(),
            [this, what, blocked = log_.block] {
                if (blocked && !log_.go) return false;
                log_.record(what);
                return true;
            },
            "a task");
    }
    static model::Role role(const std::string& section) {
        model::Role role;
        role.section = section;
        return role;
    }
    backend::Backend& b_;
    std::string section_;
    bool sends_;
    TaskLog& log_;
};

/// An edge between two sections of this rank.
class Pair {
    Colocated on_;
    train::SectionDevices devices_;
    channel::OpenChannels open_;

public:
    explicit Pair(const comm::Communicator& world) : on_(world, true), devices_(on_.context, on_.plan) {
        channel::ChannelSpec spec{.name = "up-down",
                                  .producers = testing_support::one_each({world.rank()}),
                                  .consumers = testing_support::one_each({world.rank()}),
                                  .width = 2,
                                  .window = 2,
                                  .max_sent = 1,
                                  .max_received = 1,
                                  .max_samples = 4,
                                  .pointer = true};
        const transport::Backends ends{devices_.find(kUp), devices_.find(kDown)};
        open_ = channel::open_channels(world, std::span(&spec, 1), channel::TransportRequest::automatic,
                                       std::span(&ends, 1));
        up = replica(world, kUp, "up", {}, {&edge()});
        down = replica(world, kDown, "down", {&edge()}, {});
    }
    channel::Channel& edge() { return *open_.channels[0]; }
    void forward(train::LocalStage& replica, int micro_batch) {
        const std::int64_t sample = micro_batch + 1;
        model::SampleView view;
        view.id = sample;
        const std::vector<int> slots = replica.await_forward(std::span(&sample, 1));
        model::Result result;
        replica.forward(micro_batch, std::span(&sample, 1), {.samples = std::span(&view, 1)}, slots, result,
                        comm::now_s());
    }
    void backward(train::LocalStage& replica, int micro_batch) {
        replica.await_backward(micro_batch);
        replica.backward(micro_batch, comm::now_s());
    }

    TaskLog log;
    std::unique_ptr<train::LocalStage> up, down;

private:
    std::unique_ptr<train::LocalStage> replica(const comm::Communicator& world, int section, std::string name,
                                               std::vector<channel::Channel*> inputs,
                                               std::vector<channel::Channel*> outputs) {
        backend::Backend& device = devices_.backend(section);
        auto module = std::make_unique<RecordingModule>(device, name, !outputs.empty(), log);
        return std::make_unique<train::LocalStage>(
            device,
            train::LocalStage::Settings{.section = section, .name = name, .window = 2, .saved_bytes = 64},
            std::move(module), world.waiter(), std::move(inputs), std::move(outputs),
            devices_.scratch(section));
    }
};

void wait_for(const std::function<bool()>& ready, const std::string& what) {
    comm::Waiter waiter(kTimeout_s);
    waiter.wait_until(ready, [&] { return what; });
}

/// A producer task that the consumer does not need does not delay the consumer.
void tasks_wait_only_for_their_edges(const comm::Communicator& world) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        hosted::seed(seed);
        Pair pair(world);
        TaskLog& log = pair.log;
        const std::vector<channel::Route> routes = {testing_support::route(1, 0, 0, 0, 0, 1),
                                                    testing_support::route(2, 0, 1, 0, 0, 1)};
        pair.edge().begin_step(1, routes);
        pair.forward(*pair.up, 0);
        log.block = true;
        pair.forward(*pair.up, 1);
        log.block = false;
        pair.forward(*pair.down, 0);
        pair.backward(*pair.down, 0);
        wait_for([&] { return log.ran().size() == 3; }, "consumer tasks concurrent with a producer task");
        MAESTRO_CHECK((log.ran() == std::vector<std::string>{"up forward", "down forward", "down backward"}),
                      "{} first", log.ran().front());
        log.block = true;
        pair.forward(*pair.down, 1);
        pair.backward(*pair.down, 1);
        log.block = false;
        pair.backward(*pair.up, 0);
        pair.backward(*pair.up, 1);
        log.go = true;
        pair.up->read_clock();
        const std::vector<std::string> ran = log.ran();
        const auto at = [&](const char* what, int nth) {
            auto found = std::find(ran.begin(), ran.end(), what);
            for (; nth > 0; --nth) found = std::find(found + 1, ran.end(), what);
            return found - ran.begin();
        };
        MAESTRO_CHECK(ran.size() == 8 && at("up forward", 1) < at("down forward", 1) &&
                          at("down backward", 1) < at("up backward", 1),
                      "out of order: {}", fmt::join(ran, ", "));
        pair.up->end_step();
        pair.down->end_step();
        pair.edge().end_step();
    }
}

void exchanges_have_the_higher_priority() {
    const auto section = backend::make_cuda(0);
    const backend::CudaStream exchange;
    int of_section = 0, of_exchange = 0;
    MAESTRO_CUDA_CALL(cudaStreamGetPriority(section->stream(), &of_section));
    MAESTRO_CUDA_CALL(cudaStreamGetPriority(exchange, &of_exchange));
    MAESTRO_CHECK(of_section == 0 && of_exchange < 0, "{} and {}", of_section, of_exchange);
}

}  // namespace

int main(int argc, char** argv) {
    return maestro::test::run(argc, argv, [](const maestro::comm::Communicator& world) {
        sections_allocate_what_the_plan_counts(world);
        tasks_wait_only_for_their_edges(world);
        exchanges_have_the_higher_priority();
    });
}
