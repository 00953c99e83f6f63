#include "schedule/problem/sample_paths.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace maestro::schedule {

namespace {

/// Returns the edges, those that enter a stage before those that leave it, so that one pass over them finds
/// the longest paths.
std::vector<EdgeShape> downwards(const Problem& problem) {
    std::vector<int> depth(problem.stages.size(), 0);
    // No path has more edges than there are stages (Bellman and Ford).
    for (std::size_t pass = 0; pass < depth.size(); ++pass)
        for (const EdgeShape& e : problem.edges) depth[e.to] = std::max(depth[e.to], depth[e.from] + 1);
    std::vector<EdgeShape> edges = problem.edges;
    std::stable_sort(edges.begin(), edges.end(),
                     [&](const EdgeShape& a, const EdgeShape& b) { return depth[a.from] < depth[b.from]; });
    return edges;
}

std::vector<TaskCost> besides_of(const Problem& problem) {
    std::vector<TaskCost> besides;
    for (std::size_t s = 0; s < problem.stages.size(); ++s) {
        const StageShape& shape = problem.stages[s];
        TaskCost least{.forward_s = shape.lacking_forward_s, .backward_s = shape.lacking_backward_s};
        for (const SampleCost& sample : problem.samples) {
            if (!sample.stages[s].active) continue;
            least.forward_s = std::min(least.forward_s, sample.stages[s].forward_s);
            least.backward_s = std::min(least.backward_s, sample.stages[s].backward_s);
        }
        const int others = shape.micro_batch / shape.parts - 1;
        besides.push_back({.forward_s = others * least.forward_s,
                           .backward_s = shape.backward ? others * least.backward_s : 0});
    }
    return besides;
}

}  // namespace

bool returns(const Problem& problem, const SampleCost& sample, const EdgeShape& e) {
    return e.gradient && problem.runs_backward(sample, e.from) && problem.runs_backward(sample, e.to);
}

double total(const Problem& problem, const SampleCost& sample, std::size_t stage) {
    const TaskCost& cost = sample.stages[stage];
    if (!cost.active) return 0;
    return cost.forward_s + (problem.stages[stage].backward ? cost.backward_s : 0);
}

SamplePaths::SamplePaths(const Problem& problem)
    : problem_(problem),
      stages_(problem.stages.size()),
      edges_(downwards(problem)),
      besides_(besides_of(problem)),
      head_(problem.samples.size() * stages_, 0.0),
      tail_(head_) {
    double *head = head_.data(), *tail = tail_.data();
    for (const SampleCost& sample : problem.samples) {
        for (const EdgeShape& e : edges_) {
            const TaskCost& up = sample.stages[e.from];
            if (!up.active) continue;
            const double arrival =
                head[e.from] + up.forward_s + besides_[e.from].forward_s + e.delay_s(up.transfer_s);
            head[e.to] = std::max(head[e.to], arrival);
        }
        // From the sources to the losses: what follows a backward is the path upstream of it.
        for (const EdgeShape& e : edges_) {
            const TaskCost& up = sample.stages[e.from];
            if (!returns(problem, sample, e)) continue;
            const double rest =
                tail[e.from] + up.backward_s + besides_[e.from].backward_s + e.delay_s(up.transfer_s);
            tail[e.to] = std::max(tail[e.to], rest);
        }
        head += stages_;
        tail += stages_;
    }
}

double SamplePaths::inner_head(std::size_t sample, std::size_t from, std::size_t to) const {
    const SampleCost& cost = problem_.samples[sample];
    double sum = 0;
    for (std::size_t s = from; s < to; ++s) sum += cost.stages[s].forward_s;
    return sum;
}

std::optional<double> SamplePaths::inner_tail(std::size_t sample, std::size_t from, std::size_t to) const {
    const SampleCost& cost = problem_.samples[sample];
    double sum = 0;
    for (std::size_t s = from; s <= to; ++s) {
        if (!problem_.runs_backward(cost, s)) return std::nullopt;
        if (s < to) sum += cost.stages[s].backward_s;
    }
    return sum;
}

std::vector<double> SamplePaths::work_on_fullest_lane(std::size_t stage) const {
    const int section = problem_.stages[stage].section;
    std::map<int, std::vector<double>> lanes;  // of the first group
    for (std::size_t s = stage; s < stages_; ++s) {
        if (problem_.stages[s].section != section) continue;
        std::vector<double>& work = lanes[problem_.stages[s].first_lane];
        work.resize(problem_.samples.size(), 0.0);
        for (std::size_t i = 0; i < work.size(); ++i) work[i] += total(problem_, problem_.samples[i], s);
    }
    const auto sum = [](const auto& lane) {
        return std::accumulate(lane.second.begin(), lane.second.end(), 0.0);
    };
    return std::max_element(lanes.begin(), lanes.end(),
                            [&](const auto& a, const auto& b) { return sum(a) < sum(b); })
        ->second;
}

