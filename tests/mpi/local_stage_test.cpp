// Replicas whose edges stay on their rank, played by hand: what can start at each moment, what a task waits
// for, what comes out, and when memory comes back. Every rank does the same; their sections are one.
#include <algorithm>
#include <cmath>

#include "mpi/local_stage_rig.hpp"
#include "mpi/mpi_main.hpp"

namespace {

using namespace maestro;
using namespace maestro::test;

/// Micro-batches of unlike sizes on the two sides of an edge, with a window of two above and one below.
void tasks_start_when_they_can(const comm::Communicator& world) {
    Rig rig(world);
    const auto between = rig.local("up-down", 2);
    const auto up = rig.replica({.name = "up", .window = 2}, {}, {between.get()});
    const auto down = rig.replica({.name = "down", .window = 1}, {between.get()}, {});
    between->begin_step(1, routes_of({{1, 2}, {3}, {4, 5}}));

    MAESTRO_CHECK(up->sends() && !down->sends(), "who sends");
    MAESTRO_CHECK(up->can_forward(Ids{1, 2}), "nothing to wait for");
    MAESTRO_CHECK(!down->can_forward(Ids{1}), "no rows yet");
    MAESTRO_CHECK(!up->can_backward(0) && !down->can_backward(0), "no forward yet");
    rig.forward(*up, 0, {1, 2});
    MAESTRO_CHECK(!up->can_backward(0), "no gradient yet");
    MAESTRO_CHECK(down->can_forward(Ids{1}) && !down->can_forward(Ids{2, 3}), "sample 3 has not arrived");
    rig.forward(*up, 1, {3});
    MAESTRO_CHECK(!up->can_forward(Ids{4, 5}), "two micro-batches are in flight");
    rig.forward(*down, 0, {1});
    MAESTRO_CHECK(!down->can_forward(Ids{2, 3}), "one micro-batch is in flight");
    MAESTRO_CHECK(down->can_backward(0) && !down->can_backward(1), "a loss waits for nobody");
    rig.backward(*down, 0);
    MAESTRO_CHECK(!down->can_backward(0), "it is done");
    MAESTRO_CHECK(!up->can_backward(0), "sample 2 has no gradient");
    rig.forward(*down, 1, {2, 3});
    rig.backward(*down, 1);
    MAESTRO_CHECK(up->can_backward(0) && up->can_backward(1), "both are answered");
    MAESTRO_CHECK(!up->can_forward(Ids{4, 5}), "but hold their slots");
    rig.backward(*up, 1);
    MAESTRO_CHECK(up->can_forward(Ids{4, 5}), "a slot came back");
    rig.backward(*up, 0);
    rig.forward(*up, 2, {4, 5});
    rig.forward(*down, 2, {5, 4});
    rig.backward(*down, 2);
    rig.backward(*up, 2);
    up->end_step();
    down->end_step();
    between->end_step();

    double loss = 0, g_up = 0, g_down = 0;
    for (const std::int64_t id : {1, 2, 3, 4, 5}) {
        const auto x = static_cast<double>(id);
        loss += x + sum_of_rows(id, x);
        g_down += 1 + x;
        g_up += g_over_edge(id, 1 + x);
    }
    MAESTRO_CHECK(rig.result.loss == loss, "loss {} of {}", rig.result.loss, loss);
    MAESTRO_CHECK(Rig::gradient(*up, 0) == g_up && Rig::gradient(*up, 1) == 15, "{} of {}",
                  Rig::gradient(*up, 0), g_up);
    MAESTRO_CHECK(Rig::gradient(*down, 0) == g_down && Rig::gradient(*down, 1) == loss, "down");
    MAESTRO_CHECK(rig.diary.saved == 0, "{} micro-batches are kept", rig.diary.saved);
    const std::vector<std::string> calls = {"up forward 1 2",   "up forward 3",      "down forward 1",
                                            "down backward 1",  "down forward 2 3",  "down backward 2 3",
                                            "up backward 3",    "up backward 1 2",   "up forward 4 5",
                                            "down forward 5 4", "down backward 5 4", "up backward 4 5"};
    MAESTRO_CHECK(rig.diary.calls == calls, "other tasks than asked for");
}

/// Slots are the replica's, credits the edge's: either may be what is missing.
void slots_and_credits_bind(const comm::Communicator& world) {
    for (const auto& [slots, credits] : {std::pair(1, 3), std::pair(3, 1)}) {
        Rig rig(world);
        const auto between = rig.local("up-down", credits);
        const auto up = rig.replica({.name = "up", .window = slots}, {}, {between.get()});
        const auto down = rig.replica({.name = "down", .window = 3}, {between.get()}, {});
        between->begin_step(1, routes_of({{1}, {2}}));
        rig.forward(*up, 0, {1});
        MAESTRO_CHECK(!up->can_forward(Ids{2}), "{} slots, {} credits", slots, credits);
        rig.forward(*down, 0, {1});
        rig.backward(*down, 0);
        MAESTRO_CHECK(!up->can_forward(Ids{2}), "{} slots, {} credits", slots, credits);
        rig.backward(*up, 0);
        MAESTRO_CHECK(up->can_forward(Ids{2}), "{} slots, {} credits", slots, credits);
        rig.forward(*up, 1, {2});
        rig.forward(*down, 1, {2});
        rig.backward(*down, 1);
        rig.backward(*up, 1);
        up->end_step();
        between->end_step();
    }
}

/// Each wait names what it waits for, in the order of the contract; one that fails changes nothing.
void waits_come_in_order(const comm::Communicator& world) {
    Rig rig(world);
    const auto top = rig.local("up-middle", 3), bottom = rig.local("middle-down", 1);
    const auto up = rig.replica({.name = "up", .window = 3}, {}, {top.get()});
    const auto middle = rig.replica({.name = "middle", .window = 3}, {top.get()}, {bottom.get()});
    const auto down = rig.replica({.name = "down", .window = 3}, {bottom.get()}, {});
    top->begin_step(1, routes_of({{1}, {2}}));
    bottom->begin_step(1, routes_of({{1}, {2}}));
    const auto lost = ExitCode::peer_lost;
    expect_error(lost, "edge up-middle, step 1: sample 1 in micro-batch 0",
                 [&] { rig.forward(*middle, 0, {1}); });
    rig.forward(*up, 0, {1});
    rig.forward(*middle, 0, {1});
    expect_error(lost, "edge up-middle, step 1: sample 2", [&] { rig.forward(*middle, 1, {2}); });
    rig.forward(*up, 1, {2});
    MAESTRO_CHECK(!middle->can_forward(Ids{2}), "no credit");
    expect_error(lost, "edge middle-down, step 1: one of 1 slots", [&] { rig.forward(*middle, 1, {2}); });
    expect_error(lost, "edge middle-down, step 1: gradients of micro-batch 0",
                 [&] { rig.backward(*middle, 0); });
    rig.forward(*down, 0, {1});
    rig.backward(*down, 0);
    rig.backward(*middle, 0);
    rig.forward(*middle, 1, {2});
    rig.forward(*down, 1, {2});
    rig.backward(*down, 1);
    rig.backward(*middle, 1);
    rig.backward(*up, 0);
    rig.backward(*up, 1);
    for (LocalStage* replica : {up.get(), middle.get(), down.get()}) replica->end_step();
    top->end_step();
    bottom->end_step();
    double g = 0;
    for (const std::int64_t id : {1, 2}) g += g_over_edge(id, g_over_edge(id, 1 + static_cast<double>(id)));
    MAESTRO_CHECK(Rig::gradient(*up, 0) == g, "{} of {}", Rig::gradient(*up, 0), g);
}

/// A section with three consumers, one of which sends nothing back and one of which does not see all samples.
void gradients_of_edges_are_added(const comm::Communicator& world) {
    Rig rig(world);
    const auto to_a = rig.local("up-a", 1), to_b = rig.local("up-b", 1), to_c = rig.local("up-c", 1, false);
    const auto up = rig.replica({.name = "up", .window = 1}, {}, {to_c.get(), to_a.get(), to_b.get()});
    const auto a = rig.replica({.name = "a"}, {to_a.get()}, {});
    const auto b = rig.replica({.name = "b"}, {to_b.get()}, {});
    const auto c = rig.replica({.name = "c", .backward = false}, {to_c.get()}, {}, {.trained = false});
    for (std::int64_t step = 1; step <= 2; ++step) {
        up->module().parameters().zero_gradients();
        to_a->begin_step(step, routes_of({{4, 5, 8}}));
        to_b->begin_step(step, routes_of({{4, 5, 8}}, {4}));
        to_c->begin_step(step, routes_of({{4, 5, 8}}));
        rig.forward(*up, 0, {4, 5, 8});
        rig.forward(*a, 0, {4, 5, 8});
        rig.forward(*b, 0, {8, 5});
        rig.backward(*b, 0);
        MAESTRO_CHECK(!up->can_backward(0), "edge up-a has no gradient");
        rig.backward(*a, 0);
        MAESTRO_CHECK(up->can_backward(0), "an edge without a gradient is not waited for");
        rig.backward(*up, 0);
        MAESTRO_CHECK(!up->can_forward(Ids{}), "section c still reads");
        rig.forward(*c, 0, {4, 5, 8});
        MAESTRO_CHECK(up->can_forward(Ids{}), "all edges have a credit");
        for (LocalStage* replica : {up.get(), a.get(), b.get(), c.get()}) replica->end_step();
        for (Channel* channel : {to_a.get(), to_b.get(), to_c.get()}) channel->end_step();
        // Of rows that nobody answers the gradient is 0: sample 4 has one from a alone.
        const double g = g_over_edge(4, 5) + 2 * g_over_edge(5, 6) + 2 * g_over_edge(8, 9);
        MAESTRO_CHECK(Rig::gradient(*up, 0) == g, "step {}: {} of {}", step, Rig::gradient(*up, 0), g);
    }
}

/// A section with two inputs, of which one does not bring every sample.
void inputs_are_told_apart(const comm::Communicator& world) {
    Rig rig(world);
    const auto from_a = rig.local("a-down", 1), from_b = rig.local("b-down", 1);
    const auto a = rig.replica({.name = "a"}, {}, {from_a.get()});
    const auto b = rig.replica({.name = "b"}, {}, {from_b.get()});
    const auto down = rig.replica({.name = "down"}, {from_a.get(), from_b.get()}, {});
    from_a->begin_step(1, routes_of({{5, 2}}));
    from_b->begin_step(1, routes_of({{1, 5}}));
    rig.forward(*a, 0, {5, 2});
    MAESTRO_CHECK(down->can_forward(Ids{2}) && !down->can_forward(Ids{2, 1, 5}), "section b is due");
    rig.forward(*b, 0, {1, 5});
    rig.forward(*down, 0, {2, 1, 5});
    MAESTRO_CHECK(rig.result.loss == 8 + sum_of_rows(5, 5) * 2 + sum_of_rows(2, 2) + sum_of_rows(1, 1), "{}",
                  rig.result.loss);
    rig.backward(*down, 0);
    rig.backward(*a, 0);
    rig.backward(*b, 0);
    const double g_a = g_over_edge(5, 6) + g_over_edge(2, 3);
    const double g_b = g_over_edge(5, 6, 1) + g_over_edge(1, 2, 1);
    MAESTRO_CHECK(Rig::gradient(*a, 0) == g_a && Rig::gradient(*b, 0) == g_b, "{} of {}, {} of {}",
                  Rig::gradient(*a, 0), g_a, Rig::gradient(*b, 0), g_b);
    for (LocalStage* replica : {a.get(), b.get(), down.get()}) replica->end_step();
    from_a->end_step();
    from_b->end_step();
}

/// Outputs of a forward-only section stay until all its consumers are done with them, and no longer.
void outputs_stay_for_their_consumers(const comm::Communicator& world) {
    Rig rig(world);
    const auto to_a = rig.local("teacher-a", 3, false), to_b = rig.local("teacher-b", 3, false);
    const auto teacher = rig.replica({.name = "teacher", .window = 2, .backward = false}, {},
                                     {to_a.get(), to_b.get()}, {.trained = false});
    const auto a = rig.replica({.name = "a", .window = 4}, {to_a.get()}, {});
    const auto b = rig.replica({.name = "b", .window = 4}, {to_b.get()}, {});
    const std::vector<Ids> batches = {{1, 2}, {4}, {5}};
    to_a->begin_step(1, routes_of(batches));
    to_b->begin_step(1, routes_of(batches));
    rig.forward(*teacher, 0, {1, 2});
    MAESTRO_CHECK(rig.diary.saved == 0, "nothing is kept for a backward");
    rig.forward(*teacher, 1, {4});
    MAESTRO_CHECK(!teacher->can_forward(Ids{5}), "both slots are read");
    rig.forward(*a, 0, {1, 2});
    rig.forward(*a, 1, {4});
    rig.forward(*b, 0, {2});
    MAESTRO_CHECK(!teacher->can_forward(Ids{5}), "b has not read samples 1 and 4");
    world.waiter().set_timeout(0.05);
    expect_error(ExitCode::peer_lost, "teacher: all consumers of one micro-batch",
                 [&] { rig.forward(*teacher, 2, {5}); });
    world.waiter().set_timeout(test::kHangS);
    rig.forward(*b, 1, {4});
    MAESTRO_CHECK(teacher->can_forward(Ids{5}), "all have read sample 4");
    rig.forward(*teacher, 2, {5});  // where sample 4 was; 1 must still be whole
    rig.forward(*b, 2, {1, 5});
    rig.forward(*a, 2, {5});
    for (int k = 0; k < 3; ++k) {
        rig.backward(*a, k);
        rig.backward(*b, k);
    }
    double loss = 0;
    for (const std::int64_t id : {1, 2, 4, 5}) {
        const auto x = static_cast<double>(id);
        loss += 2 * (x + sum_of_rows(id, x));
    }
    MAESTRO_CHECK(rig.result.loss == loss, "loss {} of {}", rig.result.loss, loss);
    for (LocalStage* replica : {teacher.get(), a.get(), b.get()}) replica->end_step();
    to_a->end_step();
    to_b->end_step();
    MAESTRO_CHECK(teacher->can_forward(Ids{}), "the end of the step frees what was left");
}

/// What is refused: more in flight than there is room for, a backward out of nowhere, an end with work left.
void what_is_in_flight_is_checked(const comm::Communicator& world) {
    Rig rig(world);
    const auto broken = ExitCode::broken_invariant;
    const auto alone = rig.replica({.name = "alone", .window = 1}, {}, {});
    expect_error(broken, "section alone: backward of micro-batch 3 before", [&] { rig.backward(*alone, 3); });
    rig.forward(*alone, 0, {1});
    expect_error(broken, "section alone: more than 1 micro-batches", [&] { rig.forward(*alone, 1, {2}); });
    expect_error(broken, "section alone: 1 micro-batches without their backward", [&] { alone->end_step(); });
    rig.backward(*alone, 0);
    alone->end_step();

    const auto evaluated = rig.replica({.name = "evaluated", .window = 1, .backward = false}, {}, {});
    for (int k = 0; k < 5; ++k) rig.forward(*evaluated, k, {k});  // each leaves its slot at once
    evaluated->end_step();
    MAESTRO_CHECK(rig.diary.saved == 0, "{} micro-batches are kept", rig.diary.saved);

    const auto between = rig.local("teacher-down", 2, false);
    const auto teacher = rig.replica({.name = "teacher", .window = 2, .backward = false}, {}, {between.get()},
                                     {.trained = false});
    between->begin_step(1, routes_of({{1}}));
    rig.forward(*teacher, 0, {1});
    expect_error(ExitCode::peer_lost, "release of micro-batch 0: sample 1", [&] { teacher->end_step(); });
    between->wait_arrived(1);
    between->release(Ids{1});
    teacher->end_step();
    between->end_step();
}

constexpr double kTask = 0.004;
void slow(const std::string&) {
    comm::sleep_until(comm::now_s() + kTask);
}

/// Waiting counts from when a task was asked for, and all of a task is counted once: the time in which it
/// waits for weights as waiting.
void times_add_up(const comm::Communicator& world) {
    Rig rig(world);
    const auto between = rig.local("up-down", 4);
    const auto up = rig.replica({.name = "up", .window = 4}, {}, {between.get()}, {.during = slow});
    const auto down = rig.replica({.name = "down", .window = 4}, {between.get()}, {});
    between->begin_step(1, routes_of({{1}, {2}}));
    const double asked = comm::now_s() - 5;
    double waited = 0, ran = 0;
    const auto add = [&](const TaskTimes& t) {
        MAESTRO_CHECK(t.end_s >= t.start_s && t.wait_s >= 0, "{} {} {}", t.start_s, t.end_s, t.wait_s);
        waited += t.wait_s + t.weights_s;
        ran += t.end_s - t.start_s - t.weights_s;
    };
    const TaskTimes first = rig.forward(*up, 0, {1}, asked);
    MAESTRO_CHECK(first.wait_s >= 5 && std::abs(first.start_s - asked - first.wait_s) < 1e-9, "{}",
                  first.wait_s);
    add(first);
    train::TaskMarks marks =
        up->forward(1, Ids{2}, Samples(Ids{2}).batch(), up->await_forward(Ids{2}), rig.result, comm::now_s());
    marks.weights = {{marks.start, marks.computed}};
    const TaskTimes second = rig.measured(*up, marks);
    MAESTRO_CHECK(first.weights_s == 0 && second.weights_s >= kTask, "{} and {} s of waiting for weights",
                  first.weights_s, second.weights_s);
    add(second);
    for (const int k : {0, 1}) {
        rig.forward(*down, k, {k + 1});
        rig.backward(*down, k);
    }
    const double asked_back = comm::now_s() - 3;
    const TaskTimes back = rig.measured(*up, up->backward(0, asked_back));
    MAESTRO_CHECK(back.wait_s >= 3 && std::abs(back.start_s - asked_back - back.wait_s) < 1e-9, "{}",
                  back.wait_s);
    add(back);
    add(rig.backward(*up, 1));
    const train::SectionTimes& times = up->times();
    MAESTRO_CHECK(std::abs(times.waiting - waited) < 1e-9, "{} of {}", times.waiting, waited);
    MAESTRO_CHECK(std::abs(times.compute + times.sending - ran) < 1e-9, "{} + {} of {}", times.compute,
                  times.sending, ran);
    MAESTRO_CHECK(times.compute >= 3 * kTask && times.sending >= 0, "{} and {}", times.compute,
                  times.sending);
    MAESTRO_CHECK(times.reducing == 0, "no gradient was summed");
    up->end_step();
    down->end_step();
    between->end_step();
}

/// Gradients are summed over the replicas of the section, here one a rank; a frozen section has none.
void gradients_are_summed(const comm::Communicator& world) {
    Rig rig(world);
    const auto trained = rig.replica({.name = "trained", .saved_bytes = 4096}, {}, {}, {.during = slow});
    const auto frozen = rig.replica({.name = "frozen", .backward = false}, {}, {}, {.trained = false});
    MAESTRO_CHECK(trained->optimizer() && !frozen->optimizer(), "optimizers");
    MAESTRO_CHECK(trained->used_bytes() + 4096 <= trained->bytes(), "no slot was in use");
    const std::int64_t id = 2 + world.rank();
    rig.forward(*trained, 0, {id});
    rig.backward(*trained, 0);
    double g = 0, x = 0;
    for (int r = 0; r < world.size(); ++r) g += 3 + r, x += 2 + r;
    const double squares = world.sum(trained->reduce());
    MAESTRO_CHECK(std::abs(squares - (g * g + x * x)) < 1e-6, "{} of {}", squares, g * g + x * x);
    MAESTRO_CHECK(frozen->reduce() == 0, "a frozen section");
    for (LocalStage* stage : {trained.get(), frozen.get()}) {
        stage->update({.learning_rate = 0.5}, 1, 1);
        stage->await_weights();
    }
    // The first step of Adam goes by the sign of the gradient.
    for (int i = 0; i < 2; ++i) {
        const float w = trained->module().parameters().groups().front().weights().as<float>()[i];
        MAESTRO_CHECK(std::abs(w + 0.5f) < 1e-4f, "weight {}", w);
        MAESTRO_CHECK(frozen->module().parameters().groups().front().weights().as<float>()[i] == 0,
                      "a frozen weight");
    }
    MAESTRO_CHECK(trained->times().reducing > 0 && frozen->times().reducing == 0, "times");
}

}  // namespace

int main(int argc, char** argv) {
    return maestro::test::run(argc, argv, [](const maestro::comm::Communicator& world) {
        tasks_start_when_they_can(world);
        slots_and_credits_bind(world);
        waits_come_in_order(world);
        gradients_of_edges_are_added(world);
        inputs_are_told_apart(world);
        outputs_stay_for_their_consumers(world);
        what_is_in_flight_is_checked(world);
        times_add_up(world);
        gradients_are_summed(world);
    });
}
