// A deck of tiny models on a small cluster, and the comparison of the search with all plans of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "config/cluster.hpp"
#include "plan/search.hpp"
#include "support/decks.hpp"
#include "unit/data/sample_file_fixture.hpp"
#include "workload/models.hpp"
#include "workload/stages.hpp"

namespace maestro::plan {

/// Unless a test says otherwise, the sections of inputs/vlm_glyphs.toml, `vision` (0) and `language` (1).
struct Setting {
    int samples = 12;                      ///< of a step; a third of them without pictures
    std::set<std::string> fixed = {};      ///< keys that stay as the deck has them
    double memory = 16e9;                  ///< bytes of a rank
    std::string kind = "cpu";              ///< of the devices
    std::vector<std::string> values = {};  ///< KEY=VALUE of the deck
    std::string deck = testing_support::input("vlm_glyphs.toml");  ///< its text
    int ranks_per_node = 2;
    config::Link node{2e-6, 5e9}, network{2e-5, 1e9};
    int steps = 1;   ///< each of other samples
    int window = 0;  ///< of every section; 0: chosen from the memory
    std::string policy = "wavefront";
};

class SearchTest : public data::SampleFileTest {
protected:
    void make(const Setting& setting) {
        policy_ = setting.policy;
        data::SampleArrays arrays;
        const int samples = setting.samples * setting.steps;
        for (int i = 0; i < samples; ++i)
            if (i % 3 == 2)
                arrays.add({257, 'x', 'y', 258}, {});
            else
                arrays.add({257, 256, 'x', 258}, {{64, i == 1 ? 448 : 32 + 8 * (i % 9)}});
        write(arrays);
        file_ = std::make_unique<data::SampleFile>(path_);
        workload::Scenario deck = workload::make_scenario(
            config::parse_deck(setting.deck, "deck", setting.values, config::Command::train));
        deck.markers = file_->markers();
        deck.global_batch = setting.samples;
        for (graph::Section& section : deck.graph.sections) section.window = setting.window;
        const config::Cluster cluster{.name = "test",
                                      .ranks_per_node = setting.ranks_per_node,
                                      .device = {.memory = setting.memory,
                                                 .memory_bandwidth = 1e10,
                                                 .element_flops = 1e9,
                                                 .operation_s = 2e-6,
                                                 .kind = setting.kind,
                                                 .context_memory = 0,
                                                 .library_memory = 0,
                                                 .nccl_connection_memory = 0,
                                                 .gemm_rates = {{16, 2e10, 4e10}, {256, 5e10, 1e11}}},
                                      .node = setting.node,
                                      .network = setting.network};
        scenario_ = std::make_unique<workload::Scenario>(workload::on_cluster(std::move(deck), cluster));
        table_ = std::make_unique<workload::SampleTable>(workload::table_of(*scenario_, *file_));
        std::vector<std::vector<std::int64_t>> steps(static_cast<std::size_t>(setting.steps));
        for (int i = 0; i < samples; ++i) steps[static_cast<std::size_t>(i / setting.samples)].push_back(i);
        probes_ = std::make_unique<workload::Probes>();
        estimates_ = std::make_unique<workload::Estimates>(*table_, *probes_);
        subject_ = std::make_unique<Subject>(Subject{
            .scenario = *scenario_,
            .table = *table_,
            .probes = *probes_,
            .device = workload::rank_device_of(cluster, config::Run()),
            .options = {},
            .estimates = *estimates_,
            .steps = std::move(steps),
            .effort = {.moves = 20},
            .is_fixed = [fixed = setting.fixed](const std::string& key) { return fixed.contains(key); }});
    }

    std::size_t sections() const { return scenario_->graph.sections.size(); }

    /// Returns the plan of these choices, simulated, or nothing where they do not fit.
    std::optional<Plan> plan_with(const std::vector<Choice>& choices, const std::vector<int>& host_of,
                                  int ranks) {
        std::vector<graph::Refusal> refusals;
        Plan plan{.choices = choices, .host_of = host_of};
        plan.scenario = with_choices(*scenario_, choices, host_of, refusals);
        if (!refusals.empty() || plan.scenario.graph.world > ranks) return {};
        workload::balance_stages(plan.scenario, *table_);
        for (const std::vector<std::int64_t>& ids : subject_->steps) {
            const workload::StepEstimate step = workload::estimate(plan.scenario, *table_, *probes_,
                                                                   subject_->device, subject_->options, ids);
            if (!step.shortage.empty()) return {};
        }
        return simulated(*subject_, std::move(plan), policy_);
    }

