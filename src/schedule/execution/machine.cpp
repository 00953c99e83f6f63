#include "schedule/execution/machine.hpp"

#include <algorithm>
#include <numeric>

#include "base/check.hpp"

namespace maestro::schedule {

Machine::Machine(const Instance& instance) : instance_(instance) {
    const std::size_t count = instance.lanes;
    std::vector<char> loss(count, 0);
    for (const StageShape& shape : instance.stages)
        for (int r = 0; r < shape.groups; ++r)
            if (shape.loss) loss[shape.lane(r)] = 1;
    // Lanes of loss sections choose first: their choices tell the chooser which backlogs remain, and an
    // upstream lane that chooses at the same time then works for the group that needs it. Otherwise the
    // order is that of the lanes' numbers, so that it is the same in every execution.
    lanes_.resize(count);
    std::iota(lanes_.begin(), lanes_.end(), 0);
    std::stable_partition(lanes_.begin(), lanes_.end(), [&](int lane) { return loss[lane] != 0; });
    turn_.resize(count);
    for (std::size_t turn = 0; turn < count; ++turn) turn_[lanes_[turn]] = static_cast<int>(turn);
}

void Machine::build(const std::vector<Batches>& batches) {
    const Instance& instance = instance_;
    batches_ = &batches;
    const auto count = instance.stages.size();
    MAESTRO_CHECK(static_cast<int>(batches.size()) == instance.sections(),
                  "micro-batches of {} sections, {} expected", batches.size(), instance.sections());
    first_.resize(count);
    nodes_.clear();
    slots_.clear();
    tasks_ = 0;
    node_of_.assign(count * instance.samples, -1);
    std::size_t total = 0;
    for (const StageShape& shape : instance.stages) total += batches[shape.section].ends.size();
    nodes_.reserve(total);
    int slots = 0;
    // The nodes of a group are consecutive, in the order of its micro-batches: waits_for_window() and the
    // choosers find the next one by adding 1.
    for (std::size_t s = 0; s < count; ++s) {
        const StageShape& shape = instance.stages[s];
        const Batches& list = batches[shape.section];
        MAESTRO_CHECK(static_cast<int>(list.group_ends.size()) == shape.groups + 1,
                      "stage {}: micro-batches of {} replica groups", s, list.group_ends.size() - 1);
        slots_.push_back(slots);
        first_[s].clear();
        slots += shape.groups;
        int sample = 0, batch = 0;
        for (int r = 0; r < shape.groups; ++r) {
            const int lane = shape.lane(r);
            first_[s].push_back(static_cast<int>(nodes_.size()));
            for (int index = 0; batch < list.group_ends[r + 1]; ++batch, ++index) {
                Node node;
                node.stage = static_cast<int>(s);
                node.group = r;
                node.lane = lane;
                node.index = index;
                node.first_sample = list.samples[sample];
                node.samples_first = sample;
                node.samples_last = list.ends[batch];
                set_times(node, list);
                for (; sample < list.ends[batch]; ++sample)
                    node_of_[instance.at(node.stage, list.samples[sample])] = static_cast<int>(nodes_.size());
                node.has_backward = shape.backward && (node.backward_s > 0 || !instance.zero_is_none);
                tasks_ += node.has_backward ? 2 : 1;
                nodes_.push_back(node);
            }
        }
        first_[s].push_back(static_cast<int>(nodes_.size()));
    }
    in_flight_.assign(slots, 0);
    touched_.assign(instance.lanes, 0);
    busy_.assign(instance.lanes, 0);
    events_.clear();
    waiting_.clear();
    link(batches);
}

/// The parts of a lane run at the same time, and the longest of them ends the task. What they do in common
/// takes all of them as long.
void Machine::set_times(Node& node, const Batches& batches) {
    const StageShape& shape = instance_.shape(node.stage);
    if (batches.parts.empty()) {
        for (int k = node.samples_first; k < node.samples_last; ++k) {
            const std::size_t at = instance_.at(node.stage, batches.samples[k]);
            node.forward_s += instance_.forward[at];
            node.backward_s += instance_.backward[at];
        }
        const int lacking = std::max(0, shape.micro_batch - (node.samples_last - node.samples_first));
        node.forward_s += lacking * shape.lacking_forward_s;
        node.backward_s += lacking * shape.lacking_backward_s;
        return;
    }
    part_forward_s_.assign(shape.parts, 0.0);
    part_backward_s_ = part_forward_s_;
    const int most = shape.micro_batch / shape.parts;
    part_lacks_.assign(shape.parts, most);
    for (int k = node.samples_first; k < node.samples_last; ++k) {
        const std::size_t at = instance_.at(node.stage, batches.samples[k]);
        const double alone = instance_.alone(node.stage, batches.samples[k]);
        part_forward_s_[batches.parts[k]] += alone * instance_.forward[at];
        part_backward_s_[batches.parts[k]] += alone * instance_.backward[at];
        --part_lacks_[batches.parts[k]];
        const double each = instance_.common[at] / static_cast<double>(shape.parts);
        node.forward_s += each * instance_.forward[at];
        node.backward_s += each * instance_.backward[at];
    }
    double longest_forward_s = 0, longest_backward_s = 0;
    for (int part = 0; part < shape.parts; ++part) {
        if (part_lacks_[part] == most) continue;  // it has nothing to do
        const int lacking = std::max(0, part_lacks_[part]);
        longest_forward_s =
            std::max(longest_forward_s, part_forward_s_[part] + lacking * shape.lacking_forward_s);
        longest_backward_s =
            std::max(longest_backward_s, part_backward_s_[part] + lacking * shape.lacking_backward_s);
    }
    node.forward_s += longest_forward_s;
    node.backward_s += longest_backward_s;
}

void Machine::link(const std::vector<Batches>& batches) {
    std::vector<Pair>& pairs = pairs_;
    pairs.clear();
    for (const EdgeShape& e : instance_.edges) {
        // A sample that skips the section downstream has no node there, and its micro-batch does not wait for
        // it.
        const auto first = pairs.size();
        const auto gradient = [&](int up, int down) {
            return e.gradient && nodes_[up].has_backward && nodes_[down].has_backward;
        };
        for (const int sample : batches[instance_.section_of(e.from)].samples) {
            const int up = node_of(e.from, sample), down = node_of(e.to, sample);
            if (down >= 0)
                pairs.push_back({up, down, gradient(up, down),
                                 e.colocated ? 0.0 : instance_.transfer[instance_.at(e.from, sample)]});
        }
        // Two micro-batches that share several samples have one link, which transfers the outputs of all of
        // them. Where either has one sample, they share no more than that, and sorting is saved. A stable
        // sort adds up the transfers in the order of the samples, so that rounding is reproducible.
        if (instance_.shape(e.from).micro_batch > 1 && instance_.shape(e.to).micro_batch > 1) {
            const auto begin = pairs.begin() + first;
            std::stable_sort(begin, pairs.end(), [](const Pair& a, const Pair& b) {
                return a.up != b.up ? a.up < b.up : a.down < b.down;
            });
            auto last = begin;
            for (auto p = begin; p != pairs.end(); ++p)
                if (p != begin && p->up == last->up && p->down == last->down)
                    last->delay_s += p->delay_s;
                else if (p != begin)
                    *++last = *p;
            if (begin != pairs.end()) pairs.erase(last + 1, pairs.end());
        }
        // Only now, because the latency is that of a link, not of each sample.
        for (auto p = pairs.begin() + first; p != pairs.end(); ++p) p->delay_s = e.delay_s(p->delay_s);
    }
    for (const Pair& p : pairs) {
        Node &up = nodes_[p.up], &down = nodes_[p.down];
        ++up.down_last;
        ++down.up_last;
        ++down.inputs_left;
        ++up.consumers_left;
        if (p.gradient) ++up.gradients_left;
    }
    // The links of all nodes lie in one array (compressed sparse rows). The ends of each node's range have
    // counted its links; now they are set to its start and grow as links are stored. That takes linear time
    // and no memory once the array is large enough, which matters because a search builds thousands of times.
    int at = 0;
    for (Node& n : nodes_) {
        const int down = n.down_last, up = n.up_last;
        n.down_first = n.down_last = at;
        n.up_first = n.up_last = at + down;
        at += down + up;
        n.closed = instance_.shape(n.stage).loss && n.has_backward && down == 0;
    }
    links_.resize(at);
    for (const Pair& p : pairs) {
        Node &up = nodes_[p.up], &down = nodes_[p.down];
        links_[up.down_last++] = {p.down, p.gradient, p.delay_s};
        links_[down.up_last++] = {p.up, p.gradient, p.delay_s};
        // A micro-batch upstream that has no backward leaves its window at the end of this forward, so the
        // machine must not skip that event.
        down.closed = down.closed && up.has_backward;
    }
}

}  // namespace maestro::schedule
