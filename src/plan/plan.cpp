#include "plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text_file.hpp"
#include "plan/partial_recompute.hpp"
#include "plan/robustness.hpp"
#include "workload/corrected_work.hpp"
#include "workload/data_order.hpp"
#include "workload/models.hpp"
#include "workload/training_samples.hpp"

namespace maestro::plan {

namespace {

/// The keys of a section that a plan sets.
constexpr std::array kFreeKeys = {"layout.dp",  "layout.tp",         "layout.cp",     "layout.cp_kind",
                                  "layout.pp",  "layout.chunks",     "layout.stages", "layout.ep",
                                  "layout.etp", "layout.first_rank", "micro_batch",   "window",
                                  "recompute",  "recompute_layers",  "colocate_with"};

/// Whether a key is `prefix` or in the table that it names.
bool names(const std::string& prefix, const std::string& key) {
    return key == prefix || key.starts_with(prefix + ".");
}

/// What these beginnings of keys fix.
IsFixed fixed_by(std::vector<std::string> prefixes) {
    return [prefixes = std::move(prefixes)](const std::string& key) {
        return std::any_of(prefixes.begin(), prefixes.end(),
                           [&](const std::string& prefix) { return names(prefix, key); });
    };
}

void check_fixed(const std::vector<std::string>& fixed, const config::Deck& deck) {
    for (const std::string& prefix : fixed) {
        bool found = prefix == "train.recompute";
        for (const config::Section& s : deck.sections)
            for (const char* const key : kFreeKeys)
                found = found || names(prefix, fmt::format("section.{}.{}", s.name, key));
        if (!found) {
            std::vector<std::string> sections;
            for (const config::Section& s : deck.sections) sections.push_back(s.name);
            throw Error(
                ExitCode::usage,
                fmt::format("--fix {}: a plan sets no such key; allowed: section.NAME, or one of its keys "
                            "{}; sections: {}",
                            prefix, fmt::join(kFreeKeys, ", "), fmt::join(sections, ", ")),
                Scope::all_ranks);
        }
    }
}

/// The scenario in which everything that a plan chooses is open.
workload::Scenario opened(workload::Scenario scenario, const IsFixed& is_fixed) {
    std::vector<graph::Section> sections = scenario.graph.sections;
    for (graph::Section& s : sections) {
        const auto fixed = [&](const char* key) {
            return is_fixed(fmt::format("section.{}.{}", s.name, key));
        };
        if (!fixed("window")) s.window = 0;
        if (!fixed("layout.first_rank")) s.layout.first_rank = -1;
    }
    std::vector<graph::Refusal> refusals;
    return workload::with_sections(std::move(scenario), std::move(sections), refusals);
}

/// Why there is no plan.
std::string lack_of(const Report& report) {
    std::vector<std::string> lacks;
    for (const Shortage& lack : report.shortages)
        lacks.push_back(fmt::format(
            "no layout of section {} on up to {} ranks fits into memory: a rank needs at least "
            "{:.4g} GB ({}) and has {:.4g} GB",
            lack.section, report.ranks, lack.bytes / 1e9, describe(lack.choice), report.most_memory / 1e9));
    if (!lacks.empty()) return fmt::format("{}", fmt::join(lacks, "; "));
    if (report.found.no_room > 0)
        return fmt::format(
            "no layout of up to {} ranks that was tried fits into memory; of the one that needs "
            "least, {}",
            report.ranks, report.found.shortage);
    return fmt::format("no layout of all sections fits {} ranks; remove a --fix, or give more ranks",
                       report.ranks);
}

/// A step of a few hundred samples tells the mean of many within 1% for most plans, but the fastest of
/// thousands is one that the step happens to suit. So the best of the search are compared on more steps, with
/// the times that their micro-batches have as items go together, and with the whole effort of the scheduler.
struct Subjects {
    Subject searched, all;
    std::vector<Plan> on_all_steps(const std::vector<Plan>& plans, const std::string& policy) const {
        std::vector<Plan> sorted;
        for (const Plan& plan : plans) insert(sorted, simulated(all, plan, policy));
        return sorted;
    }
};

/// Returns what a search finds, with as few recomputed layers as fit.
Found best_of(const Subjects& subjects, const Ratings& ratings, const Limits& limits,
              std::vector<Plan> known = {}) {
    Found found = search(subjects.searched, ratings, limits, std::move(known));
    recompute_fewer_layers(subjects.searched, limits.policy, found);
    found.plans = subjects.on_all_steps(found.plans, limits.policy);
    if (!found.plans.empty() && subjects.searched.steps.size() == subjects.all.steps.size()) {
        found.step_s = found.plans.front().step_s;
        found.bound_s = std::min(found.bound_s, found.step_s);
    }
    return found;
}

/// Returns the time of a plan that fits, if there is one; the first that is found.
std::optional<double> seconds_of_any(const Subject& subject, int ranks) {
    const Found found = search(subject, rate(subject, ranks),
                               {.ranks = ranks, .simulated = 1, .bounded = 500, .policy = "fifo"});
    if (found.plans.empty()) return {};
    return found.plans.front().step_s / static_cast<double>(subject.steps.size());
}

/// Returns single changes with each of which a plan fits, as a search has found: more ranks, ranks with more
/// memory, a key that need not stay as it is.
std::vector<Change> changes_of(const Subject& subject, const Report& report,
                               const std::vector<std::string>& fixed) {
    constexpr int kMostRanks = 16384;
    std::vector<Change> changes;
    for (int ranks = 2 * report.ranks; ranks <= std::min(kMostRanks, 8 * report.ranks); ranks *= 2)
        if (const auto seconds = seconds_of_any(subject, ranks)) {
            changes.push_back({fmt::format("--ranks {}", ranks), *seconds});
            break;
        }
    double need = std::max(report.device_memory, report.found.least_memory);
    for (const Shortage& lack : report.shortages) need = std::max(need, lack.bytes);
    for (const double more : {1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0}) {
        Subject larger = subject;
        larger.device.memory = more * need;
        if (const auto seconds = seconds_of_any(larger, report.ranks)) {
            changes.push_back(
                {fmt::format("ranks with {:.4g} GB that are free", larger.device.memory / 1e9), *seconds});
            break;
        }
    }
    for (const std::string& prefix : fixed) {
        Subject freer = subject;
        std::vector<std::string> others = fixed;
        std::erase(others, prefix);
        freer.is_fixed = fixed_by(std::move(others));
        if (const auto seconds = seconds_of_any(freer, report.ranks))
            changes.push_back({fmt::format("no --fix {}", prefix), *seconds});
    }
    return changes;
}

/// The changes, as the end of a message.
std::string help_of(const Report& report) {
    std::vector<std::string> texts;
    for (const Change& change : report.changes)
        texts.push_back(fmt::format("{} ({:.4g} s a step)", change.text, change.step_s));
    if (texts.empty()) return "";
    return fmt::format("; a plan fits with any one of: {}", fmt::join(texts, "; "));
}

/// Of the search for one layout of all sections. Bounds of these are loose, so that likely ones are looked
/// at.
Limits one_layout_limits(int ranks) {
    return {.ranks = ranks,
            .keep = 3,
            .bounded = 300,
            .likely = 256,
            .some = 24,
            .policy = "fifo",
            .one_layout = true};
}

/// Adds the best one layout of as many ranks to the best plan and to each of the frontier, whose ranks
/// ascend. `widest` is the search for one layout on up to report.ranks.
void compare_with_one_layout(Report& report, const Subjects& subjects, const Ratings& ratings, Found widest) {
    report.frontier_one_layout.resize(report.frontier.size());
    for (std::size_t k = report.frontier.size(); k-- > 0 && !widest.plans.empty();) {
        const int ranks = report.frontier[k].ranks;
        // The best of more ranks is also that of fewer, down to those that it uses.
        if (widest.plans.front().ranks > ranks) {
            widest = best_of(subjects, ratings, one_layout_limits(ranks));
            report.found.simulated += widest.simulated;
            if (widest.plans.empty()) break;
        }
        const Plan& best = widest.plans.front();
        report.frontier_one_layout[k] =
            OneLayout{best, simulated(subjects.all, best, "wavefront").step_s, ranks};
        if (ranks == report.found.plans.front().ranks) report.one_layout = report.frontier_one_layout[k];
    }
}

}  // namespace

std::vector<config::KeyValue> keys_of(const Plan& plan, const config::Deck& deck) {
    std::vector<config::KeyValue> keys;
    for (std::size_t s = 0; s < deck.sections.size(); ++s) {
        const config::Section& now = deck.sections[s];
        const Choice& choice = plan.choices[s];
        const std::string prefix = "section." + now.name + ".";
        const auto set = [&](const char* key, const auto& wanted, const auto& present) {
            if (wanted == present) return;
            if constexpr (std::is_arithmetic_v<std::decay_t<decltype(wanted)>>)
                keys.emplace_back(prefix + key, fmt::format("{}", wanted));
            else
                keys.emplace_back(prefix + key, fmt::format("\"{}\"", wanted));
        };
        const auto host = static_cast<std::size_t>(plan.host_of[s]);
        set("colocate_with", host == s ? std::string() : deck.sections[host].name, now.colocate_with);
        set("micro_batch", std::int64_t{choice.micro_batch}, now.micro_batch);
        // Open windows are chosen again from the same memory.
        const graph::Section& section = plan.scenario.graph.sections[s];
        set("window", std::int64_t{section.window}, now.window);
        if (section.backward) {
            set("recompute", std::string(word_of(choice.recompute)), deck.recompute_of(now));
            set("recompute_layers", std::int64_t{choice.recompute_layers}, now.recompute_layers);
        }
        const graph::Layout &l = choice.layout, &m = now.layout;
        set("layout.dp", l.dp, m.dp);
        set("layout.tp", l.tp, m.tp);
        set("layout.cp", l.cp, m.cp);
        if (l.cp > 1)
            set("layout.cp_kind", std::string(l.cp_kind == ContextKind::ring ? "ring" : "all-to-all"),
                now.cp_kind);
        set("layout.pp", l.pp, m.pp);
        set("layout.chunks", l.chunks, m.chunks);
        set("layout.ep", l.ep, m.ep);
        set("layout.etp", l.etp, m.etp);
        if (!m.layers.empty() && l.layers != m.layers) keys.emplace_back(prefix + "layout.stages", "[]");
        set("layout.first_rank", section.layout.first_rank, m.first_rank);
    }
    return keys;
}

void run_plan(const config::CommandLine& line, const config::Deck& deck, const std::string& text,
              workload::Scenario scenario, const recorded::Run* measured) {
    const auto start = std::chrono::steady_clock::now();
    if (const auto folder = std::filesystem::path(line.out).parent_path();
        !line.out.empty() && !folder.empty() && !std::filesystem::is_directory(folder))
        throw Error(ExitCode::cannot_create,
                    fmt::format("--out {}: there is no folder {}", line.out, folder.string()),
                    Scope::all_ranks);
    if (deck.run.precision == "fp64")
        throw Error(ExitCode::bad_deck,
                    line.deck +
                        ": run.precision: fp64, for which cluster files have no rates; add --set "
                        "run.precision=fp32 or bf16",
                    Scope::all_ranks);
    check_fixed(line.fixed, deck);
    const IsFixed is_fixed = fixed_by(line.fixed);
    const int own_ranks = scenario.graph.world;
    const std::unique_ptr<data::Samples> source = workload::training_samples(deck, scenario);
    const data::Samples& samples = *source;
    scenario.markers = samples.markers();
    workload::check_samples(scenario, samples);
    scenario =
        opened(workload::on_cluster(std::move(scenario),
                                    config::parse_cluster(config::read_text(line.cluster), line.cluster)),
               is_fixed);
    if (measured) recorded::add_corrections(scenario, deck, *measured);
    workload::SampleTable table = workload::table_of(scenario, samples);
    workload::check_lengths(scenario, table, samples.name());

    Report report{.cluster = scenario.cluster->name,
                  .samples = scenario.global_batch,
                  .least_ranks = line.least_ranks > 0 ? line.least_ranks : own_ranks,
                  .ranks = line.ranks > 0 ? line.ranks : own_ranks,
                  .price = scenario.cluster->node_hour_price,
                  .ranks_per_node = scenario.cluster->ranks_per_node};
    report.pays_all = report.least_ranks == report.ranks;
    const auto steps_with = [&](std::int64_t enough) {  // samples
        constexpr std::int64_t kMost = 4;
        return static_cast<std::size_t>(
            std::clamp<std::int64_t>((enough + report.samples - 1) / report.samples, 1, kMost));
    };
    report.searched = steps_with(256);
    report.steps = steps_with(1024);
    workload::DataOrder order(scenario.seed, table.size(), scenario.global_batch);
    table.keep_extremes(static_cast<int>(std::min<std::int64_t>(scenario.global_batch, table.size())));
    workload::Probes probes;
    workload::Estimates estimates(table, probes);
    Subject subject{.scenario = scenario,
                    .table = table,
                    .probes = probes,
                    .device = workload::rank_device_of(*scenario.cluster, deck.run),
                    .options = workload::plan_options_of(deck),
                    .estimates = estimates,
                    .steps = {},
                    .effort = {.moves = deck.schedule.moves},
                    .dispatch = deck.schedule.dispatch == "ready" ? schedule::Dispatch::ready
                                                                  : schedule::Dispatch::planned,
                    .is_fixed = is_fixed};
    for (int s = 0; s < static_cast<int>(scenario.graph.sections.size()); ++s)
        report.chooses_recompute = report.chooses_recompute || is_recompute_free(scenario, s, is_fixed);
    report.device_memory = subject.device.memory;
    report.most_memory = most_memory(subject.device);
    for (std::size_t k = 0; k < report.steps; ++k) {
        const std::span<const std::int64_t> ids = order.batch(static_cast<std::int64_t>(k));
        subject.steps.emplace_back(ids.begin(), ids.end());
    }
    Subject on_all_steps = subject;
    on_all_steps.mixed = true;
    subject.steps.resize(report.searched);
    subject.effort.brief = true;
    const Subjects subjects{subject, on_all_steps};
    const Ratings ratings = rate(subject, report.ranks, !report.pays_all);
    std::size_t rated = 0;
    for (const std::vector<Rated>& section : ratings.sections) rated += section.size();
    log::info("{} choices of {} sections are rated, after {:.1f} s", rated, ratings.sections.size(),
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    for (std::size_t s = 0; s < ratings.sections.size(); ++s)
        if (const Rated& least = ratings.smallest[s];
            ratings.sections[s].empty() && std::isfinite(least.bytes))
            report.shortages.push_back({scenario.graph.sections[s].name, least.choice, least.bytes});
    // What is known before: the deck's layouts, and those of a framework with one.
    std::vector<Plan> known;
    const auto [choices, host_of] = choices_of(scenario);
    if (scenario.graph.world <= report.ranks)
        if (std::optional<Plan> plan = plan_of(subject, choices, host_of, deck.schedule.policy))
            known.push_back(*plan);
    const bool by_wavefront = deck.schedule.policy == "wavefront";
    Found one = search(subject, ratings, one_layout_limits(report.ranks));
    // In the order of a wavefront it is a plan like any other, with whole recomputation and with less of it.
    const auto add_in_order = [&] {
        if (one.plans.empty() || !by_wavefront || !keeps_colocation(subject, one.plans.front().host_of))
            return;
        const auto is_same = [&](const Plan& plan) { return have_same_choices(plan, one.plans.front()); };
        if (std::none_of(known.begin(), known.end(), is_same))
            known.push_back(simulated(subject, one.plans.front(), "wavefront"));
    };
    add_in_order();
    recompute_fewer_layers(subject, "fifo", one);
    one.plans = subjects.on_all_steps(one.plans, "fifo");
    add_in_order();
    if (report.pays_all && !one.plans.empty())
        report.one_layout = OneLayout{
            one.plans.front(), simulated(on_all_steps, one.plans.front(), "wavefront").step_s, report.ranks};
    // Of the best plans it is found out how much they lose where rates are wrong.
    const auto share = [&](double plans) {
        return std::max(line.top, static_cast<int>(std::ceil(plans * effort_of(subject))));
    };
    Limits limits{.ranks = report.ranks, .keep = share(8), .policy = deck.schedule.policy};
    report.found = best_of(subjects, ratings, limits, known);
    report.found.simulated += one.simulated;
    if (!report.pays_all && !report.found.plans.empty()) {
        // The fastest plan of up to so many ranks is also that of every number from those that it uses.
        report.frontier.push_back(report.found.plans.front());
        std::vector<Plan> all = report.found.plans;
        for (int ranks = report.frontier.back().ranks - 1; ranks >= report.least_ranks;
             ranks = report.frontier.back().ranks - 1) {
            limits.ranks = ranks;
            Found found = best_of(subjects, ratings, limits, known);
            report.found.simulated += found.simulated;
            report.found.bounded += found.bounded;
            report.found.proved = report.found.proved && found.proved;
            if (found.plans.empty()) break;
            report.frontier.push_back(found.plans.front());
            for (Plan& plan : found.plans)
                if (std::none_of(all.begin(), all.end(),
                                 [&](const Plan& other) { return have_same_choices(plan, other); }))
                    all.push_back(std::move(plan));
        }
        // With idle ranks a plan of fewer than were asked for may be the fastest.
        const auto too_few = [&](const Plan& plan) { return plan.ranks < report.least_ranks; };
        if (std::any_of(all.begin(), all.end(), [&](const Plan& plan) { return !too_few(plan); })) {
            std::erase_if(all, too_few);
            std::erase_if(report.frontier, too_few);
        }
        std::stable_sort(all.begin(), all.end(), [&](const Plan& a, const Plan& b) {
            return report.tokens_per_rank_hour(a) > report.tokens_per_rank_hour(b);
        });
        all.resize(std::min(all.size(), static_cast<std::size_t>(limits.keep)));
        report.found.plans = std::move(all);
        std::reverse(report.frontier.begin(), report.frontier.end());
        compare_with_one_layout(report, subjects, ratings, one);
    }
    report.found.plans.resize(std::min(report.found.plans.size(), static_cast<std::size_t>(share(5))));
    const auto paid = [&](const Plan& plan) { return report.paid(plan); };
    // The deck's own plan may be no alternative at all.
    constexpr double kSlowest = 10;
    std::erase_if(report.found.plans, [&](const Plan& plan) {
        return report.tokens_per_rank_hour(plan) * kSlowest <
               report.tokens_per_rank_hour(report.found.plans.front());
    });
    find_worst_losses(subject, report.found.plans, deck.schedule.policy, paid);
    if (line.robust) most_robust_first(report.found.plans, paid);
    report.found.plans.resize(std::min(report.found.plans.size(), static_cast<std::size_t>(line.top)));
    if (report.found.plans.empty())
        report.changes = changes_of(subject, report, line.fixed);
    else if (!scenario.cluster->corrections.empty())
        report.measured_share = workload::corrected_work(report.found.plans.front().scenario, table, probes,
                                                         subject.steps.front())
                                    .measured_share;
    report.search_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    log::info("{}", describe(report));
    if (!line.out.empty() && !report.found.plans.empty()) {
        std::vector<config::KeyValue> keys;
        for (const std::string& set : line.set) {
            const std::size_t equals = set.find('=');
            const std::string key = set.substr(0, equals);
            const bool is_text = deck.texts.contains(key);
            keys.emplace_back(key,
                              is_text ? config::toml_text(deck.settings.at(key)) : deck.settings.at(key));
        }
        std::vector<config::KeyValue> planned = keys_of(report.found.plans.front(), deck);
        keys.insert(keys.end(), planned.begin(), planned.end());
        write_text_file(line.out, config::with_keys(text, line.deck, keys));
        log::info("wrote {}", line.out);
    }
    log::info("{}", to_json(report));
    if (report.found.plans.empty())
        throw Error(ExitCode::bad_deck, line.deck + ": " + lack_of(report) + help_of(report),
                    Scope::all_ranks);
}

}  // namespace maestro::plan
