#include "plan/partial_recompute.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "plan/bound.hpp"
#include "workload/memory.hpp"

namespace maestro::plan {

namespace {

/// Of each section of a plan, as many others are simulated at most.
constexpr std::size_t kSimulated = 2;

/// A plan that fits into memory.
struct Fitting {
    Plan plan;  ///< with its scenario, not simulated
    workload::MemoryPlan memory;
    double quick_s = 0;  ///< of the first step, see order_quickly()

    std::vector<int> windows() const {
        std::vector<int> windows;
        for (const workload::StageMemory& stage : memory.stages) windows.push_back(stage.window);
        return windows;
    }
    bool has_wider_windows_than(const Fitting& other) const {
        for (std::size_t s = 0; s < memory.stages.size(); ++s)
            if (memory.stages[s].window > other.memory.stages[s].window) return true;
        return false;
    }
};

class FewerLayers {
public:
    FewerLayers(const Subject& subject, const std::string& policy, Found& found)
        : subject_(subject), policy_(policy), found_(found), balance_(subject) {}

    /// Returns the plan, or a faster one.
    Plan improved(Plan plan) {
        std::vector<std::size_t> sections(plan.choices.size());
        std::iota(sections.begin(), sections.end(), std::size_t{0});
        std::stable_sort(sections.begin(), sections.end(),
                         [&](std::size_t a, std::size_t b) { return plan.busy[a] > plan.busy[b]; });
        for (const std::size_t section : sections)
            if (is_recompute_free(subject_.scenario, static_cast<int>(section), subject_.is_fixed))
                plan = improved(std::move(plan), section);
        return plan;
    }

private:
    Plan improved(Plan plan, std::size_t section) {
        std::vector<Fitting> others;
        if (std::optional<Fitting> none = with(plan, section, Recompute::none, 0))
            others.push_back(std::move(*none));
        const std::size_t without = others.size();
        for (const Recompute recompute : {Recompute::cheap, Recompute::layer})
            for (Fitting& fitting : fewest(plan, section, recompute))
                if (without == 0 || fitting.has_wider_windows_than(others.front()))
                    others.push_back(std::move(fitting));
        const std::vector<Choice> before = plan.choices;
        std::erase_if(others, [&](const Fitting& other) { return other.plan.choices == before; });
        order_quickly(others, plan);
        const std::size_t most = effort_of(subject_) < 1 ? 1 : kSimulated;
        for (std::size_t k = 0; k < others.size() && k < most; ++k) {
            if (others[k].plan.bound_s >= plan.step_s * (1 - kRounding)) continue;
            ++found_.simulated;
            Plan faster = simulated(subject_, std::move(others[k].plan), policy_);
            if (faster.step_s < plan.step_s * (1 - kRounding)) plan = std::move(faster);
        }
        return plan;
    }

    /// Orders plans by the time of their first step under a policy that takes little time, the fastest first.
    /// Those that cannot be faster than `plan` are left out.
    void order_quickly(std::vector<Fitting>& others, const Plan& plan) {
        if (others.empty()) return;
        const std::string quick = quick_policy(policy_);
        const auto quick_s = [&](const workload::StepEstimate& step, const Plan& of) {
            return seconds_of_step(subject_, of.scenario, step, 0, quick);
        };
        for (Fitting& other : others) {
            ++found_.bounded;
            for (std::size_t k = 0; k < subject_.steps.size(); ++k) {
                const workload::StepEstimate step = subject_.estimate(other.plan.scenario, other.memory, k);
                other.plan.bound_s += bound_of(step, other.plan.scenario.graph);
                if (k == 0) other.quick_s = quick_s(step, other.plan);
            }
            other.plan.bound_s *= 1 - kRounding;
        }
        std::erase_if(others, [&](const Fitting& other) {
            return other.plan.bound_s >= plan.step_s * (1 - kRounding);
        });
        std::stable_sort(others.begin(), others.end(),
                         [](const Fitting& a, const Fitting& b) { return a.quick_s < b.quick_s; });
    }

