// What people and scripts see of a plan.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "plan/plan.hpp"

namespace maestro::plan {

namespace {

nlohmann::ordered_json json_of(const Choice& choice) {
    const graph::Layout& l = choice.layout;
    nlohmann::ordered_json json = {{"dp", l.dp},         {"tp", l.tp}, {"cp", l.cp},  {"pp", l.pp},
                                   {"chunks", l.chunks}, {"ep", l.ep}, {"etp", l.etp}};
    if (l.cp > 1) json["cp_kind"] = l.cp_kind == ContextKind::ring ? "ring" : "all-to-all";
    json["micro_batch"] = choice.micro_batch;
    json["recompute"] = word_of(choice.recompute);
    if (choice.recompute_layers > 0) json["recompute_layers"] = choice.recompute_layers;
    return json;
}

nlohmann::ordered_json json_of(const Report& report, const Plan& plan, int paid_ranks) {
    nlohmann::ordered_json json;
    json["ranks"] = plan.ranks;
    json["step_s"] = plan.step_s / static_cast<double>(report.steps);
    json["tokens_per_rank_hour"] = tokens_per_rank_hour(plan, paid_ranks);
    if (report.price > 0)
        json["price_per_million_tokens"] = report.price_per_million_tokens(plan, paid_ranks);
    if (plan.worst) {
        json["worst"] = *plan.worst;
        json["worst_rates"] = plan.worst_rates;
    }
    json["critical"] = plan.critical;
    json["step_end"] = plan.end_share;
    for (std::size_t s = 0; s < plan.choices.size(); ++s) {
        const graph::Section& section = plan.scenario.graph.sections[s];
        nlohmann::ordered_json layout = json_of(plan.choices[s]);
        layout["window"] = plan.windows[static_cast<std::size_t>(section.first_stage)];
        if (!section.colocate_with.empty()) layout["colocate_with"] = section.colocate_with;
        json["layout"][section.name] = std::move(layout);
        json["memory_bytes"][section.name] = plan.memory[s];
        json["busy"][section.name] = plan.busy[s];
    }
    return json;
}

nlohmann::ordered_json json_of(const Report& report, const std::optional<OneLayout>& one) {
    if (!one) return nullptr;
    nlohmann::ordered_json json = json_of(report, one->plan, one->ranks);
    json["wavefront_step_s"] = one->wavefront_s / static_cast<double>(report.steps);
    return json;
}

/// A row of the table.
std::string row_of(const Report& report, const Plan& plan, const std::string& number, int paid_ranks) {
    std::vector<std::string> sections, busy;
    double memory = 0;
    for (std::size_t s = 0; s < plan.choices.size(); ++s) {
        const auto& graph = plan.scenario.graph;
        std::string text = graph.sections[s].name + ": " + describe(plan.choices[s]);
        if (!graph.sections[s].colocate_with.empty()) text += ", with " + graph.sections[s].colocate_with;
        sections.push_back(std::move(text));
        busy.push_back(fmt::format("{:.0f}%", 100 * plan.busy[s]));
        memory = std::max(memory, plan.memory[s]);
    }
    const std::string price =
        report.price > 0 ? fmt::format("{:>10.4g}", report.price_per_million_tokens(plan, paid_ranks)) : "";
    return fmt::format("{:>3}{:>12.6g}{:>18.4g}{}{:>7}{:>12.4g}{:>7}  {:<12}{}", number,
                       plan.step_s / static_cast<double>(report.steps),
                       tokens_per_rank_hour(plan, paid_ranks) / 1e6, price, plan.ranks, memory / 1e9,
                       plan.worst ? fmt::format("{:.1f}%", 100 * *plan.worst) : "",
                       fmt::format("{}", fmt::join(busy, " ")), fmt::join(sections, "; "));
}

/// Where the time of the ranks of the best plan goes, and what it loses where rates are wrong.
std::string times_of(const Report& report, const Plan& plan) {
    const graph::SectionGraph& graph = plan.scenario.graph;
    std::string text = "time of the ranks with plan 1:";
    double waiting = 1 - plan.end_share;
    for (std::size_t s = 0; s < plan.busy.size(); ++s) {
        const double share = plan.busy[s] * graph.sections[s].layout.ranks() / plan.ranks;
        text += fmt::format(" {} {:.0f}%,", graph.sections[s].name, 100 * share);
        waiting -= share;
    }
    text += fmt::format(" end of the step (sums, updates) {:.0f}%, waiting {:.0f}%; critical section: {}\n",
                        100 * plan.end_share, 100 * std::max(0.0, waiting), plan.critical);
    if (report.measured_share)
        text += fmt::format("{:.0f}% of the time of its tasks is of measured shapes\n",
                            100 * *report.measured_share);
    if (plan.worst && *plan.worst > 0)
        text += fmt::format(
            "worst: with {}, another of the best plans would be better, and plan 1 takes {:.1f}% more {}\n",
            plan.worst_rates, 100 * *plan.worst, report.pays_all ? "time" : "rank-hours");
    return text;
}

}  // namespace

std::string describe(const Report& report) {
    std::string text = fmt::format(
        "{} samples a step, on up to {} ranks of {} with {:.4g} GB each; times are means over {} {}\n",
        report.samples, report.ranks, report.cluster, report.device_memory / 1e9, report.steps,
        report.steps == 1 ? "step" : "steps");
    if (!report.found.plans.empty())
        text += fmt::format("{:>3}{:>12}{:>18}{}{:>7}{:>12}{:>7}  {:<12}{}\n", "", "step s",
                            "M tokens/rank-h", report.price > 0 ? fmt::format("{:>10}", "price/M") : "",
                            "ranks", "memory GB", "worst", "busy", "layouts");
    for (std::size_t k = 0; k < report.found.plans.size(); ++k)
        text +=
            row_of(report, report.found.plans[k], std::to_string(k + 1), report.paid(report.found.plans[k])) +
            "\n";
    if (!report.found.plans.empty()) text += times_of(report, report.found.plans.front());
    if (report.frontier.size() > 1) {
        text += "the fastest plan by the number of ranks:\n";
        for (const Plan& plan : report.frontier) text += row_of(report, plan, "", report.paid(plan)) + "\n";
    }
    if (report.one_layout && !report.found.plans.empty()) {
        const OneLayout& one = *report.one_layout;
        const Plan& best = report.found.plans.front();
        const double order = one.plan.step_s / one.wavefront_s;
        const double gain = report.tokens_per_rank_hour(best) / tokens_per_rank_hour(one.plan, one.ranks);
        text += fmt::format(
            "one layout for all sections, in the order of the data, with the best such layout:\n{}\n",
            row_of(report, one.plan, "", one.ranks));
        text += fmt::format(
            "the best plan gives {:.3f} times the tokens per rank-hour: {:.3f} by the order (wavefront in "
            "that "
            "layout takes {:.6g} s) x {:.3f} by the layouts\n",
            gain, order, one.wavefront_s / static_cast<double>(report.steps), gain / order);
    }
    text += fmt::format(
        "{:.0f} layouts fit the ranks{}; the bounds of {} were computed, {} were simulated, in {:.1f} s{}",
        report.found.layouts,
        report.chooses_recompute ? ", in which all layers of a section recompute or none" : "",
        report.found.bounded, report.found.simulated, report.search_s,
        report.found.plans.empty() ? ""
        : report.found.proved      ? ": no other of these layouts is faster"
                                   : "; some that could be faster were not simulated");
    if (!report.found.plans.empty() && !report.found.proved && report.pays_all)
        text += fmt::format(": another of these layouts may be faster by at most {:.1f}%",
                            100 * report.found.gap());
    if (!report.found.plans.empty() && report.searched < report.steps)
        text +=
            fmt::format(" in the first {}, on which the search compared them; the best were compared on all",
                        report.searched == 1 ? "step" : fmt::format("{} steps", report.searched));
    return text;
}

std::string to_json(const Report& report) {
    nlohmann::ordered_json json;
    json["plans"] = nlohmann::ordered_json::array();
    for (const Plan& plan : report.found.plans)
        json["plans"].push_back(json_of(report, plan, report.paid(plan)));
    json["one_size"] = json_of(report, report.one_layout);
    json["frontier"] = nlohmann::ordered_json::array();
    for (std::size_t k = 0; k < report.frontier.size(); ++k) {
        json["frontier"].push_back(json_of(report, report.frontier[k], report.paid(report.frontier[k])));
        json["frontier"].back()["one_size"] = json_of(report, report.frontier_one_layout[k]);
    }
    json["steps"] = report.steps;
    json["searched_steps"] = report.searched;
    json["layouts"] = report.found.layouts;
    json["bounded"] = report.found.bounded;
    json["simulated"] = report.found.simulated;
    json["proved"] = report.found.proved;
    if (!report.found.plans.empty() && report.pays_all) {
        json["bound_s"] = report.found.bound_s / static_cast<double>(report.searched);
        json["gap"] = report.found.gap();
    }
    json["search_s"] = report.search_s;
    if (report.measured_share) json["measured_share"] = *report.measured_share;
    if (!report.found.plans.empty()) return json.dump();
    json["impossible"] = nlohmann::ordered_json::array();
    for (const Shortage& lack : report.shortages)
        json["impossible"].push_back({{"constraint", "memory"},
                                      {"section", lack.section},
                                      {"need", lack.bytes},
                                      {"have", report.most_memory},
                                      {"layout", json_of(lack.choice)}});
    if (report.found.no_room > 0)
        json["impossible"].push_back(
            {{"constraint", "memory"}, {"need", report.found.least_memory}, {"have", report.device_memory}});
    if (json["impossible"].empty())
        json["impossible"].push_back({{"constraint", "ranks"}, {"need", nullptr}, {"have", report.ranks}});
    // Single changes help against whichever constraint is violated.
    for (nlohmann::ordered_json& entry : json["impossible"]) {
        entry["changes"] = nlohmann::ordered_json::array();
        for (const Change& change : report.changes) entry["changes"].push_back(change.text);
    }
    return json.dump();
}

}  // namespace maestro::plan
