#include "schedule/problem/lane_bounds.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace maestro::schedule {

namespace {

/// The heads and tails of all tasks of some stages.
struct Ends {
    std::vector<double> heads, tails;
    void add(const SamplePaths& paths, std::size_t stage) {
        for (std::size_t i = 0; i < paths.problem().samples.size(); ++i) {
            if (!paths.problem().samples[i].stages[stage].active) continue;
            heads.push_back(paths.head(i, stage));
            tails.push_back(paths.tail(i, stage));
        }
    }
    double idle_s(int machines) const { return idle_at_end(heads, machines) + idle_at_end(tails, machines); }
};

}  // namespace

double idle_at_end(std::vector<double> ends, int machines) {
    const auto count = std::min<std::size_t>(ends.size(), machines);
    if (count < ends.size()) std::nth_element(ends.begin(), ends.begin() + count, ends.end());
    ends.resize(count);
    std::sort(ends.begin(), ends.end());
    return std::accumulate(ends.begin(), ends.end(), 0.0);
}

double lane_bound(const SamplePaths& paths, const std::vector<double>& loads) {
    const Problem& problem = paths.problem();
    double bound = 0;
    std::vector<char> here(problem.lanes);
    for (const StageShape& shape : problem.stages) {
        here.assign(here.size(), 0);
        for (int r = 0; r < shape.groups; ++r) here[shape.lane(r)] = 1;
        std::vector<std::size_t> within;  // stages that run on these lanes alone
        for (std::size_t s = 0; s < problem.stages.size(); ++s) {
            const StageShape& other = problem.stages[s];
            int r = 0;
            while (r < other.groups && here[other.lane(r)]) ++r;
            if (r == other.groups) within.push_back(s);
        }
        std::vector<double> lane_s(problem.lanes, 0.0);
        Ends ends;
        for (const std::size_t s : within) {
            for (int r = 0; r < problem.stages[s].groups; ++r) lane_s[problem.stages[s].lane(r)] += loads[s];
            // A stage that has its lanes to itself has a sharper bound (stage_bound()).
            if (within.size() > 1) ends.add(paths, s);
        }
        double sum = 0;
        for (int r = 0; r < shape.groups; ++r) sum += lane_s[shape.lane(r)];
        bound = std::max(bound, (sum + ends.idle_s(shape.groups)) / shape.groups);
    }
    return bound;
}

double window_bound(const SamplePaths& paths) {
    const Problem& problem = paths.problem();
    const std::vector<double> in_flight = paths.in_flight();
    double bound = 0;
    for (std::size_t s = 0; s < problem.stages.size(); ++s) {
        const StageShape& shape = problem.stages[s];
        if (shape.window == 0) continue;
        Ends ends;
        ends.add(paths, s);
        // A group without a micro-batch waits for nothing.
        const double idle_s =
            ends.heads.size() < static_cast<std::size_t>(shape.groups) ? 0 : ends.idle_s(shape.groups);
        bound = std::max(bound, (in_flight[s] / shape.window + idle_s) / shape.groups);
    }
    return bound;
}

}  // namespace maestro::schedule
