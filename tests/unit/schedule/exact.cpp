#include "unit/schedule/exact.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace maestro::schedule_test {

namespace {

using schedule::EdgeShape;
using schedule::Problem;
using schedule::StageShape;
using schedule::TaskCost;

constexpr double kNot = -1;
constexpr double kUnreachable = std::numeric_limits<double>::infinity();

class Search {
public:
    Search(const Problem& problem, double start_s, std::int64_t most_nodes)
        : p_(problem), best_(start_s), nodes_left_(most_nodes) {
        for (const auto& s : p_.stages) sub_problems_ = std::gcd(sub_problems_, s.groups);
        const auto stages = p_.stages.size(), samples = p_.samples.size();
        forward_end_.assign(stages * samples, kNot);
        backward_end_ = forward_end_;
        sub_problem_.assign(samples, -1);
        group_.assign(static_cast<std::size_t>(p_.sections()) * samples, -1);
        free_.assign(static_cast<std::size_t>(p_.lanes), 0.0);
        left_.assign(stages, 0.0);
        for (std::size_t s = 0; s < stages; ++s)
            for (const auto& sample : p_.samples) left_[s] += work(sample.stages[s], s);
    }

    Exact run() {
        branch(0, 0);
        return {best_, nodes_left_ > 0};
    }

private:
    struct Move {
        int sample, stage, group, lane, sub_problem;
        bool backward;
        double start, duration;
    };
    std::size_t at(int stage, int sample) const {
        return static_cast<std::size_t>(stage) * p_.samples.size() + static_cast<std::size_t>(sample);
    }
    const StageShape& shape(int stage) const { return p_.stages[static_cast<std::size_t>(stage)]; }
    const TaskCost& cost(int stage, int sample) const {
        return p_.samples[static_cast<std::size_t>(sample)].stages[static_cast<std::size_t>(stage)];
    }
    double work(const TaskCost& c, std::size_t stage) const {
        return c.active ? c.forward_s + (p_.stages[stage].backward ? c.backward_s : 0) : 0;
    }
    int samples() const { return static_cast<int>(p_.samples.size()); }
    int stages() const { return static_cast<int>(p_.stages.size()); }

    /// When the task could start for its inputs, or kNot.
    double ready(int stage, int sample, bool backward) const {
        double time = backward ? forward_end_[at(stage, sample)] : 0;
        if (time == kNot) return kNot;
        for (const EdgeShape& e : p_.edges) {
            const int other = backward ? e.to : e.from;
            if ((backward ? e.from : e.to) != stage || !cost(other, sample).active) continue;
            if (backward && !e.gradient) continue;
            const double end = backward ? backward_end_[at(other, sample)] : forward_end_[at(other, sample)];
            if (end == kNot) return kNot;
            time = std::max(time, end);
        }
        return time;
    }

    /// When the group's window has room for another forward, or kNot if that is not known yet.
    double room(int stage, int group) const {
        const int window = shape(stage).window;
        if (window == 0) return 0;
        int started = 0;
        std::vector<double> left;
        for (int i = 0; i < samples(); ++i) {
            if (group_[at(shape(stage).section, i)] != group || forward_end_[at(stage, i)] == kNot) continue;
            ++started;
            if (const double end = leaves(stage, i); end != kNot) left.push_back(end);
        }
        const int waits_for = started - window;  // the place in the order of leaving, from 0
        if (waits_for < 0) return 0;
        if (waits_for >= static_cast<int>(left.size())) return kNot;
        std::sort(left.begin(), left.end());
        return left[static_cast<std::size_t>(waits_for)];
    }
    double leaves(int stage, int sample) const {
        if (shape(stage).backward) return backward_end_[at(stage, sample)];
        double last = forward_end_[at(stage, sample)];
        for (const EdgeShape& e : p_.edges) {
            if (e.from != stage || !cost(e.to, sample).active) continue;
            const double end = forward_end_[at(e.to, sample)];
            if (end == kNot) return kNot;
            last = std::max(last, end);
        }
        return last;
    }

    /// When the lanes of a group are free: those of all stages of its section. Groups that are alike in
    /// that, and have no sample in flight, are alike in all.
    std::vector<double> state(int stage, int group) const {
        std::vector<double> free;
        for (const StageShape& other : p_.stages)
            if (other.section == shape(stage).section)
                free.push_back(free_[static_cast<std::size_t>(other.lane(group))]);
        for (int i = 0; i < samples(); ++i)
            if (group_[at(shape(stage).section, i)] == group && shape(stage).pipelined())
                free.push_back(1 + i);
        return free;
    }

