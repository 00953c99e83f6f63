#include "schedule/policies/policies.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "schedule/execution/simulate.hpp"
#include "schedule/policies/baselines.hpp"
#include "schedule/policies/components.hpp"
#include "schedule/policies/wavefront.hpp"
#include "schedule/problem/bounds.hpp"
#include "unit/schedule/exact.hpp"
#include "unit/schedule/expect_plan.hpp"
#include "unit/schedule/plan_check.hpp"
#include "unit/schedule/problems.hpp"
#include "unit/schedule/rules.hpp"

namespace maestro::schedule {
namespace {

using schedule_test::check_plan;
using schedule_test::random_problem;
using schedule_test::two_lanes;

TEST(Rules, SeeWhatAnExecutionBreaks) {
    const Problem problem = two_lanes(7, 0.9, 1.0);
    const StepPlan plan = plan_wavefront(problem, 1);
    const auto seen = [&](const Problem& checked, Timeline timeline) {
        return schedule_test::broken_rules(checked, plan, timeline, Dispatch::planned);
    };
    const Timeline good = simulate(problem, plan);
    ASSERT_THAT(seen(problem, good), testing::IsEmpty());
    Problem other = problem;
    other.edges.clear();
    EXPECT_THAT(seen(problem, simulate(other, plan)),
                testing::Contains(testing::HasSubstr("before its input")));
    other = problem;
    other.edges.front().latency_s = 0.1;
    EXPECT_THAT(seen(other, good), testing::Contains(testing::HasSubstr("before its gradient")));
    other = problem;
    other.stages[0].window = 2;
    EXPECT_THAT(seen(other, good), testing::Contains(testing::HasSubstr("in flight, window 2")));
    EXPECT_THAT(seen(with_noise(problem, 0.2, 1), good),
                testing::Contains(testing::HasSubstr("takes other than its samples")));
    Timeline wrong = good;
    wrong.tasks.pop_back();
    EXPECT_THAT(seen(problem, wrong), testing::Contains(testing::HasSubstr(": 0 backwards")));
    wrong = good;
    bool earlier = false;  // the second half of the language lane's micro-batches
    for (TimedTask& t : wrong.tasks) {
        earlier =
            earlier || (t.lane == 1 && t.task.phase == Phase::forward && t.start_s > good.makespan_s / 2);
        if (t.lane != 1 || !earlier) continue;
        t.start_s -= 0.05;
        t.end_s -= 0.05;
    }
    EXPECT_THAT(seen(problem, wrong), testing::Contains(testing::HasSubstr("runs two tasks")));
}

TEST(Policies, KeepTheRulesOnRandomProblems) {
    for (std::uint64_t seed = 0; seed < 4000; ++seed) {
        const Problem problem = schedule_test::any_problem(seed);
        for (const char* policy : {"wavefront", "fifo", "lpt"}) {
            SCOPED_TRACE(fmt::format("{}, seed {}", policy, seed));
            const StepPlan plan = make_plan(policy, problem, 7, {.moves = 20});
            schedule_test::expect_rules_as_planned(problem, plan);
            if (HasFatalFailure()) return;
        }
    }
}

/// Sections that neither edges nor lanes join are planned as if there were no others.
TEST(Policies, PlanSideBySideWhatCannotWaitForEachOther) {
    int compared = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        const Problem one = schedule_test::random_problem(seed),
                      other = schedule_test::random_problem(seed + 1000),
                      both = schedule_test::side_by_side(one, other);
        for (const char* policy : {"wavefront", "fifo", "lpt"}) {
            SCOPED_TRACE(fmt::format("{}, seed {}", policy, seed));
            const StepPlan plan = make_plan(policy, both, 7, {.moves = 20}),
                           first = make_plan(policy, one, 7, {.moves = 20}),
                           second = make_plan(policy, other, 7, {.moves = 20});
            ASSERT_EQ(plan.makespan_s, std::max(first.makespan_s, second.makespan_s));
            ASSERT_EQ(plan.lower_bound_s, lower_bound(both));
            ASSERT_EQ(plan.window_limited, first.window_limited || second.window_limited);
            schedule_test::expect_rules_as_planned(both, plan);
            schedule_test::expect_rules_when_ready(both, plan, seed);
            ASSERT_THAT(schedule_test::wrong_floats(both, plan, compared), testing::IsEmpty());
            if (HasFatalFailure()) return;
        }
    }
    EXPECT_GT(compared, 300);
}

/// Micro-batches that are not full take time for what they lack: three samples of four, of which each group
/// has as many, and an encoder's single sample of four before them.
TEST(Policies, KnowWhatMicroBatchesLack) {
    Problem problem{.stages = {{.section = 0,
                                .groups = 2,
                                .first_lane = 2,
                                .micro_batch = 4,
                                .window = 0,
                                .lacking_forward_s = 0.25,
                                .lacking_backward_s = 0.5},
                               {.section = 1,
                                .groups = 2,
                                .first_lane = 0,
                                .micro_batch = 4,
                                .window = 0,
                                .lacking_forward_s = 0.5,
                                .lacking_backward_s = 0.5,
                                .loss = true}},
                    .edges = {},
                    .lanes = 4,
                    .samples = {}};
    for (int i = 0; i < 6; ++i)
        problem.samples.push_back(
            {.id = i, .stages = {{}, {.forward_s = 1, .backward_s = 2, .active = true}}});
    EXPECT_DOUBLE_EQ(lower_bound(problem), 3 * 3 + 1);
    for (const char* policy : {"wavefront", "fifo", "lpt"})
        EXPECT_DOUBLE_EQ(make_plan(policy, problem, 1).makespan_s, 3 * 3 + 1) << policy;
    // Two samples of each group wait for an encoder of which each has one more.
    problem.edges = {{.from = 0, .to = 1, .gradient = true}};
    for (SampleCost& sample : problem.samples)
        sample.stages[0] = {.forward_s = 0.25, .backward_s = 0.5, .active = true};
    const double encoder_s = 4 * 0.25 + 4 * 0.5;  // a full task of either kind, however many samples it has
    EXPECT_DOUBLE_EQ(lower_bound(problem), encoder_s + 3 * 3 + 1);
}

/// Where tasks take much time whatever their samples are, a simple order may have fewer of them.
TEST(Policies, WavefrontIsNoLongerThanSimpleOrders) {
    int shorter = 0, compared = 0;
    for (std::uint64_t seed = 0; seed < 600; seed += 3) {  // those that lack samples
        const Problem problem = schedule_test::any_problem(seed);
        if (problem.zero_is_none) continue;
        const double simple_s =
            std::min(make_plan("lpt", problem, 1).makespan_s, make_plan("fifo", problem, 1).makespan_s);
        ASSERT_LE(make_plan("wavefront", problem, 1, {.moves = 20}).makespan_s, simple_s) << seed;
        shorter += plan_wavefront(problem, 1, {.moves = 20}).makespan_s > simple_s ? 1 : 0;
        ++compared;
    }
    EXPECT_GT(compared, 100);
    EXPECT_GT(shorter, 0) << "the simple orders are never needed";
}

TEST(Policies, JoinWhatSharesALane) {
    const auto section = [](int number, int first_lane, bool loss) {
        return StageShape{.section = number, .groups = 2, .first_lane = first_lane, .loss = loss};
    };
    Problem problem{.stages = {section(0, 0, true), section(1, 4, true), section(2, 1, true),
                               section(3, 6, false), section(4, 8, true)},
                    .edges = {},
                    .lanes = 10,
                    .samples = {}};
    // Lane 1 is of two sections. The fourth section, without a loss, cannot be planned alone.
    EXPECT_EQ(components_of(problem), (std::vector<int>{0, 1, 0, 0, 2}));
    problem.edges = {{.from = 3, .to = 4}};
    EXPECT_EQ(components_of(problem), (std::vector<int>{0, 1, 0, 2, 2}));
}

TEST(Policies, KeepTheRulesWhereRanksStartWhatIsReady) {
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
        const Problem problem = schedule_test::any_problem(seed);
        for (const char* policy : {"wavefront", "fifo", "lpt"}) {
            SCOPED_TRACE(fmt::format("{}, seed {}", policy, seed));
            const StepPlan plan = make_plan(policy, problem, 7, {.moves = 20});
            schedule_test::expect_rules_when_ready(problem, plan, seed);
            if (HasFatalFailure()) return;
        }
    }
}