    /// Returns all choices of a section that docs/planning.md describes. What a model does not allow is among
    /// them, unlike in choices_of().
    std::vector<Choice> all_choices(int section, int ranks) const {
        const graph::Section& deck = scenario_->graph.sections[section];
        const workload::Tuning& tuning = scenario_->tuning[section];
        const Choice of_deck{.layout = deck.layout,
                             .micro_batch = deck.micro_batch,
                             .recompute = tuning.recompute,
                             .recompute_layers = tuning.recompute_layers};
        std::vector<Choice> choices{of_deck};
        const auto is_free = [&](const char* key) {
            return !subject_->is_fixed("section." + deck.name + "." + key);
        };
        // Each of the choices once with each of the values. `member(choice)`: the value of the key.
        const auto vary = [&](auto member, const auto& values) {
            std::vector<Choice> varied;
            for (Choice choice : choices)
                for (const auto value : values) {
                    member(choice) = value;
                    if (choice.layout.ranks() <= ranks) varied.push_back(choice);
                }
            choices = std::move(varied);
        };
        std::vector<int> numbers(static_cast<std::size_t>(ranks)), powers;
        std::iota(numbers.begin(), numbers.end(), 1);
        for (int n = 1; n <= ranks; n *= 2) powers.push_back(n);
        using graph::Layout;
        std::vector<std::pair<int Layout::*, const std::vector<int>*>> degrees;
        if (is_free("layout.dp")) degrees.emplace_back(&Layout::dp, &numbers);
        if (is_free("layout.tp")) degrees.emplace_back(&Layout::tp, &numbers);
        if (is_free("layout.cp")) degrees.emplace_back(&Layout::cp, &powers);
        if (is_free("layout.pp")) degrees.emplace_back(&Layout::pp, &numbers);
        const bool experts = scenario_->models[section].experts.count > 0;
        if (experts && is_free("layout.ep")) degrees.emplace_back(&Layout::ep, &numbers);
        if (experts && is_free("layout.etp")) degrees.emplace_back(&Layout::etp, &numbers);
        for (const auto& [degree, values] : degrees) choices.front().layout.*degree = 1;
        for (const auto& [degree, values] : degrees)
            vary([degree](Choice& c) -> int& { return c.layout.*degree; }, *values);
        if (is_free("layout.chunks"))
            vary([](Choice& c) -> int& { return c.layout.chunks; }, std::vector{1, 2, 4});
        if (is_free("layout.cp_kind"))
            vary([](Choice& c) -> ContextKind& { return c.layout.cp_kind; },
                 std::vector{ContextKind::ring, ContextKind::all_to_all});
        if (is_free("micro_batch")) {
            std::set<int> samples{deck.micro_batch};
            for (const int n : {1, 2, 4, 8, 16})
                if (n <= scenario_->global_batch) samples.insert(n);
            vary([](Choice& c) -> int& { return c.micro_batch; }, samples);
        }
        if (is_free("recompute") && deck.backward)
            vary([](Choice& c) -> Recompute& { return c.recompute; },
                 std::vector{Recompute::none, Recompute::cheap, Recompute::layer});
        std::erase_if(choices, [&](const Choice& c) {
            const Layout& l = c.layout;
            return (l.pp == 1 && l.chunks > 1) || (l.cp == 1 && l.cp_kind != ContextKind::ring) ||
                   l.tp % l.etp != 0 || l.dp * l.stage_ranks() % l.expert_ranks() != 0 ||
                   // The next smaller one holds a replica's even share of the batch.
                   (is_free("micro_batch") && c.micro_batch > 1 &&
                    c.micro_batch / 2 * l.dp >= scenario_->global_batch);
        });
        return choices;
    }

