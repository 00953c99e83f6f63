#include "config/deck.hpp"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <set>

#include "base/error.hpp"
#include "base/text_file.hpp"
#include "config/table_reader.hpp"

namespace maestro::config {

namespace {

constexpr std::size_t kLargestDeck = 1 << 20;

/// Reads tables into the deck's structs and collects what is wrong.
class DeckReader {
public:
    DeckReader(std::string path, Command command, Times times)
        : tables_(std::move(path)), needs_(needs_of(command, times)), times_(times) {}

    Deck read(const toml::table& root, const std::vector<std::string>& overrides);
    TableReader& tables() { return tables_; }

private:
    void fail(const toml::source_region& where, const std::string& key, const std::string& what) {
        tables_.fail(where, key, what);
    }
    void fail_at(const std::string& key, const std::string& what) { tables_.fail_at(key, what); }
    void fill(const toml::table& table, const std::string& prefix, const std::vector<Key>& keys,
              const std::set<std::string>& inner = {}) {
        tables_.fill(table, prefix, keys, inner);
    }
    bool good() const { return tables_.errors().empty(); }
    /// Of a section's model; any where the times are given.
    graph::Kind kind_of(const std::string& kind) const {
        if (times_ == Times::given) return graph::Kind::any;
        return kind == "vision" ? graph::Kind::vision : graph::Kind::language;
    }
    void read_tables(const toml::table& root, Deck& deck);
    void read_models(const toml::table& root, Deck& deck);
    void read_sections(const toml::table& root, Deck& deck);
    void read_edges(const toml::table& root, Deck& deck);
    std::vector<const toml::table*> tables_of(const toml::table& root, const char* key);

    void finish(Deck& deck);
    void finish_models(Deck& deck);
    std::vector<graph::Section> graph_sections(const Deck& deck);
    void check_layout(const Section& s, const Model& m);
    void check_edges(const Deck& deck);
    void check_vocabularies(const Deck& deck);
    void check_device(const Deck& deck);