/// As random_problem, but small, of single samples and without windows: what the exact solver takes. With
/// fan-in, sections upstream have twice the groups of the last one.
Problem tiny_problem(std::uint64_t seed, bool fan_in = false) {
    Problem problem = random_problem(seed);
    int lane = 0;
    const int most = seed % 2 == 0 ? 1 : 2;
    const int last = std::min(problem.stages.back().groups, 2);
    for (auto& s : problem.stages) {
        s.groups = s.loss ? last : fan_in ? 2 * last : std::min({s.groups, last, most});
        s.micro_batch = 1;
        s.window = 0;
        s.first_lane = lane;
        lane += s.groups;
    }
    problem.lanes = lane;
    problem.samples.resize(std::min<std::size_t>(problem.samples.size(), 4));
    return problem;
}

/// Expects plans of tiny problems to be within 0.5% of the shortest on average, and none to be longer than
/// `longest` times that.
void expect_shortest(bool fan_in, double longest) {
    double ours = 0, best = 0;
    int proven = 0;
    for (std::uint64_t seed = 0; seed < 150; ++seed) {
        const Problem problem = tiny_problem(seed, fan_in);
        const StepPlan plan = plan_wavefront(problem, 1);
        const auto exact = schedule_test::shortest(problem, plan.makespan_s * (1 + 1e-9), 300'000);
        if (!exact.proven) continue;
        ++proven;
        ASSERT_GE(exact.makespan_s, plan.lower_bound_s * (1 - 1e-9)) << "the bound is none, seed " << seed;
        ASSERT_LE(plan.makespan_s, exact.makespan_s * longest) << "seed " << seed;
        ours += plan.makespan_s;
        best += exact.makespan_s;
    }
    EXPECT_GE(proven, 120);
    EXPECT_LE(ours / best, 1.005);
}

TEST(Wavefront, IsAsShortAsTheExactSolverFindsForTinyProblems) {
    expect_shortest(false, 1.1);
}

TEST(Wavefront, ChoosesGroupsUpstreamAsWellAsTheExactSolver) {
    expect_shortest(true, 1.15);
}

/// List scheduling: the fullest group was the least loaded one when it got its last sample.
TEST(Policies, LevelTheGroupsUpstreamOfOne) {
    int compared = 0;
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        const Problem problem = schedule_test::with_fan_in(random_problem(seed), seed);
        if (problem.sections() != 2) continue;
        const int fan_in = problem.stages[0].groups / problem.stages[1].groups;
        const StepPlan plan = make_plan("lpt", problem, 1);
        double longest = 0;
        for (const SampleCost& sample : problem.samples)
            longest = std::max(longest, sample.stages[0].forward_s + sample.stages[0].backward_s);
        std::vector<double> load(plan.batches[0].size(), 0.0);
        for (std::size_t r = 0; r < load.size(); ++r)
            for (const MicroBatch& batch : plan.batches[0][r])
                for (const std::int64_t id : batch.samples)
                    for (const SampleCost& sample : problem.samples)
                        if (sample.id == id)
                            load[r] += sample.stages[0].forward_s +
                                       (problem.stages[0].backward ? sample.stages[0].backward_s : 0);
        for (auto first = load.begin(); fan_in > 1 && first != load.end(); first += fan_in, ++compared) {
            const auto [least, most] = std::minmax_element(first, first + fan_in);
            ASSERT_LE(*most - *least, longest * (1 + 1e-9)) << "seed " << seed;
        }
    }
    EXPECT_GT(compared, 20);
}