    /// Calls visit(host_of) for every way to put the sections on separate ranks or on common ones. Of
    /// sections on the same ranks the first one is the host.
    void for_each_hosting(const std::function<void(const std::vector<int>&)>& visit) const {
        std::vector<int> host_of;
        const auto extend = [&](const auto& self) -> void {
            const int section = static_cast<int>(host_of.size());
            if (host_of.size() == sections()) return visit(host_of);
            for (int host = 0; host <= section; ++host) {
                if (host < section && host_of[static_cast<std::size_t>(host)] != host) continue;
                host_of.push_back(host);
                self(self);
                host_of.pop_back();
            }
        };
        extend(extend);
    }

    /// Returns all plans on so many ranks that fit, simulated, in no order.
    std::vector<Plan> all_plans(int ranks) {
        std::vector<std::vector<Choice>> choices;
        for (std::size_t s = 0; s < sections(); ++s)
            choices.push_back(all_choices(static_cast<int>(s), ranks));
        std::vector<Plan> plans;
        for_each_hosting([&](const std::vector<int>& host_of) {
            std::vector<Choice> chosen;
            const auto extend = [&](const auto& self, int used) -> void {
                const std::size_t s = chosen.size();
                if (s == sections()) {
                    if (std::optional<Plan> plan = plan_with(chosen, host_of, ranks))
                        plans.push_back(std::move(*plan));
                    return;
                }
                const auto host = static_cast<std::size_t>(host_of[s]);
                for (const Choice& choice : choices[s]) {
                    const int more = choice.layout.ranks();
                    if (host < s ? more != chosen[host].layout.ranks() : used + more > ranks) continue;
                    chosen.push_back(choice);
                    self(self, host < s ? used : used + more);
                    chosen.pop_back();
                }
            };
            extend(extend, 0);
        });
        return plans;
    }

    Ratings rate_all(int ranks) {
        table_->keep_extremes(static_cast<int>(scenario_->global_batch));
        return rate(*subject_, ranks);
    }

    /// Compares the search with all plans of the choices on so many ranks: it finds the fastest, proves it,
    /// and simulates at most 100. Returns all that fit.
    std::vector<Plan> compare(int ranks) {
        const std::vector<Plan> plans = all_plans(ranks);
        double fastest_s = kNone;
        for (const Plan& plan : plans) fastest_s = std::min(fastest_s, plan.step_s);
        const Ratings ratings = rate_all(ranks);
        const Found found = search(*subject_, ratings, {.ranks = ranks, .policy = policy_});
        EXPECT_FALSE(found.plans.empty());
        if (!found.plans.empty()) {
            EXPECT_DOUBLE_EQ(found.plans.front().step_s, fastest_s);
        }
        EXPECT_TRUE(found.proved);
        const int all = static_cast<int>(plans.size());
        EXPECT_LE(found.simulated, std::min(100, std::max(30, all / 3)));
        // Where all of them are asked for, there are as many, and none is faster than its bound.
        const Found every = search(
            *subject_, ratings,
            {.ranks = ranks, .all = true, .simulated = 1 << 20, .bounded = 1 << 20, .policy = policy_});
        EXPECT_EQ(every.simulated, all);
        for (const Plan& plan : every.plans) EXPECT_LE(plan.bound_s, plan.step_s) << describe(plan);
        return every.plans;
    }

    static std::string describe(const Plan& plan) {
        std::string text;
        for (std::size_t s = 0; s < plan.choices.size(); ++s) {
            if (s > 0) text += ", ";
            text += plan::describe(plan.choices[s]);
            if (plan.host_of[s] != static_cast<int>(s))
                text += " with section " + std::to_string(plan.host_of[s]);
        }
        return text;
    }

    std::unique_ptr<data::SampleFile> file_;
    std::unique_ptr<workload::Scenario> scenario_;
    std::unique_ptr<workload::SampleTable> table_;
    std::unique_ptr<workload::Probes> probes_;
    std::unique_ptr<workload::Estimates> estimates_;
    std::unique_ptr<Subject> subject_;
    std::string policy_;
};

/// The keys of both sections that are fixed where dp, tp, pp and micro-batches are free.
inline const std::set<std::string> kFixed{"section.vision.recompute",       "section.vision.layout.cp",
                                          "section.language.layout.cp",     "section.vision.layout.chunks",
                                          "section.language.layout.chunks", "section.language.recompute"};

}  // namespace maestro::plan
