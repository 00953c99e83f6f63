#include "unit/schedule/exact.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace maestro::schedule_test {

namespace {

using schedule::EdgeShape;
using schedule::Problem;
using schedule::TaskCost;

constexpr double kNot = -1;

class Search {
public:
    Search(const Problem& problem, double start_s, std::int64_t most_nodes)
        : p_(problem), best_(start_s), nodes_left_(most_nodes) {
        for (const auto& s : p_.stages) groups_ = std::gcd(groups_, s.replicas);
        const auto sections = p_.stages.size(), samples = p_.samples.size();
        forward_end_.assign(sections * samples, kNot);
        backward_end_ = forward_end_;
        group_.assign(samples, -1);
        free_.assign(static_cast<std::size_t>(p_.lanes), 0.0);
        left_.assign(sections, 0.0);
        for (std::size_t s = 0; s < sections; ++s)
            for (const auto& sample : p_.samples) left_[s] += work(sample.stages[s], s);
    }

    Exact run() {
        branch(0, 0);
        return {best_, nodes_left_ > 0};
    }

private:
    struct Move {
        int sample, stage, lane, group;
        bool backward;
        double start, duration;
    };
    std::size_t at(int section, int sample) const {
        return static_cast<std::size_t>(section) * p_.samples.size() + static_cast<std::size_t>(sample);
    }
    const TaskCost& cost(int section, int sample) const {
        return p_.samples[static_cast<std::size_t>(sample)].stages[static_cast<std::size_t>(section)];
    }
    double work(const TaskCost& c, std::size_t section) const {
        return c.active ? c.forward_s + (p_.stages[section].backward ? c.backward_s : 0) : 0;
    }

    /// When the task could start for its inputs, or kNot.
    double ready(int section, int sample, bool backward) const {
        double time = backward ? forward_end_[at(section, sample)] : 0;
        if (time == kNot) return kNot;
        for (const EdgeShape& e : p_.edges) {
            const int other = backward ? e.to : e.from;
            if ((backward ? e.from : e.to) != section || !cost(other, sample).active) continue;
            if (backward && !e.gradient) continue;
            const double end = backward ? backward_end_[at(other, sample)] : forward_end_[at(other, sample)];
            if (end == kNot) return kNot;
            time = std::max(time, end);
        }
        return time;
    }

    void moves(std::vector<Move>& list) const {
        for (int i = 0; i < static_cast<int>(p_.samples.size()); ++i)
            for (int s = 0; s < static_cast<int>(p_.stages.size()); ++s) {
                const auto& shape = p_.stages[static_cast<std::size_t>(s)];
                const TaskCost& c = cost(s, i);
                if (!c.active) continue;
                const bool backward = forward_end_[at(s, i)] != kNot;
                if (backward && (shape.loss || !shape.backward || backward_end_[at(s, i)] != kNot)) continue;
                const double inputs = ready(s, i, backward);
                if (inputs == kNot) continue;
                const double duration = shape.loss ? work(c, static_cast<std::size_t>(s))
                                                   : (backward ? c.backward_s : c.forward_s);
                const int per_group = shape.replicas / groups_;
                for (int g = 0; g < groups_; ++g) {
                    const int assigned = group_[static_cast<std::size_t>(i)];
                    if (assigned >= 0 && assigned != g) continue;
                    std::vector<double> seen;  // lanes of a group are alike but for when they are free
                    for (int r = 0; r < per_group; ++r) {
                        const int lane = shape.first_lane + g * per_group + r;
                        const double start = std::max(free_[static_cast<std::size_t>(lane)], inputs);
                        if (std::find(seen.begin(), seen.end(), free_[static_cast<std::size_t>(lane)]) !=
                            seen.end())
                            continue;
                        seen.push_back(free_[static_cast<std::size_t>(lane)]);
                        list.push_back({i, s, lane, g, backward, start, duration});
                    }
                    if (assigned < 0 && untouched(g)) break;  // all untouched groups are equivalent
                }
            }
    }
    bool untouched(int g) const {
        for (const auto& shape : p_.stages)
            for (int r = 0; r < shape.replicas / groups_; ++r)
                if (free_[static_cast<std::size_t>(shape.first_lane + g * (shape.replicas / groups_) + r)] >
                    0)
                    return false;
        return std::find(group_.begin(), group_.end(), g) == group_.end();
    }

