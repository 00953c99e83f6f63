// `maestro plan`: finds the layouts under which a deck trains fastest on a cluster.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/command_line.hpp"
#include "config/deck.hpp"
#include "config/deck_text.hpp"
#include "plan/search.hpp"
#include "recorded/corrections.hpp"
#include "workload/scenario.hpp"

namespace maestro::plan {

/// `paid_ranks`: idle ones too, where they are paid.
inline double tokens_per_rank_hour(const Plan& plan, int paid_ranks) {
    return 3600 * plan.tokens / plan.step_s / paid_ranks;
}

/// The frameworks that run all sections in one layout and in the order of the data, with the best such
/// layout.
struct OneLayout {
    Plan plan;               ///< step_s under `fifo`
    double wavefront_s = 0;  ///< of the same layout in Maestro's order
    int ranks = 0;           ///< that are paid; the layout may leave some of them idle
};

/// A section that has no layout in which each rank has the memory that it needs.
struct Shortage {
    std::string section;
    Choice choice;     ///< the one that needs least
    double bytes = 0;  ///< that a rank needs then
};

/// A change that makes an impossible deck possible, which a search has verified.
struct Change {
    std::string text;   ///< "--ranks 16"
    double step_s = 0;  ///< of a plan with it
};

struct Report {
    std::string cluster;
    std::int64_t samples = 0;  ///< of a step
    int least_ranks = 1, ranks = 1;
    bool pays_all = true;      ///< of `ranks`, idle ones too; false: of a range, those that a plan uses
    double device_memory = 0;  ///< bytes that are free for a rank
    double most_memory = 0;    ///< see plan::most_memory()
    std::size_t steps = 1;     ///< of which the times of plans are means
    std::size_t searched = 1;  ///< the first of them, on which the search compared plans
    /// `bound_s` is a sum over the steps that were searched, the times of the plans over all.
    Found found = {};
    /// Recomputation is free: the layouts of `found` have it in all layers of a section or in none, while
    /// some layers of the plans may recompute.
    bool chooses_recompute = false;
    std::vector<Plan> frontier =
        {};  ///< the fastest plan of each number of ranks, where a range is asked for
    /// By plan of the frontier: the best one layout on as many ranks, if there is one.
    std::vector<std::optional<OneLayout>> frontier_one_layout = {};
    std::optional<OneLayout> one_layout = {};  ///< on as many ranks as the best plan has
    std::vector<Shortage> shortages = {};
    double search_s = 0;
    double price = 0;  ///< of an hour of a node; 0: not known
    std::int64_t ranks_per_node = 1;
    /// Part of the time of the best plan's tasks that is of shapes that `maestro calibrate --deck` or a run
    /// has measured.
    std::optional<double> measured_share = {};
    std::vector<Change> changes = {};  ///< where no plan fits: with each of these alone, one does

    int paid(const Plan& plan) const { return pays_all ? ranks : plan.ranks; }
    double tokens_per_rank_hour(const Plan& plan) const {
        return plan::tokens_per_rank_hour(plan, paid(plan));
    }
    /// Of whole nodes, of which a plan uses `paid_ranks` ranks.
    double price_per_million_tokens(const Plan& plan, int paid_ranks) const {
        const std::int64_t nodes = (paid_ranks + ranks_per_node - 1) / ranks_per_node;
        return static_cast<double>(nodes) * price * plan.step_s / 3600 / plan.tokens * 1e6;
    }
};

/// A table of the plans, as text of several lines.
std::string describe(const Report& report);
/// One line: a JSON object (docs/file_formats.md).
std::string to_json(const Report& report);
/// The keys by which a plan differs from the deck, for config::with_keys().
std::vector<config::KeyValue> keys_of(const Plan& plan, const config::Deck& deck);

/// The command: reads the inputs, searches, prints, and writes the deck if one is requested. `text` is that
/// of the deck without the values of --set, `scenario` the deck's, `measured` the run of --measured or null.
/// Throws Error(bad_deck) where no layout fits.
void run_plan(const config::CommandLine& line, const config::Deck& deck, const std::string& text,
              workload::Scenario scenario, const recorded::Run* measured);

}  // namespace maestro::plan
