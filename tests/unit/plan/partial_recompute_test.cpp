// Plans in which some layers of each stage recompute, compared with all of them.
#include "plan/partial_recompute.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unit/plan/search_fixture.hpp"

namespace maestro::plan {
namespace {

constexpr int kLayers = 9;

class PartialRecompute : public SearchTest {
protected:
    /// In which all keys are fixed but for the recomputation of one section.
    Setting free_in(const std::string& section, std::vector<std::string> values) {
        section_ = section == "vision" ? 0 : 1;
        Setting setting{.samples = 8, .kind = "gpu", .values = std::move(values)};
        setting.values.push_back("model.glyph-" + section + ".layers=" + std::to_string(kLayers));
        for (const std::string name : {"vision", "language"}) {
            for (const char* key : {"layout.dp", "layout.tp", "layout.cp", "layout.cp_kind", "layout.pp",
                                    "layout.chunks", "micro_batch", "colocate_with"})
                setting.fixed.insert("section." + name + "." + key);
            if (name != section) setting.fixed.insert("section." + name + ".recompute");
        }
        return setting;
    }

    /// Returns the plan with this recomputation, where it fits.
    std::optional<Plan> plan_of_deck(Recompute recompute, int layers) {
        auto [choices, host_of] = choices_of(*scenario_);
        choices[section_].recompute = recompute;
        choices[section_].recompute_layers = layers;
        return plan_with(choices, host_of, scenario_->graph.world);
    }
    const Choice& choice_of(const Plan& plan) const { return plan.choices[section_]; }

    Found found_by_search() {
        return search(*subject_, rate_all(scenario_->graph.world),
                      {.ranks = scenario_->graph.world, .policy = policy_});
    }

    struct Counts {
        int partial = 0;  ///< in the fastest plan some layers recompute
        int more = 0;     ///< in the fastest plan more of them than would have to
    };
    /// Compares what is found with all that fit, with so much of the memory in which no layer has to
    /// recompute.
    Counts compare_all(Setting setting, const std::vector<double>& shares) {
        make(setting);
        const double most = plan_of_deck(Recompute::none, 0).value().memory[section_];
        Counts counts;
        for (const double share : shares) {
            SCOPED_TRACE(share);
            setting.memory = share * most;
            make(setting);
            std::vector<Plan> all;
            for (const Recompute recompute : {Recompute::none, Recompute::cheap, Recompute::layer})
                for (int layers = 0; layers < (recompute == Recompute::none ? 1 : kLayers); ++layers)
                    if (auto plan = plan_of_deck(recompute, layers)) all.push_back(std::move(*plan));
            const auto fastest = std::min_element(
                all.begin(), all.end(), [](const Plan& a, const Plan& b) { return a.step_s < b.step_s; });
            Found found = found_by_search();
            EXPECT_FALSE(found.plans.empty() || all.empty());
            if (found.plans.empty() || all.empty()) continue;
            EXPECT_TRUE(found.proved);
            const double of_search_s = found.plans.front().step_s;
            recompute_fewer_layers(*subject_, policy_, found);
            const Plan& best = found.plans.front();
            EXPECT_DOUBLE_EQ(best.step_s, fastest->step_s) << describe(best) << "; " << describe(*fastest);
            EXPECT_LE(best.bound_s, best.step_s);
            EXPECT_TRUE(found.proved);
            EXPECT_LE(found.bound_s, best.step_s);
            const Choice& choice = choice_of(best);
            if (choice.recompute_layers == 0) continue;
            EXPECT_LT(best.step_s, of_search_s);
            ++counts.partial;
            counts.more += std::any_of(all.begin(), all.end(), [&](const Plan& plan) {
                const Choice& other = choice_of(plan);
                return other.recompute == choice.recompute && other.recompute_layers > 0 &&
                       other.recompute_layers < choice.recompute_layers;
            });
        }
        return counts;
    }

    std::size_t section_ = 0;  ///< whose recomputation is free
};

/// With fixed windows, the fewer layers the better.
TEST_F(PartialRecompute, OfTwoStagesIsTheFastestThatFits) {
    Setting setting = free_in("language", {"model.glyph-language.mlp=512", "section.vision.recompute=layer",
                                           "section.vision.micro_batch=1", "section.language.layout.dp=1",
                                           "section.language.layout.pp=2"});
    setting.window = 4;
    EXPECT_GE(compare_all(setting, {0.65, 0.75, 0.8, 0.85, 0.9, 0.94, 0.98, 1.0}).partial, 4);
}

/// More layers than would have to may recompute for a wider window, but no more than that takes.
TEST_F(PartialRecompute, MakesRoomForWiderWindows) {
    const Setting setting =
        free_in("vision", {"section.vision.micro_batch=1", "section.language.recompute=layer",
                           "section.language.micro_batch=2", "section.language.layout.dp=1"});
    const Counts counts = compare_all(setting, {0.5, 0.52, 0.54, 0.56, 0.58, 0.61, 0.64, 0.66, 0.7});
    EXPECT_GE(counts.partial, 4);
    EXPECT_GE(counts.more, 3);
}

TEST_F(PartialRecompute, StaysWhereItIsFixed) {
    for (const char* key :
         {"train.recompute", "section.vision.recompute", "section.vision.recompute_layers"}) {
        SCOPED_TRACE(key);
        Setting setting =
            free_in("vision", {"section.vision.recompute=layer", "section.language.layout.dp=1"});
        make(setting);
        Found found = found_by_search();
        recompute_fewer_layers(*subject_, policy_, found);
        EXPECT_EQ(choice_of(found.plans.at(0)).recompute, Recompute::none);
        setting.fixed.insert(key);
        make(setting);
        found = found_by_search();
        recompute_fewer_layers(*subject_, policy_, found);
        EXPECT_EQ(choice_of(found.plans.at(0)).recompute, Recompute::layer);
    }
}

}  // namespace
}  // namespace maestro::plan