/// Within a section the tasks of a micro-batch take at least the sum of its samples' times divided by the
/// parts of a lane, so that every sample adds its share of that. Another section may have other
/// micro-batches: there the micro-batch waits for each of its samples, hence also for their mean, of which a
/// sample is at least the part 1 / micro_batch; and it waits for the work of all of its samples, which the
/// groups that this one serves have to do.
std::vector<double> SamplePaths::in_flight() const {
    const std::vector<double> of_chains = in_flight({}), of_work = in_flight(downstream_work());
    std::vector<double> longer(stages_);
    for (std::size_t s = 0; s < stages_; ++s) longer[s] = std::max(of_chains[s], of_work[s]);
    return longer;
}

std::vector<std::vector<double>> SamplePaths::downstream_work() const {
    std::vector<std::vector<double>> work(edges_.size());
    std::vector<double> most(stages_, 0.0);
    for (std::size_t e = 0; e < edges_.size(); ++e) {
        const StageShape &up = problem_.stages[edges_[e].from], &down = problem_.stages[edges_[e].to];
        if (up.section == down.section || !edges_[e].gradient) continue;
        std::vector<double> seconds = work_on_fullest_lane(static_cast<std::size_t>(edges_[e].to));
        const int machines = std::max(1, down.groups / up.groups) * down.parts;
        for (double& of_sample : seconds) of_sample /= machines;
        const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
        if (sum <= most[edges_[e].from]) continue;
        most[edges_[e].from] = sum;
        for (std::size_t other = 0; other < e; ++other)
            if (edges_[other].from == edges_[e].from) work[other].clear();
        work[e] = std::move(seconds);
    }
    return work;
}

std::vector<double> SamplePaths::in_flight(const std::vector<std::vector<double>>& work) const {
    std::vector<double> sum(stages_, 0.0);
    // Of a sample by itself, and what it adds to its micro-batch: from the end of the forward to the start of
    // the backward.
    std::vector<double> alone(stages_), added(stages_);
    for (std::size_t i = 0; i < problem_.samples.size(); ++i) {
        const SampleCost& sample = problem_.samples[i];
        alone.assign(stages_, 0.0);
        added.assign(stages_, 0.0);
        const auto own_s = [&](std::size_t s) {
            return sample.stages[s].forward_s +
                   (problem_.runs_backward(sample, s) ? sample.stages[s].backward_s : 0);
        };
        const auto share_s = [&](std::size_t s, double seconds) {
            return seconds / problem_.stages[s].parts;
        };
        // From the losses to the sources: what follows a stage is known before it.
        for (std::size_t e = edges_.size(); e-- > 0;) {
            const EdgeShape& edge = edges_[e];
            const std::size_t from = edge.from, to = edge.to;
            const StageShape& shape = problem_.stages[from];
            if (!sample.stages[from].active || !sample.stages[to].active) continue;
            const bool inner = problem_.stages[to].section == shape.section,
                       back = returns(problem_, sample, edge);
            // Without a backward the window counts to the end of the forward that follows.
            if (!back && shape.backward) continue;
            const int trips = back ? 2 : 1;
            const double transfer_s = edge.colocated ? 0 : trips * sample.stages[from].transfer_s;
            const double latency_s = edge.colocated ? 0 : trips * edge.latency_s;
            const double forward_s = sample.stages[to].forward_s;
            alone[from] =
                std::max(alone[from], transfer_s + latency_s + (back ? own_s(to) + alone[to] : forward_s));
            const double part_s = latency_s / shape.micro_batch + transfer_s +
                                  (back ? share_s(to, own_s(to)) + added[to] : share_s(to, forward_s));
            if (inner)
                added[from] = std::max(added[from], part_s);
            else if (work.empty())
                added[from] = std::max(added[from], alone[from] / shape.micro_batch);
            else if (back && !work[e].empty())
                added[from] = latency_s / shape.micro_batch + work[e][i];
        }
        for (std::size_t s = 0; s < stages_; ++s)
            if (sample.stages[s].active) sum[s] += share_s(s, own_s(s)) + added[s];
    }
    return sum;
}

}  // namespace maestro::schedule
