// Whether layouts, models and batches fit together.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "model/kind.hpp"
#include "workload/models.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

namespace {

std::string section_key(const graph::Section& section, const char* key) {
    return fmt::format("section.{}.{}", section.name, key);
}

/// Returns the first text that `ask` has about a mixer of the model, or an empty one.
template <class Ask>
std::string first_of_mixers(const model::ModelSpec& m, const Ask& ask) {
    for (const model::MixerForm& form : m.mixers)
        if (std::string text = std::visit(ask, form); !text.empty()) return text;
    return {};
}

/// The most ranks that can split all mixers of a model.
int most_ranks(const model::ModelSpec& m) {
    int most = std::numeric_limits<int>::max();
    for (const model::MixerForm& form : m.mixers)
        most = std::min(most, std::visit([](const auto& of) { return of.most_ranks(); }, form));
    return most;
}

/// The next smaller and the next larger degree that `works` accepts, of those up to `most`: "2 or 4".
template <class Works>
std::string nearest_degrees(int degree, int most, const Works& works) {
    std::vector<int> near;
    for (int d = std::min(degree, most); d >= 1 && near.empty(); --d)
        if (works(d)) near.push_back(d);
    for (int d = degree + 1; d <= most; ++d)
        if (works(d)) {
            near.push_back(d);
            break;
        }
    return fmt::format("{}", fmt::join(near, " or "));
}

/// tp ranks split every mixer. Returns whether they can.
bool check_tp(const graph::Section& section, const model::ModelSpec& m,
              std::vector<graph::Refusal>& refusals) {
    const std::string key = section_key(section, "layout.tp");
    const int tp = section.layout.tp;
    const auto not_split_by = [&](int degree) {
        return first_of_mixers(m, [&](const auto& form) { return form.not_split_by(degree); });
    };
    if (const std::string what = not_split_by(tp); !what.empty()) {
        const auto works = [&](int degree) { return not_split_by(degree).empty(); };
        refusals.push_back(
            {key, fmt::format("{} ranks cannot split the {} of model.{} evenly; the nearest that can: {}", tp,
                              what, m.name, nearest_degrees(tp, most_ranks(m), works))});
        return false;
    }
    const bool dense = m.experts.count == 0 || m.experts.dense_layers > 0;
    std::vector<std::pair<const char*, int>> sizes{{"width", m.width}};
    if (dense) sizes.emplace_back("mlp", m.mlp);
    for (const auto& of_kind : model::kind_of(m).split_sizes(m)) sizes.push_back(of_kind);
    for (const auto& [what, size] : sizes)
        if (size > 0 && tp > size)  // 0: missing, which is refused by itself
            refusals.push_back(
                {key, fmt::format("{} ranks are more than model.{}.{}, which they split; allowed: at most {}",
                                  tp, m.name, what, size)});
    return true;
}

/// With all-to-all, cp ranks split what tp leaves of every mixer.
void check_cp(const graph::Section& section, const model::ModelSpec& m,
              std::vector<graph::Refusal>& refusals) {
    const graph::Layout& l = section.layout;
    if (l.cp_kind != ContextKind::all_to_all) return;
    const auto not_split_by = [&](int cp) {
        return first_of_mixers(m, [&](const auto& form) { return form.not_split_by(l.tp, cp); });
    };
    const std::string what = not_split_by(l.cp);
    if (what.empty()) return;
    const auto works = [&](int cp) { return not_split_by(cp).empty(); };
    refusals.push_back(
        {section_key(section, "layout.cp"),
         fmt::format("with cp_kind = \"all-to-all\" {} ranks split the {} that tp = {} leaves of model.{}, "
                     "which is not possible evenly; the nearest that can: {}; or cp_kind = \"ring\", which "
                     "allows any",
                     l.cp, what, l.tp, m.name, nearest_degrees(l.cp, most_ranks(m), works))});
}

/// A section has at most kMaxStages stages, `layout.stages` lists each of them, and only a pipeline has
/// chunks.
bool check_chunks(const graph::Section& section, std::vector<graph::Refusal>& refusals) {
    constexpr std::int64_t kMaxStages = 4096;
    const graph::Layout& l = section.layout;
    const std::int64_t stages = std::int64_t{l.pp} * l.chunks;
    if (stages > kMaxStages) {
        refusals.push_back(
            {section_key(section, l.chunks > 1 ? "layout.chunks" : "layout.pp"),
             fmt::format("pp x chunks are {} stages; allowed: at most {}", stages, kMaxStages)});
        return false;
    }
    if (!l.layers.empty() && static_cast<std::int64_t>(l.layers.size()) != stages) {
        refusals.push_back({section_key(section, "layout.stages"),
                            fmt::format("[{}] are {} stages; needed: {} (pp x chunks)",
                                        fmt::join(l.layers, ", "), l.layers.size(), stages)});
        return false;
    }
    if (l.chunks > 1 && l.pp == 1) {
        refusals.push_back({section_key(section, "layout.chunks"),
                            fmt::format("{} chunks divide the stages of a pipeline; allowed without "
                                        "layout.pp: 1",
                                        l.chunks)});
        return false;
    }
    return true;
}

/// Experts and their channels divide evenly among ep x etp ranks.
void check_experts(const graph::Section& section, const model::ModelSpec& m,
                   std::vector<graph::Refusal>& refusals) {
    const graph::Layout& l = section.layout;
    const auto check = [&](const char* degree, int value, const char* what, int size) {
        const auto fits = [&](int ranks) { return size % ranks == 0; };
        if (value > 1 && !fits(value))
            refusals.push_back(
                {section_key(section, degree),
                 fmt::format("{} ranks cannot split the {} {} of model.{} evenly; the nearest that "
                             "can: {}",
                             value, size, what, m.name, nearest_degrees(value, size, fits))});
        return value == 1 || fits(value);
    };
    if (m.experts.count == 0) {
        for (const auto& [key, value] : {std::pair{"layout.ep", l.ep}, std::pair{"layout.etp", l.etp}})
            if (value != 1)
                refusals.push_back(
                    {section_key(section, key),
                     fmt::format("{}, but model.{} has no experts; allowed: 1", value, m.name)});
        return;
    }
    if (check("layout.ep", l.ep, "experts", m.experts.count))
        check("layout.etp", l.etp, "channels of an expert", m.experts.mlp);
}

/// Every stage has at least one layer, and all stages have all layers.
void check_stages(const graph::Section& section, const model::ModelSpec& m,
                  std::vector<graph::Refusal>& refusals) {
    const graph::Layout& l = section.layout;
    const std::int64_t stages = std::int64_t{l.pp} * l.chunks;
    if (stages > m.layers) {
        refusals.push_back(
            {section_key(section, l.chunks > 1 && l.pp <= m.layers ? "layout.chunks" : "layout.pp"),
             fmt::format(
                 "{} stages are more than the {} layers of model.{}; allowed: at most {} (pp x chunks)",
                 stages, m.layers, m.name, m.layers)});
        return;
    }
    if (l.layers.empty()) return;
    const int sum = std::accumulate(l.layers.begin(), l.layers.end(), 0);
    const bool positive = std::all_of(l.layers.begin(), l.layers.end(), [](int n) { return n >= 1; });
    if (sum != m.layers || !positive)
        refusals.push_back({section_key(section, "layout.stages"),
                            fmt::format("[{}] have {} layers; needed: the {} of model.{}, at least 1 each",
                                        fmt::join(l.layers, ", "), sum, m.layers, m.name)});
}

/// Whether both edges bring a section the same: hidden states, or embeddings of one kind of item.
bool bring_alike(const Scenario& scenario, const graph::Edge& a, const graph::Edge& b) {
    return a.to == b.to && a.tensor == b.tensor &&
           (a.tensor == EdgeTensor::hidden ||
            model::Units(scenario.models[a.from]).reads_as(model::Units(scenario.models[b.from])));
}

/// A section takes hidden states of one section and embeddings of one for each kind of item, and feeds
/// sections of one width.
void check_siblings(const Scenario& scenario, std::size_t edge, std::vector<graph::Refusal>& refusals) {
    const graph::Edge& e = scenario.graph.edges[edge];
    const std::string key = fmt::format("edge.{}-{}.to", e.from_name, e.to_name);
    for (std::size_t j = 0; j < edge; ++j) {
        const graph::Edge& other = scenario.graph.edges[j];
        if (bring_alike(scenario, e, other))
            refusals.push_back(
                {key,
                 fmt::format("'{}' receives {} from '{}' already; more than one such edge is not built yet",
                             e.to_name, e.tensor == EdgeTensor::hidden ? "hidden" : "embeddings",
                             other.from_name)});
        if (other.from == e.from && e.tensor == EdgeTensor::embeddings &&
            scenario.models[other.to].width != scenario.models[e.to].width)
            refusals.push_back(
                {key,
                 fmt::format("'{}' feeds sections of different width ({} and {}); that is not built yet",
                             e.from_name, scenario.models[other.to].width, scenario.models[e.to].width)});
    }
}

/// A student computes the loss, and its rows match its teacher's.
void check_teaching(const Scenario& scenario, const graph::Edge& e, std::vector<graph::Refusal>& refusals) {
    if (!scenario.graph.sections[e.to].loss)
        refusals.push_back(
            {fmt::format("edge.{}-{}.to", e.from_name, e.to_name),
             fmt::format("hidden states teach a section that computes the loss, '{}' has an outgoing edge",
                         e.to_name)});
    if (encoders_of(scenario, e.from) != encoders_of(scenario, e.to))
        refusals.push_back(
            {fmt::format("edge.{}-{}.from", e.from_name, e.to_name),
             "teacher and student see pictures differently, so their rows do not match; give both "
             "an encoder of the same patch and merge, or neither"});
}

/// An encoder fits the section that it feeds.
void check_encoder(const Scenario& scenario, const graph::Edge& e, std::vector<graph::Refusal>& refusals) {
    const model::ModelSpec &encoder = scenario.models[e.from], &fed = scenario.models[e.to];
    if (encoder.output_width > 0 && encoder.output_width != fed.width)
        refusals.push_back({"model." + encoder.name + ".output_width",
                            fmt::format("{} here, but '{}', which it feeds, has the width {}",
                                        encoder.output_width, e.to_name, fed.width)});
    if (encoder.deepstack.empty()) return;
    const graph::Layout& layout = scenario.graph.sections[e.from].layout;
    if (layout.stage_count() > 1)
        refusals.push_back({section_key(scenario.graph.sections[e.from], "layout.pp"),
                            fmt::format("{} stages of an encoder with deepstack are not built; allowed: 1",
                                        layout.stage_count())});
    const graph::Section& to = scenario.graph.sections[e.to];
    const int most = to.layout.layers.empty() ? fed.layers - to.layout.stage_count() + 1
                                              : to.layout.layers.front(),
              needed = static_cast<int>(encoder.deepstack.size());
    if (needed > most)
        refusals.push_back({section_key(to, to.layout.layers.empty() ? "layout.pp" : "layout.stages"),
                            fmt::format("the first stage has {} layers, but '{}' delivers rows for {} "
                                        "(deepstack), all of which have to be in it",
                                        most, e.from_name, needed)});
}

}  // namespace