    TableReader tables_;
    Needs needs_;
    Times times_;
};

/// Tables of one kind each, and those that nobody knows.
void DeckReader::read_tables(const toml::table& root, Deck& deck) {
    const toml::table empty;
    const std::vector<std::pair<std::string, std::function<void(const toml::table&)>>> tables = {
        {"run", [&](const auto& t) { fill(t, "run.", keys_of(deck.run, needs_)); }},
        {"data", [&](const auto& t) { fill(t, "data.", keys_of(deck.data, needs_)); }},
        {"train", [&](const auto& t) { fill(t, "train.", keys_of(deck.train, needs_)); }},
        {"optimizer", [&](const auto& t) { fill(t, "optimizer.", keys_of(deck.optimizer, needs_)); }},
        {"checkpoint", [&](const auto& t) { fill(t, "checkpoint.", keys_of(deck.checkpoint)); }},
        {"metrics", [&](const auto& t) { fill(t, "metrics.", keys_of(deck.metrics)); }},
        {"emulated", [&](const auto& t) { fill(t, "emulated.", keys_of(deck.emulated)); }},
        {"schedule", [&](const auto& t) { fill(t, "schedule.", keys_of(deck.schedule)); }},
    };
    std::vector<std::string> known{"model", "section", "edge"};
    for (const auto& [name, read_table] : tables) {
        known.push_back(name);
        const auto* node = root.get(name);
        if (node && !node->is_table())
            fail(node->source(), name, fmt::format("wrong type; allowed: a table, [{}]", name));
        read_table(node && node->is_table() ? *node->as_table() : empty);
    }
    for (const auto& [name, node] : root) {
        if (std::find(known.begin(), known.end(), name.str()) != known.end()) continue;
        const std::string near = nearest(std::string(name.str()), known);
        fail(node.source(), std::string(name.str()),
             fmt::format("unknown table; {}", near.empty() ? fmt::format("known: {}", fmt::join(known, ", "))
                                                           : "did you mean " + near + "?"));
    }
}

void DeckReader::read_models(const toml::table& root, Deck& deck) {
    if (const auto* models = root.get_as<toml::table>("model"))
        for (const auto& [name, node] : *models) {
            const std::string model_name(name.str());
            if (!node.is_table() || !good_name(model_name)) {
                fail(node.source(), "model." + model_name,
                     "needs a table [model.NAME], NAME of letters, digits, _ and -");
                continue;
            }
            Model& model = deck.models[model_name];
            model.name = model_name;
            model.kv_heads = model.head_dim = 0;
            fill(*node.as_table(), "model." + model_name + ".", keys_of(model));
        }
}

/// The tables [[key]].
std::vector<const toml::table*> DeckReader::tables_of(const toml::table& root, const char* key) {
    std::vector<const toml::table*> found;
    const auto* node = root.get(key);
    const auto* list = node ? node->as_array() : nullptr;
    if (node && !list) fail(node->source(), key, fmt::format("wrong type; write [[{}]]", key));
    for (std::size_t i = 0; list && i < list->size(); ++i) {
        if (const auto* table = (*list)[i].as_table())
            found.push_back(table);
        else
            fail((*list)[i].source(), key, fmt::format("wrong type; write [[{}]]", key));
    }
    return found;
}

void DeckReader::read_sections(const toml::table& root, Deck& deck) {
    const toml::table empty;
    const auto sections = tables_of(root, "section");
    deck.sections.resize(sections.size());  // keys point into it
    for (std::size_t i = 0; i < sections.size(); ++i) {
        const toml::table& table = *sections[i];
        const std::string name = table["name"].value_or(std::string(fmt::format("#{}", i + 1)));
        if (name.starts_with("#") || !good_name(name))
            fail(table.source(), "section.name",
                 "every [[section]] needs a name of letters, digits, _ and -");
        const std::string prefix = "section." + name + ".";
        fill(table, prefix, keys_of(deck.sections[i], needs_), {"layout", "distill"});
        for (const auto& [inner, keys] : {std::pair{"layout", layout_keys_of(deck.sections[i])},
                                          std::pair{"distill", keys_of(deck.sections[i].distill)}}) {
            const auto* node = table.get(inner);
            if (node && !node->is_table())
                fail(node->source(), prefix + inner, "wrong type; allowed: a table");
            fill(node && node->is_table() ? *node->as_table() : empty, prefix + inner + ".", keys);
        }
    }
}

void DeckReader::read_edges(const toml::table& root, Deck& deck) {
    const auto edges = tables_of(root, "edge");
    deck.edges.resize(edges.size());  // keys point into it
    for (std::size_t i = 0; i < edges.size(); ++i) {
        const toml::table& table = *edges[i];
        fill(table,
             fmt::format("edge.{}-{}.", table["from"].value_or(std::string("?")),
                         table["to"].value_or(std::string("?"))),
             keys_of(deck.edges[i]));
    }
}

Deck DeckReader::read(const toml::table& root, const std::vector<std::string>& overrides) {
    Deck deck;
    read_tables(root, deck);
    read_models(root, deck);
    read_sections(root, deck);
    read_edges(root, deck);
    tables_.override_with(overrides);
    tables_.check_required();
    if (good()) finish(deck);
    for (const auto& [name, key] : tables_.slots()) deck.settings[name] = text_of(key);
    deck.defaults = tables_.defaults();
    return deck;
}

/// What keys leave open, the graph, and what one key says of another.
void DeckReader::finish(Deck& deck) {
    finish_models(deck);
    std::vector<graph::Section> sections = graph_sections(deck);
    if (!good()) return;
    std::vector<graph::Edge> edges;
    for (const Edge& e : deck.edges)
        edges.push_back({.from_name = e.from,
                         .to_name = e.to,
                         .tensor = e.tensor == "hidden" ? EdgeTensor::hidden : EdgeTensor::embeddings});
    std::vector<graph::Refusal> refusals;
    deck.graph = graph::make_graph(std::move(sections), std::move(edges), refusals);
    for (const auto& refusal : refusals) fail_at(refusal.key, refusal.what);
    if (!refusals.empty()) return;
    if (times_ == Times::model) check_edges(deck);
    if (times_ == Times::model) check_vocabularies(deck);
    check_device(deck);
    if (deck.optimizer.decay_steps > 0 && deck.optimizer.decay_steps < deck.optimizer.warmup_steps)
        fail_at("optimizer.decay_steps", "ends before warmup_steps; it counts from the start of training");
    for (const auto& [key, value] : tables_.overrides())
        deck.text += fmt::format("# --set {}={}\n", key, value);
}

void DeckReader::finish_models(Deck& deck) {
    for (auto& [name, m] : deck.models) {
        const std::string key = "model." + name + ".";
        if (m.kv_heads == 0) m.kv_heads = m.heads;
        if (m.head_dim == 0) m.head_dim = m.width / m.heads;
        if (m.heads % m.kv_heads != 0)
            fail_at(key + "kv_heads", fmt::format("{} heads are no multiple of it", m.heads));
        const int unit = m.kind == "vision" ? 4 : 2;
        if (m.head_dim < unit || m.head_dim % unit != 0)
            fail_at(key + "head_dim", fmt::format("{} is no multiple of {}", m.head_dim, unit));
        if (m.kind == "language" && m.vocabulary == 0)
            fail_at(key + "vocabulary", "missing; a language model needs it");
    }
}

std::vector<graph::Section> DeckReader::graph_sections(const Deck& deck) {
    std::vector<graph::Section> sections;
    for (const Section& s : deck.sections) {
        const std::string key = "section." + s.name + ".";
        if (!good_name(s.name) || s.name == "train")
            fail_at(key + "name",
                    fmt::format("'{}' is no name of a section; allowed: letters, digits, _ and -, but not "
                                "'train', which names a file of every checkpoint",
                                s.name));
        const auto model = deck.models.find(s.model);
        if (needs_.models && model == deck.models.end()) {
            std::vector<std::string> names;
            for (const auto& [name, m] : deck.models) names.push_back(name);
            fail_at(key + "model",
                    fmt::format("there is no [model.{}]; models: {}", s.model, fmt::join(names, ", ")));
            continue;
        }
        for (const auto& [name, degree] : {std::pair{"pp", s.layout.pp}, std::pair{"ep", s.layout.ep}})
            if (degree != 1)
                fail_at(key + "layout." + name, fmt::format("{} is not built yet; allowed: 1", degree));
        if (model != deck.models.end()) check_layout(s, model->second);
        if (needs_.models && s.weights.ends_with(".safetensors"))
            fail_at(key + "weights",
                    "foreign weights are not built yet; allowed: a Maestro run or checkpoint, or \"random\"");
        if (needs_.models && s.mode == "forward" && s.weights.empty())
            fail_at(key + "weights", "a frozen section needs weights: a run, a checkpoint, or \"random\"");
        sections.push_back({.name = s.name,
                            .kind = kind_of(model == deck.models.end() ? "" : model->second.kind),
                            .train = s.mode == "train",
                            .micro_batch = static_cast<int>(s.micro_batch),
                            .window = static_cast<int>(s.window),
                            .colocate_with = s.colocate_with,
                            .layout = s.layout});
        sections.back().layout.cp_kind = s.cp_kind == "ring" ? ContextKind::ring : ContextKind::all_to_all;
    }
    return sections;
}

/// Degrees that the sizes of the model do not allow.
void DeckReader::check_layout(const Section& s, const Model& m) {
    const auto either = [](std::int64_t a, std::int64_t b) { return a % b == 0 || b % a == 0; };
    const auto shares_heads = [&](std::int64_t tp) { return m.heads % tp == 0 && either(m.kv_heads, tp); };
    // The nearest smaller and larger ones that `works` allows, up to the heads.
    const auto nearest = [&](std::int64_t degree, const auto& works) {
        std::vector<std::int64_t> near;
        for (std::int64_t d = std::min(degree, m.heads); d >= 1 && near.empty(); --d)
            if (works(d)) near.push_back(d);
        for (std::int64_t d = degree + 1; d <= m.heads; ++d)
            if (works(d)) {
                near.push_back(d);
                break;
            }
        return fmt::format("{}", fmt::join(near, " or "));
    };
    const std::string key = "section." + s.name + ".layout.";
    const graph::Layout& l = s.layout;
    if (l.tp < 1 || l.cp < 1 || m.heads < 1 || m.kv_heads < 1) return;  // said already
    if (!shares_heads(l.tp)) {
        const bool queries = m.heads % l.tp != 0;
        fail_at(
            key + "tp",
            fmt::format("{} ranks cannot share out the {} {} of model.{} evenly; the nearest that can: {}",
                        l.tp, queries ? m.heads : m.kv_heads, queries ? "heads" : "kv_heads", s.model,
                        nearest(l.tp, shares_heads)));
        return;
    }
    for (const auto& [what, size] : {std::pair{"width", m.width}, std::pair{"mlp", m.mlp},
                                     std::pair{"vocabulary", m.kind == "language" ? m.vocabulary : m.width}})
        if (l.tp > size)
            fail_at(key + "tp",
                    fmt::format("{} ranks are more than model.{}.{}, which they share out; allowed: "
                                "at most {}",
                                l.tp, s.model, what, size));
    if (s.cp_kind != "all-to-all") return;
    const std::int64_t heads = m.heads / l.tp, keys = std::max<std::int64_t>(m.kv_heads / l.tp, 1);
    const auto exchanges = [&](std::int64_t cp) { return heads % cp == 0 && either(keys, cp); };
    if (!exchanges(l.cp))
        fail_at(
            key + "cp",
            fmt::format("with cp_kind = \"all-to-all\" {} ranks share out the {} heads and {} kv_heads "
                        "that tp = {} leaves of model.{}, which they cannot evenly; the nearest that can: "
                        "{}; or cp_kind = \"ring\", which takes any",
                        l.cp, heads, keys, l.tp, s.model, nearest(l.cp, exchanges)));
}

void DeckReader::check_vocabularies(const Deck& deck) {
    for (const auto& e : deck.graph.edges)
        if (e.tensor == EdgeTensor::hidden &&
            deck.model_of(e.from).vocabulary != deck.model_of(e.to).vocabulary)
            fail_at("model." + deck.model_of(e.to).name + ".vocabulary",
                    fmt::format("student and teacher need one vocabulary, '{}' has {}", e.from_name,
                                deck.model_of(e.from).vocabulary));
}

void DeckReader::check_device(const Deck& deck) {
    if (deck.run.gpu_products == "tf32" && deck.run.precision != "fp32")
        fail_at("run.gpu_products", fmt::format("tf32 stands for fp32, and run.precision is {}; leave it out",
                                                deck.run.precision));
    if (!needs_.training || deck.run.device != "emulated") return;
    if (deck.emulated.cluster.empty())
        fail_at("emulated.cluster",
                "missing; device = \"emulated\" needs the path of a cluster file, such as "
                "inputs/clusters/h100.toml");
    if (needs_.validation)
        fail_at("run.device", "an emulated device computes nothing to evaluate; allowed: auto, cpu");
}

/// What the graph cannot know: sizes of models, and what the language model takes.
void DeckReader::check_edges(const Deck& deck) {
    const auto& graph = deck.graph;
    const auto of = [&](int s) -> const graph::Section& { return graph.sections[s]; };
    // The patches by which a section's picture markers are expanded; {0, 0}: they stay tokens.
    const auto expansion = [&](int section) {
        for (const auto& e : graph.edges)
            if (e.to == section && e.tensor == EdgeTensor::embeddings)
                return std::pair{deck.model_of(e.from).patch, deck.model_of(e.from).merge};
        return std::pair{std::int64_t{0}, std::int64_t{0}};
    };
    for (std::size_t i = 0; i < graph.edges.size(); ++i) {
        const graph::Edge& e = graph.edges[i];
        const std::string key = fmt::format("edge.{}-{}.", e.from_name, e.to_name);
        for (std::size_t j = 0; j < i; ++j) {
            const graph::Edge& other = graph.edges[j];
            if (other.to == e.to && other.tensor == e.tensor)
                fail_at(
                    key + "to",
                    fmt::format("'{}' takes {} from '{}' already; more than one such edge is not built yet",
                                e.to_name, deck.edges[i].tensor, other.from_name));
            if (other.from == e.from && e.tensor == EdgeTensor::embeddings &&
                deck.model_of(other.to).width != deck.model_of(e.to).width)
                fail_at(
                    key + "to",
                    fmt::format("'{}' feeds sections of different width ({} and {}); that is not built yet",
                                e.from_name, deck.model_of(other.to).width, deck.model_of(e.to).width));
        }
        if (e.tensor == EdgeTensor::hidden) {
            if (!of(e.to).loss)
                fail_at(key + "to",
                        fmt::format("hidden states teach a section that computes the loss, '{}' has an "
                                    "outgoing edge",
                                    e.to_name));
            if (expansion(e.from) != expansion(e.to))
                fail_at(key + "from",
                        "teacher and student see pictures differently, so their rows do not match; give both "
                        "a vision section of the same patch and merge, or neither");
        }
        const graph::Section &up = of(e.from), &down = of(e.to);
        if (up.layout.tp > deck.model_of(e.to).width)
            fail_at("section." + up.name + ".layout.tp",
                    fmt::format("{} ranks are more than the width of '{}', which they share out; allowed: at "
                                "most {}",
                                up.layout.tp, down.name, deck.model_of(e.to).width));
        const int whole = deck.full_micro_batch(e.to);
        if (up.window > 0 && std::int64_t{up.window} * up.micro_batch < whole)
            fail_at("section." + up.name + ".window",
                    fmt::format("{} micro-batches of {} samples in flight are fewer than the {} samples of a "
                                "micro-batch of "
                                "'{}'; allowed: at least {}, or 0",
                                up.window, up.micro_batch, whole, down.name,
                                (whole + up.micro_batch - 1) / up.micro_batch));
    }
}

}  // namespace

Deck parse_deck(std::string_view text, const std::string& path, const std::vector<std::string>& overrides,
                Command command, Times times) {
    DeckReader reader(path, command, times);
    Deck deck = read_toml(text, reader.tables(),
                          [&](const toml::table& root) { return reader.read(root, overrides); });
    deck.text = std::string(text) + (deck.text.empty() ? "" : "\n" + deck.text);
    return deck;
}

std::string read_text(const std::string& path) {
    const std::optional<std::string> text = read_text_file(path);
    if (!text)
        throw Error(ExitCode::input_missing,
                    fmt::format("{}: cannot be read; give the path of a .toml file", path), Scope::all_ranks);
    if (text->size() > kLargestDeck)
        throw Error(ExitCode::bad_deck,
                    fmt::format("{}: larger than 1 MiB, this is no deck or cluster file", path),
                    Scope::all_ranks);
    return *text;
}

}  // namespace maestro::config
