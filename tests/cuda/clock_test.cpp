// The clock of a simulated device, whose streams run later than the host enqueues. Work sleeps, so that its
// duration is known.
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include "comm/environment.hpp"
#include "hosted/hosted.hpp"
#include "mpi/expect.hpp"
#include "mpi/mpi_main.hpp"
#include "support/device.hpp"
#include "train/step/local_stage.hpp"

namespace {

using namespace maestro;
using namespace maestro::test;

constexpr double kTask = 0.02, kShort = 0.01;  // s
constexpr double kRounding = 1e-6;             // s, rounding of event times

void sleep(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

void queue(backend::Backend& b, double seconds) {
    hosted::enqueue(
        b.stream(), [seconds] { sleep(seconds); }, "a sleep");
}

/// Work is between its marks, however late the stream runs, and no mark is later than the host's time.
void marks_enclose_the_work(const comm::Communicator&) {
    const auto device = testing_support::make_device(1);
    backend::Clock& clock = device->clock();
    for (int round = 0; round < 20; ++round) {
        std::vector<backend::Mark> marks = {clock.mark()};
        const double begin_s = comm::now_s();
        for (const double seconds : {kTask, 0.0, kShort}) {
            queue(*device, seconds);
            marks.push_back(clock.mark());
        }
        sleep(kShort);  // the host is late; the device may be late
        clock.read();
        const double end_s = comm::now_s();
        const auto between = [&](int i) { return clock.at(marks[i + 1]) - clock.at(marks[i]); };
        MAESTRO_CHECK(between(0) >= kTask && between(2) >= kShort, "{} and {} s", between(0), between(2));
        MAESTRO_CHECK(between(1) >= 0 && between(1) < kTask, "{} s for nothing", between(1));
        for (const backend::Mark& mark : marks)
            MAESTRO_CHECK(clock.at(mark) >= mark.host_s - kRounding && clock.at(mark) <= end_s + kRounding,
                          "recorded at {}, read as {}", mark.host_s - begin_s, clock.at(mark) - begin_s);
    }
}

/// A second read() without new marks changes nothing. Marks that no read() has covered yet are rejected.
void unread_marks_are_rejected(const comm::Communicator&) {
    const auto device = testing_support::make_device(1);
    backend::Clock& clock = device->clock();
    const backend::Mark first = clock.mark();
    clock.read();
    const double at = clock.at(first);
    clock.read();
    MAESTRO_CHECK(clock.at(first) == at, "another time");
    const backend::Mark second = clock.mark();
    expect_error(ExitCode::broken_invariant, "mark 1 of a clock", [&] { clock.at(second); });
    clock.read();
    MAESTRO_CHECK(clock.at(second) >= at, "time goes on");
    expect_error(ExitCode::broken_invariant, "mark 0 of a clock", [&] { clock.at(first); });
}

/// A module whose tasks are enqueued at once and take a known time.
class Sleeper final : public model::Module {
public:
    explicit Sleeper(backend::Backend& b) : Module(b, role(), parallel::single_rank_mesh()), b_(b) {
        store_.declare("weight", {8}, parallel::Init::zeros, true);
        store_.allocate(1);
    }
    std::unique_ptr<model::Saved> forward(const model::Batch&, std::span<const std::vector<Tensor>>,
                                          backend::Arena&, backend::Arena&, Tensor&,
                                          model::Result&) override {
        queue(b_, kTask);
        return std::make_unique<model::Saved>();
    }
    void backward(model::Saved&, const Tensor&, std::span<const Tensor>, backend::Arena&) override {
        queue(b_, 2 * kTask);
    }

private:
    static model::Role role() {
        model::Role role;
        role.section = "sleeper";
        return role;
    }
    backend::Backend& b_;
};

/// A replica's times are those of its tasks on the device, not of their launch, and their sum does not exceed
/// the elapsed time.
void task_times_are_the_devices(const comm::Communicator& world) {
    const auto device = testing_support::make_device(1);
    backend::Arena scratch(*device, 1 << 20);
    train::LocalStage replica(*device, {.name = "sleeper", .saved_bytes = 64},
                              std::make_unique<Sleeper>(*device), world.waiter(), {}, {}, scratch);
    replica.module().parameters().zero_gradients();
    model::Result result;
    const model::SampleView sample;
    const double begin_s = comm::now_s();
    double sum = 0;
    for (int step = 1; step <= 4; ++step) {
        const double requested_s = comm::now_s();
        const backend::Mark begin_mark = device->clock().mark();
        const auto forward = replica.forward(0, {}, {.samples = {&sample, 1}}, {}, result, requested_s);
        const auto backward = replica.backward(0, comm::now_s());
        replica.reduce();
        replica.read_clock();
        double free = device->clock().at(begin_mark);
        for (const auto& [marks, min_s] : {std::pair{forward, kTask}, std::pair{backward, 2 * kTask}}) {
            const train::TaskTimes times = replica.measured(marks, free);
            MAESTRO_CHECK(times.end_s - times.start_s >= min_s, "{} s of {}", times.end_s - times.start_s,
                          min_s);
            MAESTRO_CHECK(times.wait_s >= 0 && times.start_s - times.wait_s >= free - kRounding,
                          "waits {} s before {}, the task before ended at {}", times.wait_s, times.start_s,
                          free);
            sum += times.end_s - times.start_s;
            free = times.end_s;
        }
        replica.update({}, step, 1);
        replica.await_weights();
        MAESTRO_CHECK(sum <= comm::now_s() - begin_s, "{} s of tasks in {}", sum, comm::now_s() - begin_s);
    }
    const train::SectionTimes& times = replica.times();
    const double elapsed_s = comm::now_s() - begin_s;
    MAESTRO_CHECK(times.compute >= 4 * 3 * kTask && times.reducing > 0, "{} and {}", times.compute,
                  times.reducing);
    MAESTRO_CHECK(times.compute + times.sending + times.reducing + times.waiting <= elapsed_s,
                  "{} + {} + {} + {} in {}", times.compute, times.sending, times.reducing, times.waiting,
                  elapsed_s);
}

}  // namespace

int main(int argc, char** argv) {
    return maestro::test::run(argc, argv, [](const maestro::comm::Communicator& world) {
        marks_enclose_the_work(world);
        unread_marks_are_rejected(world);
        task_times_are_the_devices(world);
    });
}