    void moves(std::vector<Move>& list) const {
        for (int i = 0; i < samples(); ++i)
            for (int s = 0; s < stages(); ++s) {
                const TaskCost& c = cost(s, i);
                if (!c.active) continue;
                const bool backward = forward_end_[at(s, i)] != kNot;
                if (backward && (shape(s).loss || !shape(s).backward || backward_end_[at(s, i)] != kNot))
                    continue;
                const double inputs = ready(s, i, backward);
                if (inputs == kNot) continue;
                const double duration = shape(s).loss ? work(c, static_cast<std::size_t>(s))
                                                      : (backward ? c.backward_s : c.forward_s);
                const int per_sub_problem = shape(s).groups / sub_problems_;
                for (int g = 0; g < sub_problems_; ++g) {
                    const int assigned = sub_problem_[static_cast<std::size_t>(i)];
                    if (assigned >= 0 && assigned != g) continue;
                    std::vector<std::vector<double>> seen;
                    for (int k = 0; k < per_sub_problem; ++k) {
                        const int r = g * per_sub_problem + k, known = group_[at(shape(s).section, i)];
                        if (known >= 0 && known != r) continue;
                        std::vector<double> mine = state(s, r);
                        if (std::find(seen.begin(), seen.end(), mine) != seen.end()) continue;
                        seen.push_back(std::move(mine));
                        const double open = backward ? 0 : room(s, r);
                        if (open == kNot) continue;
                        const int lane = shape(s).lane(r);
                        const double start = std::max({free_[static_cast<std::size_t>(lane)], inputs, open});
                        list.push_back({i, s, r, lane, g, backward, start, duration});
                    }
                    if (assigned < 0 && untouched(g)) break;  // all untouched sub-problems are equivalent
                }
            }
    }
    bool untouched(int g) const {
        for (const auto& s : p_.stages)
            for (int r = 0; r < s.groups / sub_problems_; ++r)
                if (free_[static_cast<std::size_t>(s.lane(g * (s.groups / sub_problems_) + r))] > 0)
                    return false;
        return std::find(sub_problem_.begin(), sub_problem_.end(), g) == sub_problem_.end();
    }

    double bound() const {
        double bound = 0;
        for (int s = 0; s < stages(); ++s) {
            double sum = left_[static_cast<std::size_t>(s)];
            for (int r = 0; r < shape(s).groups; ++r)
                sum += free_[static_cast<std::size_t>(shape(s).lane(r))];
            bound = std::max(bound, sum / shape(s).groups);
        }
        std::vector<double> forward(p_.stages.size()), backward(forward);
        std::vector<double> after(p_.stages.size(),
                                  kUnreachable);  // the least that follows what a stage has left
        for (int i = 0; i < samples(); ++i) {
            // No path has more edges than there are stages.
            forward.assign(p_.stages.size(), 0.0);
            backward = forward;
            for (int pass = 0; pass < stages(); ++pass)
                for (int s = 0; s < stages(); ++s)
                    forward[static_cast<std::size_t>(s)] = forward_at(s, i, forward);
            for (int pass = 0; pass < stages(); ++pass)
                for (int s = 0; s < stages(); ++s)
                    backward[static_cast<std::size_t>(s)] = backward_at(s, i, forward, backward);
            bound = std::max(bound, *std::max_element(backward.begin(), backward.end()));
            for (int s = 0; s < stages(); ++s) {
                if (!cost(s, i).active || !shape(s).backward || backward_end_[at(s, i)] != kNot) continue;
                after[static_cast<std::size_t>(s)] = std::min(after[static_cast<std::size_t>(s)], rest(s, i));
            }
        }
        for (int s = 0; s < stages(); ++s) {
            const auto k = static_cast<std::size_t>(s);
            if (shape(s).groups == 1 && after[k] < kUnreachable)
                bound =
                    std::max(bound, free_[static_cast<std::size_t>(shape(s).lane(0))] + left_[k] + after[k]);
        }
        return bound;
    }
    /// The end of a forward (of both tasks in a stage with a loss) at the earliest, given those upstream.
    double forward_at(int s, int sample, const std::vector<double>& forward) const {
        if (!cost(s, sample).active) return 0;
        if (const double done = forward_end_[at(s, sample)]; done != kNot)
            return shape(s).loss ? backward_end_[at(s, sample)] : done;
        double begin = 0;
        for (const EdgeShape& e : p_.edges)
            if (e.to == s) begin = std::max(begin, forward[static_cast<std::size_t>(e.from)]);
        return begin + (shape(s).loss ? work(cost(s, sample), static_cast<std::size_t>(s))
                                      : cost(s, sample).forward_s);
    }
    double backward_at(int s, int sample, const std::vector<double>& forward,
                       const std::vector<double>& backward) const {
        if (!cost(s, sample).active) return 0;
        const double end = forward[static_cast<std::size_t>(s)];
        if (shape(s).loss || !shape(s).backward) return end;
        if (const double done = backward_end_[at(s, sample)]; done != kNot) return done;
        double begin = end;
        for (const EdgeShape& e : p_.edges)
            if (e.from == s && e.gradient && cost(e.to, sample).active)
                begin = std::max(begin, backward[static_cast<std::size_t>(e.to)]);
        return begin + cost(s, sample).backward_s;
    }
    /// Seconds of the backwards that follow that of a stage.
    double rest(int s, int sample) const {
        double longest = 0;
        for (const EdgeShape& e : p_.edges)
            if (e.to == s && e.gradient && cost(e.from, sample).active)
                longest = std::max(longest, cost(e.from, sample).backward_s + rest(e.from, sample));
        return longest;
    }

