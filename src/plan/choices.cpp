#include "plan/choices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "model/kind.hpp"

namespace maestro::plan {

namespace {

/// The values of a key: `values`, and the deck's own; or the deck's alone, where it is fixed.
std::vector<int> values_of(std::set<int> values, int deck, bool fixed) {
    if (fixed) return {deck};
    values.insert(deck);
    return {values.begin(), values.end()};
}

std::set<int> powers_of_two(int most) {
    std::set<int> powers;
    for (int p = 1; p <= most; p *= 2) powers.insert(p);
    return powers;
}

std::set<int> divisors_of(int number, int most) {
    std::set<int> divisors;
    for (int d = 1; d <= std::min(number, most); ++d)
        if (number % d == 0) divisors.insert(d);
    return divisors;
}

std::set<int> up_to(int most) {
    std::set<int> numbers;
    for (int n = 1; n <= most; ++n) numbers.insert(n);
    return numbers;
}

/// The numbers of replicas that are tried: above some, those that have much in common with others.
std::set<int> replicas(int most) {
    constexpr int kAll = 512;
    std::set<int> found = up_to(std::min(most, kAll));
    for (int n = kAll + 1; n <= most; ++n) {
        int rest = n;
        for (const int prime : {2, 3, 5, 7, 11, 13})
            while (rest % prime == 0) rest /= prime;
        if (rest == 1) found.insert(n);
    }
    return found;
}

/// The degrees of pipelines that are tried.
std::set<int> depths(int most) {
    std::set<int> depths = up_to(std::min(most, 8));
    depths.merge(powers_of_two(most));
    return depths;
}

}  // namespace

const char* word_of(Recompute recompute) {
    return recompute == Recompute::layer ? "layer" : recompute == Recompute::cheap ? "cheap" : "none";
}

std::string describe(const Choice& choice) {
    const graph::Layout& l = choice.layout;
    std::string text = fmt::format("dp {}", l.dp);
    if (l.tp > 1) text += fmt::format(" tp {}", l.tp);
    if (l.cp > 1) text += fmt::format(" cp {}{}", l.cp, l.cp_kind == ContextKind::ring ? "" : " all-to-all");
    if (l.pp > 1)
        text += l.chunks > 1 ? fmt::format(" pp {}x{}", l.pp, l.chunks) : fmt::format(" pp {}", l.pp);
    if (l.ep > 1) text += fmt::format(" ep {}", l.ep);
    if (l.etp > 1) text += fmt::format(" etp {}", l.etp);
    if (choice.micro_batch > 1) text += fmt::format(" mb {}", choice.micro_batch);
    if (choice.recompute != Recompute::none) text += fmt::format(" {}", word_of(choice.recompute));
    if (choice.recompute_layers > 0) text += fmt::format(" {}", choice.recompute_layers);
    return text;
}

bool is_recompute_free(const workload::Scenario& scenario, int section, const IsFixed& is_fixed) {
    const graph::Section& deck = scenario.graph.sections[section];
    const std::string key = fmt::format("section.{}.recompute", deck.name);
    return deck.backward && !is_fixed(key) && !is_fixed(key + "_layers") && !is_fixed("train.recompute");
}

std::vector<Choice> choices_of(const workload::Scenario& scenario, int section, int ranks,
                               const IsFixed& is_fixed) {
    const graph::Section& deck = scenario.graph.sections[section];
    const model::ModelSpec& model = scenario.models[section];
    const workload::Tuning& tuning = scenario.tuning[section];
    const graph::Layout& l = deck.layout;
    const auto fixed = [&](const char* key) {
        return is_fixed(fmt::format("section.{}.{}", deck.name, key));
    };
    const bool has_experts = model.experts.count > 0;
    const bool keeps_stages = fixed("layout.stages") && !l.layers.empty();
    const auto micro_batches =
        values_of(powers_of_two(static_cast<int>(std::min<std::int64_t>(scenario.global_batch, 16))),
                  deck.micro_batch, fixed("micro_batch"));
    std::vector<Recompute> recomputes{tuning.recompute};
    const bool keeps_recompute = !is_recompute_free(scenario, section, is_fixed);
    if (!keeps_recompute) recomputes = {Recompute::none, Recompute::cheap, Recompute::layer};
    std::vector<Choice> choices;
    for (const int tp : values_of(up_to(std::min(ranks, 4096)), l.tp, fixed("layout.tp"))) {
        graph::Section tried = deck;
        tried.layout = {.tp = tp};
        const auto refused = [&] {
            std::vector<graph::Refusal> refusals;
            workload::check_layouts({tried}, {model}, refusals);
            return !refusals.empty();
        };
        if (refused()) continue;
        for (const int cp : values_of(powers_of_two(ranks / tp), l.cp, fixed("layout.cp")))
            for (const ContextKind kind : {ContextKind::ring, ContextKind::all_to_all}) {
                if (cp == 1 && kind != ContextKind::ring) continue;
                if (cp > 1 && kind != l.cp_kind && fixed("layout.cp_kind")) continue;
                tried.layout = {.tp = tp, .cp = cp, .cp_kind = kind};
                if (refused()) continue;
                const int left = ranks / (tp * cp);
                for (const int pp : values_of(depths(std::min(left, model.layers)), l.pp, fixed("layout.pp")))
                    for (const int chunks : values_of({1, 2, 4}, l.chunks, fixed("layout.chunks"))) {
                        if ((pp == 1 && chunks > 1) || pp * chunks > model.layers || pp > left) continue;
                        if (keeps_stages && (pp != l.pp || chunks != l.chunks)) continue;
                        for (const int dp :
                             values_of(replicas(left / pp), std::min(l.dp, left / pp), fixed("layout.dp"))) {
                            if (fixed("layout.dp") && dp != l.dp) continue;
                            const int stage_ranks = dp * cp * tp;
                            for (const int ep :
                                 values_of(has_experts ? divisors_of(model.experts.count, stage_ranks)
                                                       : std::set{1},
                                           has_experts ? l.ep : 1, has_experts && fixed("layout.ep")))
                                for (const int etp :
                                     values_of(has_experts ? divisors_of(tp, tp) : std::set{1},
                                               has_experts ? l.etp : 1, has_experts && fixed("layout.etp"))) {
                                    tried.layout = {.dp = dp,
                                                    .tp = tp,
                                                    .cp = cp,
                                                    .pp = pp,
                                                    .ep = ep,
                                                    .etp = etp,
                                                    .cp_kind = kind,
                                                    .chunks = chunks,
                                                    .layers = {},
                                                    .first_rank = l.first_rank};
                                    if (keeps_stages) tried.layout.layers = l.layers;
                                    if (stage_ranks % (ep * etp) != 0 || (ep * etp > 1 && refused()))
                                        continue;
                                    for (const int micro_batch : micro_batches) {
                                        // The next smaller one holds a replica's even share of the batch.
                                        if (micro_batch / 2 * std::int64_t{dp} >= scenario.global_batch &&
                                            micro_batch != micro_batches.front())
                                            continue;
                                        for (const Recompute recompute : recomputes)
                                            choices.push_back(
                                                {.layout = tried.layout,
                                                 .micro_batch = micro_batch,
                                                 .recompute = recompute,
                                                 .recompute_layers =
                                                     keeps_recompute ? tuning.recompute_layers : 0});
                                    }
                                }
                        }
                    }
            }
    }
    return choices;
}

std::vector<int> apart(std::size_t sections) {
    std::vector<int> host_of(sections);
    std::iota(host_of.begin(), host_of.end(), 0);
    return host_of;
}

workload::Scenario with_choices(workload::Scenario base, const std::vector<Choice>& choices,
                                const std::vector<int>& host_of, std::vector<graph::Refusal>& refusals) {
    std::vector<graph::Section> sections = base.graph.sections;
    for (std::size_t s = 0; s < sections.size(); ++s) {
        sections[s].layout = choices[s].layout;
        sections[s].micro_batch = choices[s].micro_batch;
        const auto host = static_cast<std::size_t>(host_of[s]);
        sections[s].colocate_with = host == s ? "" : sections[host].name;
        base.tuning[s].recompute = choices[s].recompute;
        base.tuning[s].recompute_layers = choices[s].recompute_layers;
    }
    return workload::with_sections(std::move(base), std::move(sections), refusals);
}

}  // namespace maestro::plan