/// Sections need not have their lanes in the order of their numbers: with those of the problem in reverse,
/// the same lanes have the same lists, and are executed in the same time.
TEST(Policies, DoNotDependOnTheOrderOfTheSectionsLanes) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        const Problem problem = random_problem(seed);
        if (problem.stages.front().first_lane == problem.stages.back().first_lane) continue;  // colocated
        Problem moved = problem;
        for (StageShape& s : moved.stages) s.first_lane = problem.lanes - s.first_lane - s.groups;
        for (const char* policy : {"wavefront", "fifo", "lpt"}) {
            const StepPlan plan = make_plan(policy, problem, 1), other = make_plan(policy, moved, 1);
            ASSERT_EQ(other.batches, plan.batches) << policy << ", seed " << seed;
            for (std::size_t s = 0; s < problem.stages.size(); ++s)
                for (int r = 0; r < problem.stages[s].groups; ++r)
                    ASSERT_EQ(other.agendas[moved.stages[s].lane(r)], plan.agendas[problem.stages[s].lane(r)])
                        << policy << ", seed " << seed;
            for (const Dispatch dispatch : {Dispatch::planned, Dispatch::ready})
                ASSERT_EQ(simulate(moved, other, dispatch).makespan_s,
                          simulate(problem, plan, dispatch).makespan_s)
                    << policy << ", seed " << seed;
        }
    }
}

TEST(Policies, SeeWhatBreaksTheRules) {
    const Problem problem = random_problem(3);
    const StepPlan good = plan_wavefront(problem, 1);
    StepPlan missing = good;
    missing.batches.back().front().front().samples.pop_back();
    EXPECT_THAT(check_plan(problem, missing), testing::Not(testing::IsEmpty()));
    StepPlan backwards = good;
    for (auto& agenda : backwards.agendas) std::reverse(agenda.begin(), agenda.end());
    EXPECT_THAT(check_plan(problem, backwards), testing::Not(testing::IsEmpty()));
    StepPlan twice = good;
    twice.agendas.back().push_back(twice.agendas.back().front());
    EXPECT_THAT(check_plan(problem, twice), testing::Not(testing::IsEmpty()));
}

