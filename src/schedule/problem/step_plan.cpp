#include "schedule/problem/step_plan.hpp"

#include <bit>

#include "base/check.hpp"

namespace maestro::schedule {

namespace {

/// Reads words one after another. A count larger than the words that are left is an error, before memory for
/// so many items is allocated.
class Reader {
public:
    explicit Reader(std::span<const std::int64_t> words) : words_(words) {}
    std::int64_t word() {
        MAESTRO_CHECK(at_ < words_.size(), "a plan of {} words ends too early", words_.size());
        return words_[at_++];
    }
    std::size_t count() {
        const std::int64_t n = word();
        MAESTRO_CHECK(n >= 0 && static_cast<std::size_t>(n) <= words_.size() - at_,
                      "a plan promises {} items in {} words", n, words_.size() - at_);
        return static_cast<std::size_t>(n);
    }
    bool at_end() const { return at_ == words_.size(); }

private:
    std::span<const std::int64_t> words_;
    std::size_t at_ = 0;
};

}  // namespace

std::span<const std::int64_t> MicroBatch::of_part(int part) const {
    if (part_ends.empty()) return samples;
    const int first = part == 0 ? 0 : part_ends[part - 1];
    return std::span(samples).subspan(first, part_ends[part] - first);
}

std::vector<std::int64_t> encode(const StepPlan& plan) {
    // Doubles travel as their bits: every rank decodes the same plan bit for bit, and one broadcast of one
    // type carries it.
    std::vector<std::int64_t> words{plan.step, std::bit_cast<std::int64_t>(plan.makespan_s),
                                    std::bit_cast<std::int64_t>(plan.lower_bound_s), plan.critical_stage,
                                    plan.window_limited};
    const auto count = [&](const auto& list) { words.push_back(static_cast<std::int64_t>(list.size())); };
    count(plan.load_s);
    for (const double load : plan.load_s) words.push_back(std::bit_cast<std::int64_t>(load));
    count(plan.batches);
    for (const auto& section : plan.batches) {
        count(section);
        for (const auto& group : section) {
            count(group);
            for (const auto& batch : group) {
                count(batch.samples);
                words.insert(words.end(), batch.samples.begin(), batch.samples.end());
                count(batch.part_ends);
                words.insert(words.end(), batch.part_ends.begin(), batch.part_ends.end());
            }
        }
    }
    count(plan.agendas);
    for (const auto& agenda : plan.agendas) {
        count(agenda);
        for (const Task& t : agenda)
            words.insert(words.end(),
                         {t.stage, t.micro_batch, static_cast<int>(t.phase),
                          std::bit_cast<std::int64_t>(t.takes_s), std::bit_cast<std::int64_t>(t.float_s)});
    }
    return words;
}

StepPlan decode(std::span<const std::int64_t> words) {
    Reader in(words);
    StepPlan plan;
    plan.step = in.word();
    plan.makespan_s = std::bit_cast<double>(in.word());
    plan.lower_bound_s = std::bit_cast<double>(in.word());
    plan.critical_stage = static_cast<int>(in.word());
    plan.window_limited = in.word() != 0;
    plan.load_s.resize(in.count());
    for (double& load : plan.load_s) load = std::bit_cast<double>(in.word());
    plan.batches.resize(in.count());
    for (auto& section : plan.batches) {
        section.resize(in.count());
        for (auto& group : section) {
            group.resize(in.count());
            for (auto& batch : group) {
                batch.samples.resize(in.count());
                for (auto& sample : batch.samples) sample = in.word();
                batch.part_ends.resize(in.count());
                std::int64_t before = 0;
                const auto samples = static_cast<std::int64_t>(batch.samples.size());
                for (int& end : batch.part_ends) {
                    const std::int64_t next = in.word();
                    MAESTRO_CHECK(before <= next && next <= samples, "a part of {} samples ends at {}",
                                  samples, next);
                    before = next;
                    end = static_cast<int>(next);
                }
                MAESTRO_CHECK(batch.part_ends.empty() || before == samples,
                              "the parts of a micro-batch have {} of {} samples", before, samples);
            }
        }
    }
    plan.agendas.resize(in.count());
    for (auto& agenda : plan.agendas) {
        agenda.resize(in.count());
        for (Task& t : agenda) {
            const std::int64_t stage = in.word(), batch = in.word(), phase = in.word();
            const double takes = std::bit_cast<double>(in.word()), wait = std::bit_cast<double>(in.word());
            // Comparisons with NaN are false, so NaN is refused too. A float may be infinite.
            MAESTRO_CHECK(stage >= 0 && static_cast<std::size_t>(stage) < plan.load_s.size() && batch >= 0 &&
                              (phase == 0 || phase == 1) && takes >= 0 && wait >= 0,
                          "a plan names stage {}, micro-batch {}, phase {}, {} s, float {} s", stage, batch,
                          phase, takes, wait);
            t = {static_cast<int>(stage), static_cast<int>(batch), static_cast<Phase>(phase), takes, wait};
        }
    }
    MAESTRO_CHECK(in.at_end(), "a plan of {} words goes on after its end", words.size());
    return plan;
}

}  // namespace maestro::schedule
