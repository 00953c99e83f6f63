#include "schedule/execution/stage_lists.hpp"

namespace maestro::schedule {

StageLists::StageLists(const Machine& machine) : machine_(machine) {
    const Instance& instance = machine.instance();
    int slots = 0;
    for (int s = 0; s < static_cast<int>(instance.stages.size()); ++s) {
        first_stage_.push_back(instance.first_of_section(s) ? s : first_stage_.back());
        fixed_.push_back(instance.shape(s).chunks > 1 && instance.of_loss(s) ? 1 : 0);
        slots_.push_back(slots);
        slots += instance.shape(s).groups;
    }
    order_.resize(slots);
    done_.resize(slots);
    lines_.resize(slots);
}

void StageLists::begin() {
    for (auto& order : order_) order.clear();
    done_.assign(done_.size(), 0);
    place_.resize(machine_.nodes().size());
    const Instance& instance = machine_.instance();
    for (int s = 0; s < static_cast<int>(instance.stages.size()); ++s) {
        const StageShape& shape = instance.shape(s);
        const int rank = s - first_stage_[s];
        if (shape.chunks == 1 || rank >= shape.lane_stride) continue;
        for (int r = 0; r < shape.groups; ++r) {
            Line& line = lines_[slot(s, r)];
            line.next = 0;
            const int count = machine_.first_node(s, r + 1) - machine_.first_node(s, r);
            // A search executes the same numbers of micro-batches again and again.
            if (line.count == count) continue;
            line.count = count;
            line.tasks = interleaved_tasks(shape.lane_stride, shape.chunks, rank, count, true);
            line.turns.resize(static_cast<std::size_t>(shape.chunks) * count);
            int turn = 0;
            for (const ChunkTask& task : line.tasks)
                if (task.phase == Phase::backward)
                    line.turns[static_cast<std::size_t>(task.chunk) * count + task.micro_batch] = turn++;
            if (!fixed(s))
                std::erase_if(line.tasks, [](const ChunkTask& t) { return t.phase == Phase::backward; });
        }
    }
}

void StageLists::started(const Node& n, Phase phase) {
    if (phase == Phase::forward) {
        const std::size_t at = slot(n.stage, n.group);
        if (first_stage_[n.stage] == n.stage) {
            place_[machine_.in_stage(n, n.stage)] = static_cast<int>(order_[at].size());
            order_[at].push_back(n.index);
        }
        ++done_[at];
    }
    const StageShape& shape = machine_.instance().shape(n.stage);
    if (shape.chunks == 1 || (phase == Phase::backward && !fixed(n.stage))) return;
    Line& line = lines_[line_of(n.stage, n.group)];
    // The machine runs the backward of a closed micro-batch as one with its forward. It is the next of the
    // list.
    line.next += phase == Phase::forward && n.closed ? 2 : 1;
    const int rank_stage = first_stage_[n.stage] + (n.stage - first_stage_[n.stage]) % shape.lane_stride;
    for (; line.next < line.tasks.size(); ++line.next) {
        const ChunkTask& task = line.tasks[line.next];
        if (task.phase == Phase::forward) return;
        const int stage = rank_stage + task.chunk * shape.lane_stride;
        if (machine_.node(node_of(stage, n.group, task.micro_batch)).has_backward) return;
    }
}

bool StageLists::in_turn(int stage, int group) const {
    if (machine_.instance().shape(stage).chunks == 1) return true;
    const Line& line = lines_[line_of(stage, group)];
    return line.next < line.tasks.size() && line.tasks[line.next].phase == Phase::forward &&
           line.tasks[line.next].chunk == chunk_of(stage);
}

int StageLists::next_backward(int stage, int group) const {
    const Line& line = lines_[line_of(stage, group)];
    if (line.next == line.tasks.size()) return -1;
    const ChunkTask& task = line.tasks[line.next];
    const bool mine = task.phase == Phase::backward && task.chunk == chunk_of(stage);
    return mine ? node_of(stage, group, task.micro_batch) : -1;
}

int StageLists::backward_turn(const Node& n) const {
    if (machine_.instance().shape(n.stage).chunks == 1) return place(n);
    const Line& line = lines_[line_of(n.stage, n.group)];
    return line.turns[static_cast<std::size_t>(chunk_of(n.stage)) * line.count + place(n)];
}

}  // namespace maestro::schedule
