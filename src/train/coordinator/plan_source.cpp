#include "train/coordinator/plan_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/log.hpp"
#include "comm/environment.hpp"

namespace maestro::train {

PlanSource::~PlanSource() {
    wait_for_problem();
    end_thread();
}

/// The search of an unwanted plan ends within a move.
void PlanSource::end_thread() {
    if (!thread_.joinable()) return;
    unwanted_.request_stop();
    if (ended_.wait_for(patience_) == std::future_status::ready)
        thread_.join();
    else
        thread_.detach();
}

/// Until the problem is made, the planner's thread calls problem_of_, which uses objects of the caller.
void PlanSource::wait_for_problem() {
    if (problem_made_.valid()) problem_made_.wait();
}

void PlanSource::prepare(std::int64_t step) {
    if (next_.valid() && next_step_ == step) return;
    wait_for_problem();
    end_thread();
    next_step_ = step;
    unwanted_ = std::stop_source();
    std::promise<void> problem_made, ended;
    std::promise<TimedPlan> made;
    problem_made_ = problem_made.get_future();
    ended_ = ended.get_future();
    next_ = made.get_future();
    // Not std::async, whose future waits in its destructor until the thread has ended.
    thread_ = std::thread([this, step, policy = policy_, unwanted = unwanted_.get_token(),
                           problem_made = std::move(problem_made), made = std::move(made),
                           ended = std::move(ended)]() mutable {
        const double start = comm::now_s();
        schedule::Problem problem;
        std::exception_ptr error;
        try {
            problem = problem_of_(step);
        } catch (...) {
            error = std::current_exception();
        }
        problem_made.set_value();  // from here on `this` may be gone
        try {
            if (error) std::rethrow_exception(error);
            TimedPlan timed{.plan = policy(problem, step, unwanted), .planning_s = 0};
            timed.planning_s = comm::now_s() - start;
            made.set_value(std::move(timed));
        } catch (...) {
            made.set_exception(std::current_exception());
        }
        ended.set_value();
    });
}

TimedPlan PlanSource::take(std::int64_t step, const Wait& wait) {
    prepare(step);
    const auto made = [&] { return next_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; };
    wait(made, [&] {
        return fmt::format(
            "the plan of step {}, which the planner is still making (schedule.policy and "
            "schedule.moves decide how long it takes)",
            step);
    });
    return next_.get();
}

void PlanTotals::add(const TimedPlan& timed, double waited_s) {
    const schedule::StepPlan& plan = timed.plan;
    ++steps_;
    planning_s_ += timed.planning_s;
    waited_s_ += waited_s;
    planned_s_ += plan.makespan_s;
    bound_s_ += plan.lower_bound_s;
    load_s_.resize(plan.load_s.size());
    for (std::size_t s = 0; s < load_s_.size(); ++s) load_s_[s] += plan.load_s[s];
    ++critical_[plan.critical_stage];
    if (plan.window_limited && ++window_limited_ == 1)
        log::info(
            "step {}: a window is too small for its micro-batches, which are made smaller or run as under "
            "lpt; a larger window of the upstream section makes such steps faster",
            plan.step);
}

std::vector<std::string> PlanTotals::describe(const std::vector<std::string>& names) const {
    if (steps_ == 0) return {};
    const auto steps = static_cast<double>(steps_);
    std::vector<std::string> lines{
        fmt::format("planning: rank 0 took {:.2f} ms to plan a step, beside the step before; steps waited "
                    "{:.3f} ms for their plans (means of {} steps)",
                    1e3 * planning_s_ / steps, 1e3 * waited_s_ / steps, steps_)};
    if (window_limited_ > 0)
        lines.push_back(fmt::format("a window was too small for the micro-batches of {} of {} steps",
                                    window_limited_, steps_));
    if (bound_s_ <= 0) return lines;
    std::string critical, shares;
    for (const auto& [stage, count] : critical_)
        critical += fmt::format("{}{} in {:.0f}% of the steps", critical.empty() ? "" : ", ", names[stage],
                                100 * static_cast<double>(count) / steps);
    for (std::size_t s = 0; s < load_s_.size(); ++s)
        shares += fmt::format("{}{} {:.0f}%", s == 0 ? "" : ", ", names[s], 100 * load_s_[s] / bound_s_);
    lines.push_back(fmt::format(
        "schedule, as the cost model predicts it: the tasks of a step take {:.2f}% longer than the "
        "lower bound, which no schedule beats",
        100 * std::max(planned_s_ / bound_s_ - 1, 0.0)));
    lines.push_back(
        fmt::format("  share of that bound in which a rank of each section computes: {}", shares));
    lines.push_back(fmt::format("  section that bounds the time of a step (the critical one): {}", critical));
    return lines;
}

}  // namespace maestro::train