    /// Returns the plan with this recomputation of a section in the first `layers` of each stage, 0: in all.
    /// Returns nothing where it does not fit into memory.
    std::optional<Fitting> with(const Plan& plan, std::size_t section, Recompute recompute, int layers) {
        Fitting made{.plan = {.choices = plan.choices, .host_of = plan.host_of, .ranks = plan.ranks},
                     .memory = {}};
        made.plan.choices[section].recompute = recompute;
        made.plan.choices[section].recompute_layers = layers;
        // Layers are balanced as if all of them recomputed.
        std::vector<Choice> choices = made.plan.choices;
        for (Choice& choice : choices) choice.recompute_layers = 0;
        for (std::size_t s = 0; s < choices.size(); ++s) {
            if (choices[s].layout.stage_count() > 1)
                choices[s].layout.layers = balance_.layers_of(s, choices[s]);
            choices[s].recompute_layers = made.plan.choices[s].recompute_layers;
        }
        std::vector<graph::Refusal> refusals;
        workload::Scenario& scenario = made.plan.scenario;
        scenario = with_choices(subject_.scenario, choices, plan.host_of, refusals);
        if (!refusals.empty()) return {};
        made.memory = subject_.memory(scenario);
        if (!workload::shortage(made.memory, scenario.graph, subject_.device).empty()) return {};
        return made;
    }

    /// Returns the plan with as few recomputed layers as fit, and with the fewest for each other choice of
    /// windows. Memory shrinks with every layer that recomputes, and windows do not. Returns nothing where
    /// not even all layers are enough.
    std::vector<Fitting> fewest(const Plan& plan, std::size_t section, Recompute recompute) {
        std::optional<Fitting> all = with(plan, section, recompute, 0);
        if (!all) return {};
        int too_few = 0, enough = most_layers(all->plan.scenario, static_cast<int>(section));
        const auto in = [&](int layers) { return with(plan, section, recompute, layers); };
        const int most = enough;
        Fitting least = *all;
        while (enough - too_few > 1) {
            const int layers = (too_few + enough) / 2;
            if (std::optional<Fitting> fitting = in(layers)) {
                enough = layers;
                least = std::move(*fitting);
            } else {
                too_few = layers;
            }
        }
        std::vector<Fitting> found{least};
        const auto add_between = [&](const auto& self, int few, const Fitting& at_few, int many,
                                     const Fitting& at_many) -> void {
            if (at_few.windows() == at_many.windows()) return;
            if (many - few == 1) {
                found.push_back(at_many);
                return;
            }
            const int middle = (few + many) / 2;
            const std::optional<Fitting> fitting = in(middle);
            if (!fitting) return;
            self(self, few, at_few, middle, *fitting);
            self(self, middle, *fitting, many, at_many);
        };
        add_between(add_between, enough, least, most, *all);
        return found;
    }

    /// Returns the layers of the stage of a section that has most.
    static int most_layers(const workload::Scenario& scenario, int section) {
        std::int64_t most = 0;
        for (int k = 0; k < scenario.graph.sections[section].layout.stage_count(); ++k)
            most = std::max(most, scenario.layers[scenario.graph.stage_of(section, k)].size());
        return static_cast<int>(most);
    }

    const Subject& subject_;
    const std::string& policy_;
    Found& found_;
    Balance balance_;
};

}  // namespace

void recompute_fewer_layers(const Subject& subject, const std::string& policy, Found& found) {
    if (found.plans.empty()) return;
    FewerLayers fewer(subject, policy, found);
    std::vector<Plan> plans;
    const double tried = std::ceil(effort_of(subject) * static_cast<double>(found.plans.size()));
    std::size_t count = 0;
    for (Plan& of_search : found.plans) {
        Plan plan = count++ < static_cast<std::size_t>(tried) ? fewer.improved(of_search) : of_search;
        if (!insert(plans, std::move(plan))) insert(plans, std::move(of_search));
    }
    found.plans = std::move(plans);
    const double step_s = found.step_s = found.plans.front().step_s;
    found.proved = found.proved || found.bound_s >= step_s * (1 - kRounding);
    found.bound_s = std::min(found.bound_s, step_s);
}

}  // namespace maestro::plan
