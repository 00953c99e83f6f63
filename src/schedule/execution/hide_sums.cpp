#include "schedule/execution/hide_sums.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "schedule/execution/choosers.hpp"

namespace maestro::schedule {

namespace {

using Agendas = std::vector<std::vector<Choice>>;  ///< [lane]

Agendas agendas_of(const Machine& machine, const std::vector<Executed>& executed) {
    Agendas agendas(static_cast<std::size_t>(machine.instance().lanes));
    for (const Executed& e : executed) agendas[machine.node(e.node).lane].push_back({e.node, e.phase});
    return agendas;
}

/// The end of a step by one execution, sums and gathers included.
struct End {
    double latest_s = 0;           ///< of all lanes
    std::vector<double> lane_s;    ///< by lane of the anchor's groups: with what it leaves of sum and gather
    std::vector<int> first, last;  ///< nodes, by group of the anchor
};

class HideSums {
public:
    HideSums(Machine& machine, const std::vector<Batches>& batches, std::vector<Executed> executed)
        : machine_(machine),
          batches_(batches),
          anchor_(machine.instance().anchor),
          shape_(machine.instance().shape(anchor_)),
          executed_(std::move(executed)),
          agendas_(agendas_of(machine, executed_)),
          end_(end_of(executed_)) {}

    std::vector<Executed> run() {
        // The group that ends last comes first: the step ends with it.
        std::vector<int> groups(static_cast<std::size_t>(shape_.groups));
        for (std::size_t r = 0; r < groups.size(); ++r) groups[r] = static_cast<int>(r);
        std::stable_sort(groups.begin(), groups.end(),
                         [&](int a, int b) { return end_.lane_s[a] > end_.lane_s[b]; });
        for (const int group : groups) {
            if (!alone(shape_.lane(group))) continue;
            for (const bool last : {true, false})
                for (const int node : candidates(group, last))
                    if (try_change(group, node, last, Change::exchange) ||
                        try_change(group, node, last, Change::move))
                        break;
        }
        return std::move(executed_);
    }

private:
    /// Whether the lane runs backwards of the anchor right after their forwards, and nothing else.
    bool alone(int lane) const {
        const std::vector<Choice>& agenda = agendas_[lane];
        for (std::size_t i = 0; i < agenda.size(); ++i)
            if (machine_.node(agenda[i].node).stage != anchor_ ||
                agenda[i].phase != (i % 2 == 0 ? Phase::forward : Phase::backward))
                return false;
        return agenda.size() > 2;
    }

    End end_of(const std::vector<Executed>& executed) const {
        const auto groups = static_cast<std::size_t>(shape_.groups);
        End end{.latest_s = 0,
                .lane_s = std::vector<double>(groups, 0.0),
                .first = std::vector<int>(groups, -1),
                .last = std::vector<int>(groups, -1)};
        std::vector<double> waits(groups, 0.0);
        for (const Executed& e : executed) {
            end.latest_s = std::max(end.latest_s, e.end_s);
            const Node& n = machine_.node(e.node);
            if (n.stage != anchor_) continue;
            if (e.phase == Phase::forward && end.first[n.group] < 0) {
                end.first[n.group] = e.node;
                waits[n.group] = std::max(0.0, shape_.gather_s - e.end_s);
            } else if (e.phase == Phase::backward) {
                end.last[n.group] = e.node;
                end.lane_s[n.group] = std::max(e.end_s, e.start_s + shape_.sum_s);
            }
        }
        for (std::size_t r = 0; r < groups; ++r) end.lane_s[r] += waits[r];
        for (const double lane_s : end.lane_s) end.latest_s = std::max(end.latest_s, lane_s);
        return end;
    }

    /// Micro-batches that hide more in this place than the present one: the shortest that hides all of it,
    /// the longest, and the longest that does not stand at the other end. First those without work upstream,
    /// for which nothing has to be there earlier.
    std::vector<int> candidates(int group, bool last) const {
        const auto seconds = [&](int node) {
            return last ? machine_.node(node).backward_s : machine_.node(node).forward_s;
        };
        const double hidden_s = last ? shape_.sum_s : shape_.gather_s;
        const int present = last ? end_.last[group] : end_.first[group];
        const int other_end = last ? end_.first[group] : end_.last[group];
        std::vector<int> nodes;
        if (seconds(present) >= hidden_s) return nodes;
        for (const bool upstream : {false, true}) {
            if (!last && upstream) continue;  // it cannot begin before its input is there
            int enough = -1, longest = -1, longest_within = -1;
            const int begin = machine_.first_node(anchor_, group),
                      end = machine_.first_node(anchor_, group + 1);
            for (int node = begin; node < end; ++node) {
                if (seconds(node) <= seconds(present)) continue;
                if (machine_.upstream(machine_.node(node)).empty() == upstream) continue;
                if (seconds(node) >= hidden_s && (enough < 0 || seconds(node) < seconds(enough)))
                    enough = node;
                if (longest < 0 || seconds(node) > seconds(longest)) longest = node;
                if (node != other_end && (longest_within < 0 || seconds(node) > seconds(longest_within)))
                    longest_within = node;
            }
            for (const int node : {enough, longest, longest_within})
                if (node >= 0 && std::find(nodes.begin(), nodes.end(), node) == nodes.end())
                    nodes.push_back(node);
        }
        return nodes;
    }

    enum class Change { exchange, move };
    /// Exchanges a micro-batch with the last one of its lane, or with the first, or moves it there, and keeps
    /// that if the step ends no later and the lane earlier.
    bool try_change(int group, int node, bool last, Change change) {
        Agendas agendas = agendas_;
        std::vector<Choice>& agenda = agendas[shape_.lane(group)];
        const auto at =
            std::find_if(agenda.begin(), agenda.end(), [&](const Choice& c) { return c.node == node; });
        const auto place = last ? agenda.end() - 2 : agenda.begin();
        if (change == Change::exchange)
            std::swap_ranges(at, at + 2, place);
        else if (last)
            std::rotate(at, at + 2, agenda.end());
        else
            std::rotate(agenda.begin(), at, at + 2);
        machine_.build(batches_);
        FixedOrder chooser(machine_, agendas);
        std::vector<Executed> executed;
        if (machine_.run(chooser, &executed) == std::numeric_limits<double>::infinity()) return false;
        End end = end_of(executed);
        if (end.latest_s > end_.latest_s || end.lane_s[group] >= end_.lane_s[group]) return false;
        agendas_ = std::move(agendas);
        executed_ = std::move(executed);
        end_ = std::move(end);
        return true;
    }

    Machine& machine_;
    const std::vector<Batches>& batches_;
    int anchor_;
    const StageShape& shape_;
    std::vector<Executed> executed_;
    Agendas agendas_;
    End end_;
};

}  // namespace

std::vector<Executed> hide_sums(Machine& machine, const std::vector<Batches>& batches,
                                std::vector<Executed> executed) {
    const StageShape& shape = machine.instance().shape(machine.instance().anchor);
    if (shape.sum_s == 0 || !shape.loss || shape.pipelined()) return executed;
    return HideSums(machine, batches, std::move(executed)).run();
}

}  // namespace maestro::schedule