    double bound() const {
        double bound = 0;
        for (std::size_t s = 0; s < p_.stages.size(); ++s) {
            double sum = left_[s];
            for (int r = 0; r < p_.stages[s].replicas; ++r)
                sum += free_[static_cast<std::size_t>(p_.stages[s].first_lane + r)];
            bound = std::max(bound, sum / p_.stages[s].replicas);
        }
        for (int i = 0; i < static_cast<int>(p_.samples.size()); ++i) {
            std::vector<double> forward(p_.stages.size(), 0.0);
            double down = 0, tail = 0;
            for (std::size_t pass = 0; pass < p_.stages.size(); ++pass)
                for (int s = 0; s < static_cast<int>(p_.stages.size()); ++s) {
                    if (!cost(s, i).active) continue;
                    double begin = 0;
                    for (const EdgeShape& e : p_.edges)
                        if (e.to == s) begin = std::max(begin, forward[static_cast<std::size_t>(e.from)]);
                    const double done = forward_end_[at(s, i)];
                    const auto& shape = p_.stages[static_cast<std::size_t>(s)];
                    const double duration =
                        shape.loss ? work(cost(s, i), static_cast<std::size_t>(s)) : cost(s, i).forward_s;
                    const double end = shape.loss && done != kNot ? backward_end_[at(s, i)]
                                                                  : (done != kNot ? done : begin + duration);
                    forward[static_cast<std::size_t>(s)] = end;
                    if (shape.loss) down = std::max(down, end);
                }
            for (const EdgeShape& e : p_.edges)
                if (e.gradient && cost(e.from, i).active && backward_end_[at(e.from, i)] == kNot)
                    tail = std::max(tail, cost(e.from, i).backward_s);
            bound = std::max(bound, down + tail);
        }
        return bound;
    }

    void branch(double last_start, double makespan) {
        if (--nodes_left_ <= 0) return;
        std::vector<Move> list;
        moves(list);
        if (list.empty()) {
            best_ = std::min(best_, makespan);
            return;
        }
        if (std::max(makespan, bound()) >= best_ * (1 - 1e-9)) return;
        double first_end = std::numeric_limits<double>::infinity();
        for (const Move& m : list) first_end = std::min(first_end, m.start + m.duration);
        std::sort(list.begin(), list.end(), [](const Move& a, const Move& b) {
            return a.start != b.start ? a.start < b.start : a.duration > b.duration;
        });
        for (const Move& m : list) {
            if (m.start < last_start || m.start >= first_end) continue;
            const auto lane = static_cast<std::size_t>(m.lane), i = static_cast<std::size_t>(m.sample);
            const double free = free_[lane], end = m.start + m.duration;
            const int group = group_[i];
            const bool loss = p_.stages[static_cast<std::size_t>(m.stage)].loss;
            free_[lane] = end;
            group_[i] = m.group;
            (m.backward ? backward_end_ : forward_end_)[at(m.stage, m.sample)] = end;
            if (loss) backward_end_[at(m.stage, m.sample)] = end;
            left_[static_cast<std::size_t>(m.stage)] -= m.duration;
            branch(m.start, std::max(makespan, end));
            left_[static_cast<std::size_t>(m.stage)] += m.duration;
            if (loss) backward_end_[at(m.stage, m.sample)] = kNot;
            (m.backward ? backward_end_ : forward_end_)[at(m.stage, m.sample)] = kNot;
            group_[i] = group;
            free_[lane] = free;
        }
    }

    const Problem& p_;
    double best_;
    std::int64_t nodes_left_;
    int groups_ = 0;
    std::vector<double> forward_end_, backward_end_;  ///< [section, sample], kNot: not done
    std::vector<int> group_;                          ///< [sample], -1: open
    std::vector<double> free_;                        ///< [lane]
    std::vector<double> left_;                        ///< [section], seconds of work
};

}  // namespace

Exact shortest(const Problem& problem, double start_s, std::int64_t most_nodes) {
    return Search(problem, start_s, most_nodes).run();
}

}  // namespace maestro::schedule_test
