#include "schedule/step_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "base/check.hpp"
#include "schedule/simulate.hpp"

namespace maestro::schedule {

namespace {

/// Reads words one after another; a count may not promise more than is left.
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

std::vector<std::int64_t> encode(const StepPlan& plan) {
    std::vector<std::int64_t> words{plan.step, std::bit_cast<std::int64_t>(plan.makespan_s),
                                    std::bit_cast<std::int64_t>(plan.lower_bound_s), plan.critical_section,
                                    plan.squeezed};
    const auto count = [&](const auto& list) { words.push_back(static_cast<std::int64_t>(list.size())); };
    count(plan.load_s);
    for (const double load : plan.load_s) words.push_back(std::bit_cast<std::int64_t>(load));
    count(plan.batches);
    for (const auto& section : plan.batches) {
        count(section);
        for (const auto& replica : section) {
            count(replica);
            for (const auto& batch : replica) {
                count(batch.samples);
                words.insert(words.end(), batch.samples.begin(), batch.samples.end());
            }
        }
    }
    count(plan.lanes);
    for (const auto& lane : plan.lanes) {
        count(lane);
        for (const Task& t : lane)
            words.insert(words.end(),
                         {t.section, t.micro_batch, static_cast<int>(t.phase),
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
    plan.critical_section = static_cast<int>(in.word());
    plan.squeezed = in.word() != 0;
    plan.load_s.resize(in.count());
    for (double& load : plan.load_s) load = std::bit_cast<double>(in.word());
    plan.batches.resize(in.count());
    for (auto& section : plan.batches) {
        section.resize(in.count());
        for (auto& replica : section) {
            replica.resize(in.count());
            for (auto& batch : replica) {
                batch.samples.resize(in.count());
                for (auto& sample : batch.samples) sample = in.word();
            }
        }
    }
    plan.lanes.resize(in.count());
    for (auto& lane : plan.lanes) {
        lane.resize(in.count());
        for (Task& t : lane) {
            const std::int64_t section = in.word(), batch = in.word(), phase = in.word();
            const double takes = std::bit_cast<double>(in.word()), wait = std::bit_cast<double>(in.word());
            MAESTRO_CHECK(section >= 0 && static_cast<std::size_t>(section) < plan.batches.size() &&
                              batch >= 0 && (phase == 0 || phase == 1) && takes >= 0 && wait >= 0,
                          "a plan names section {}, micro-batch {}, phase {}, {} s, float {} s", section,
                          batch, phase, takes, wait);
            t = {static_cast<int>(section), static_cast<int>(batch), static_cast<Phase>(phase), takes, wait};
        }
    }
    MAESTRO_CHECK(in.at_end(), "a plan of {} words goes on after its end", words.size());
    return plan;
}

std::vector<std::string> check_plan(const Problem& problem, const StepPlan& plan) {
    std::vector<std::string> wrong;
    std::vector<std::map<std::int64_t, int>> replica_of(problem.sections.size());
    for (std::size_t s = 0; s < problem.sections.size(); ++s) {
        if (plan.batches.size() != problem.sections.size() ||
            static_cast<int>(plan.batches[s].size()) != problem.sections[s].replicas)
            return {fmt::format("section {}: wrong number of replicas", s)};
        for (std::size_t r = 0; r < plan.batches[s].size(); ++r)
            for (const auto& batch : plan.batches[s][r]) {
                if (batch.samples.empty() ||
                    static_cast<int>(batch.samples.size()) > problem.sections[s].micro_batch)
                    wrong.push_back(
                        fmt::format("section {}: a micro-batch of {} samples", s, batch.samples.size()));
                for (const auto sample : batch.samples)
                    if (!replica_of[s].emplace(sample, static_cast<int>(r)).second)
                        wrong.push_back(fmt::format("section {}: sample {} twice", s, sample));
            }
        std::size_t active = 0;
        for (const auto& sample : problem.samples) {
            if (!sample.sections[s].active) continue;
            ++active;
            if (!replica_of[s].contains(sample.id))
                wrong.push_back(fmt::format("section {}: sample {} is missing", s, sample.id));
        }
        if (active != replica_of[s].size())
            wrong.push_back(
                fmt::format("section {}: {} samples, {} active", s, replica_of[s].size(), active));
    }
    for (const EdgeShape& e : problem.edges) {
        const int fanout = problem.sections[static_cast<std::size_t>(e.to)].replicas /
                           problem.sections[static_cast<std::size_t>(e.from)].replicas;
        for (const auto& [sample, up] : replica_of[static_cast<std::size_t>(e.from)])
            if (const auto down = replica_of[static_cast<std::size_t>(e.to)].find(sample);
                down != replica_of[static_cast<std::size_t>(e.to)].end() && down->second / fanout != up)
                wrong.push_back(fmt::format("edge {} -> {}: sample {} goes from replica {} to {}", e.from,
                                            e.to, sample, up, down->second));
    }
    std::set<std::tuple<std::size_t, int, int, int>> tasks;
    std::size_t expected = 0;
    std::map<std::int64_t, const SampleCost*> costs;
    for (const SampleCost& sample : problem.samples) costs.emplace(sample.id, &sample);
    for (std::size_t s = 0; s < problem.sections.size(); ++s) {
        const auto returns = [&](std::int64_t id) {
            const auto at = costs.find(id);
            return at != costs.end() && problem.runs_backward(*at->second, s);
        };
        for (const auto& replica : plan.batches[s])
            for (const MicroBatch& batch : replica) {
                expected += std::any_of(batch.samples.begin(), batch.samples.end(), returns) ? 2 : 1;
            }
    }
    if (static_cast<int>(plan.lanes.size()) != problem.world) return {"a lane for every rank is needed"};
    for (std::size_t rank = 0; rank < plan.lanes.size(); ++rank)
        for (const Task& t : plan.lanes[rank]) {
            const int replica =
                static_cast<int>(rank) - problem.sections[static_cast<std::size_t>(t.section)].first_rank;
            const auto& batches = plan.batches[static_cast<std::size_t>(t.section)];
            if (replica < 0 || replica >= static_cast<int>(batches.size()) ||
                t.micro_batch >= static_cast<int>(batches[static_cast<std::size_t>(replica)].size())) {
                wrong.push_back(
                    fmt::format("rank {}: no micro-batch {} of section {}", rank, t.micro_batch, t.section));
                return wrong;
            }
            if (!tasks.insert({rank, t.section, t.micro_batch, static_cast<int>(t.phase)}).second)
                wrong.push_back(
                    fmt::format("rank {}: section {}, micro-batch {} twice", rank, t.section, t.micro_batch));
        }
    if (tasks.size() != expected)
        wrong.push_back(fmt::format("{} tasks, {} expected", tasks.size(), expected));
    if (wrong.empty() && simulate(problem, plan).stuck) wrong.push_back("the lanes wait for each other");
    return wrong;
}

}  // namespace maestro::schedule