void check_layouts(const std::vector<graph::Section>& sections, const std::vector<model::ModelSpec>& models,
                   std::vector<graph::Refusal>& refusals) {
    for (std::size_t s = 0; s < sections.size(); ++s) {
        const graph::Section& section = sections[s];
        const graph::Layout& l = section.layout;
        bool counts = true;
        for (const auto& [key, degree] :
             {std::pair{"layout.dp", l.dp}, std::pair{"layout.tp", l.tp}, std::pair{"layout.cp", l.cp},
              std::pair{"layout.pp", l.pp}, std::pair{"layout.chunks", l.chunks},
              std::pair{"layout.ep", l.ep}, std::pair{"layout.etp", l.etp}})
            if (degree < 1) {
                refusals.push_back({section_key(section, key),
                                    fmt::format("{} is out of range; allowed: at least 1", degree)});
                counts = false;
            }
        counts = counts && check_chunks(section, refusals);
        if (!counts || models[s].name.empty()) continue;  // only the times of its tasks are known
        check_stages(section, models[s], refusals);
        check_experts(section, models[s], refusals);
        if (check_tp(section, models[s], refusals)) check_cp(section, models[s], refusals);
    }
}

void check_edges(const Scenario& scenario, std::vector<graph::Refusal>& refusals) {
    const graph::SectionGraph& graph = scenario.graph;
    for (std::size_t i = 0; i < graph.edges.size(); ++i) {
        const graph::Edge& e = graph.edges[i];
        const graph::Section &up = graph.sections[e.from], &down = graph.sections[e.to];
        if (up.kind == graph::Kind::any) continue;  // only the times of its tasks are known
        check_siblings(scenario, i, refusals);
        if (e.tensor == EdgeTensor::hidden)
            check_teaching(scenario, e, refusals);
        else
            check_encoder(scenario, e, refusals);
        if (up.layout.tp > scenario.models[e.to].width)
            refusals.push_back(
                {section_key(up, "layout.tp"),
                 fmt::format(
                     "{} ranks are more than the width of '{}', which they split; allowed: at most {}",
                     up.layout.tp, down.name, scenario.models[e.to].width)});
        // A micro-batch downstream starts when all of its samples have arrived, until when all of them are in
        // flight upstream: a smaller window would never let it start.
        const int whole = scenario.full_lane_micro_batch(e.to), batch = up.lane_micro_batch();
        if (up.window > 0 && std::int64_t{up.window} * batch < whole)
            refusals.push_back(
                {section_key(up, "window"),
                 fmt::format("{} micro-batches of {} samples in flight are fewer than the {} samples of a "
                             "micro-batch of '{}'; allowed: at least {}, or 0",
                             up.window, batch, whole, down.name, (whole + batch - 1) / batch)});
    }
    for (const graph::Edge& e : graph.edges)
        if (e.tensor == EdgeTensor::hidden && graph.sections[e.from].kind != graph::Kind::any &&
            scenario.models[e.from].vocabulary != scenario.models[e.to].vocabulary)
            refusals.push_back({"model." + scenario.models[e.to].name + ".vocabulary",
                                fmt::format("student and teacher need one vocabulary, '{}' has {}",
                                            e.from_name, scenario.models[e.from].vocabulary)});
}

}  // namespace maestro::workload