TEST(Policies, PlanForMoreGroupsThanTheSquareRootOfAnInt) {
    constexpr int kGroups = 60'000;
    Problem problem{.stages = {{.groups = 2, .first_lane = 0, .window = 0},
                               {.section = 1, .groups = kGroups, .first_lane = 2, .window = 0, .loss = true}},
                    .edges = {{0, 1, true}},
                    .lanes = kGroups + 2,
                    .samples = {}};
    for (int i = 0; i < kGroups; ++i) problem.samples.push_back({i, {{0, 0, false}, {1, 2, true}}});
    problem.samples.back().stages.front() = {1, 2, true};
    for (const char* policy : {"fifo", "lpt"}) {
        const StepPlan plan = make_plan(policy, problem, 1);
        EXPECT_THAT(check_plan(problem, plan), testing::IsEmpty()) << policy;
        EXPECT_DOUBLE_EQ(plan.makespan_s, 6) << policy;
    }
}

TEST(Policies, WavefrontHidesTheEncoder) {
    double wavefront = 0, fifo = 0;
    int count = 0;
    for (const double load : {0.5, 0.7, 0.9})
        for (const double share : {0.33, 0.5})
            for (std::uint64_t seed = 0; seed < 10; ++seed, ++count) {
                const Problem problem = two_lanes(seed, load, share);
                double language = 0;
                for (const auto& s : problem.samples)
                    language += s.stages[1].forward_s + s.stages[1].backward_s;
                wavefront += plan_wavefront(problem, 1).makespan_s / language;
                fifo += plan_fifo(problem, 1).makespan_s / language;
            }
    EXPECT_LE(wavefront / count, 1.08);
    EXPECT_GE(fifo / count, wavefront / count + 0.03);
}

/// The deck's check lets a window pass that holds one micro-batch of the section below; then there is a plan.
TEST(Wavefront, FindsAPlanWithinTheTightestWindows) {
    for (std::uint64_t seed = 0; seed < 400; ++seed) {
        Problem problem = random_problem(seed);
        const auto& last = problem.stages.back();
        const bool deep = problem.edges.size() > 1 && problem.edges.front().to != problem.edges.back().to;
        if (deep || last.first_lane == 0) continue;  // one level of upstream sections on separate lanes
        for (auto& s : problem.stages)
            if (!s.loss) s.window = (last.micro_batch + s.micro_batch - 1) / s.micro_batch;
        const StepPlan plan = plan_wavefront(problem, 1, {.moves = 5});
        ASSERT_FALSE(plan.window_limited) << "seed " << seed;
        ASSERT_THAT(check_plan(problem, plan), testing::IsEmpty()) << "seed " << seed;
    }
}

TEST(Policies, MakeSmallerMicroBatchesWhereAWindowIsTooSmall) {
    Problem problem = two_lanes(1, 0.5, 1.0);
    problem.stages[0].window = 1;  // a language micro-batch of 4 needs two of the encoder's
    for (const char* policy : {"wavefront", "fifo", "lpt"}) {
        const StepPlan plan = make_plan(policy, problem, 1);
        EXPECT_THAT(check_plan(problem, plan), testing::IsEmpty());
        EXPECT_TRUE(plan.window_limited) << policy;
        EXPECT_EQ(plan.batches[0][0].front().samples.size(), 2U) << policy;
        EXPECT_EQ(plan.batches[1][0].front().samples.size(), 2U) << policy;
    }
}

TEST(LowerBound, IsNoneWhereNothingComesBack) {
    // Times from outside: the language task has no backward, so the encoder's runs beside it: 1 + 5 s.
    const Problem problem{.stages = {{.groups = 1, .first_lane = 0, .window = 0},
                                     {.section = 1, .groups = 1, .first_lane = 1, .window = 0, .loss = true}},
                          .edges = {{0, 1, true}},
                          .lanes = 2,
                          .samples = {{.id = 0, .stages = {{1, 5, true}, {3, 0, true}}}},
                          .zero_is_none = true};
    EXPECT_DOUBLE_EQ(lower_bound(problem), 6);
    EXPECT_DOUBLE_EQ(plan_wavefront(problem, 1).makespan_s, 6);
}

TEST(Wavefront, EndsItsSearchWhereThePlanIsUnwanted) {
    std::stop_source unwanted;
    unwanted.request_stop();
    plan_wavefront(random_problem(5), 1, {.moves = std::int64_t{1} << 40}, unwanted.get_token());
}

TEST(StepPlan, RefusesWordsThatAreNoPlan) {
    const auto words = encode(plan_wavefront(random_problem(5), 1));
    for (std::size_t length = 0; length < words.size(); ++length)
        EXPECT_THROW(decode(std::span(words).first(length)), Error);
    for (std::size_t i = 5; i < words.size(); ++i) {
        auto hostile = words;
        hostile[i] = std::int64_t{1} << 60;
        try {
            decode(hostile);  // a sample id or micro-batch may be any number
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ExitCode::broken_invariant);
        }
    }
}

}  // namespace
}  // namespace maestro::schedule