    void branch(double last_start, double makespan) {
        if (--nodes_left_ <= 0) return;
        std::vector<Move> list;
        moves(list);
        if (list.empty()) {
            // With windows a branch may end where nothing can start.
            if (std::all_of(left_.begin(), left_.end(), [](double s) { return s < 1e-9; }))
                best_ = std::min(best_, makespan);
            return;
        }
        if (std::max(makespan, bound()) >= best_ * (1 - 1e-9)) return;
        double first_end = kUnreachable;
        // A task that could have ended before the next one starts is moved there and delays nothing, except
        // for a forward that takes another one's place in a window.
        for (const Move& m : list)
            if (m.backward || shape(m.stage).loss || shape(m.stage).window == 0)
                first_end = std::min(first_end, m.start + m.duration);
        std::sort(list.begin(), list.end(), [](const Move& a, const Move& b) {
            return a.start != b.start ? a.start < b.start : a.duration > b.duration;
        });
        for (const Move& m : list) {
            if (m.start < last_start || m.start >= first_end) continue;
            const auto lane = static_cast<std::size_t>(m.lane), i = static_cast<std::size_t>(m.sample);
            const double free = free_[lane], end = m.start + m.duration;
            const int sub_problem = sub_problem_[i];
            int& group = group_[at(shape(m.stage).section, m.sample)];
            const int before = group;
            const bool loss = shape(m.stage).loss;
            free_[lane] = end;
            sub_problem_[i] = m.sub_problem;
            group = m.group;
            (m.backward ? backward_end_ : forward_end_)[at(m.stage, m.sample)] = end;
            if (loss) backward_end_[at(m.stage, m.sample)] = end;
            left_[static_cast<std::size_t>(m.stage)] -= m.duration;
            branch(m.start, std::max(makespan, end));
            left_[static_cast<std::size_t>(m.stage)] += m.duration;
            if (loss) backward_end_[at(m.stage, m.sample)] = kNot;
            (m.backward ? backward_end_ : forward_end_)[at(m.stage, m.sample)] = kNot;
            sub_problem_[i] = sub_problem;
            group = before;
            free_[lane] = free;
        }
    }

    const Problem& p_;
    double best_;
    std::int64_t nodes_left_;
    int sub_problems_ = 0;
    std::vector<double> forward_end_, backward_end_;  ///< [stage, sample], kNot: not done
    std::vector<int> sub_problem_;                    ///< [sample], -1: open
    std::vector<int> group_;                          ///< [section, sample], -1: open
    std::vector<double> free_;                        ///< [lane]
    std::vector<double> left_;                        ///< [stage], seconds of work
};

}  // namespace

Exact shortest(const Problem& problem, double start_s, std::int64_t most_nodes) {
    return Search(problem, start_s, most_nodes).run();
}

}  // namespace maestro::schedule_test
