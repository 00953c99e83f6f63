#include "train/plan_source.hpp"

#include "comm/environment.hpp"

namespace maestro::train {

void PlanSource::prepare(std::int64_t step) {
    if (next_.valid() && next_step_ == step) return;
    next_step_ = step;
    next_ = std::async(std::launch::async, [this, step] {
        const double start = comm::now_s();
        TimedPlan timed{.plan = make_(step), .planning_s = 0};
        timed.planning_s = comm::now_s() - start;
        return timed;
    });
}

TimedPlan PlanSource::take(std::int64_t step) {
    prepare(step);
    return next_.get();
}

}  // namespace maestro::train
