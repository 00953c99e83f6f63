#include "config/deck.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "base/error.hpp"
#include "base/text_file.hpp"
#include "config/deck_text.hpp"
#include "config/sample_source.hpp"
#include "config/table_reader.hpp"
#include "families/family.hpp"
#include "model/kind.hpp"

namespace maestro::config {

namespace {

constexpr std::size_t kMaxDeckBytes = 1 << 20;

/// The names of the families for which `is_one` holds.
template <class IsOne>
std::string names_of(IsOne&& is_one) {
    std::vector<std::string_view> names;
    for (const families::Family* const family : families::families())
        if (is_one(*family)) names.push_back(family->name);
    return fmt::format("{}", fmt::join(names, ", "));
}

/// The model of its family that the deck names. Where the family has none of the kind, an empty one.
families::FolderModel folder_model_of(const Model& m) {
    const families::FolderModel* const found =
        families::find_family(m.family)->find(model::find_kind(m.kind)->kind);
    return found ? *found : families::FolderModel{};
}

/// Reads the tables into the structs of the deck and collects all errors.
class DeckReader {
public:
    DeckReader(std::string path, Command command, Times times, FolderKeys folder_keys)
        : tables_(std::move(path)), needs_(needs_of(command, times)), folder_keys_(std::move(folder_keys)) {}

    Deck read(const toml::table& root, const std::vector<std::string>& overrides, const DeckCheck& check);
    TableReader& tables() { return tables_; }
    const std::vector<KeyValue>& overrides() const { return tables_.overrides(); }

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
    void read_tables(const toml::table& root, Deck& deck);
    void read_data(const toml::table& table, Data& data);
    void read_inner(const toml::table& table, const std::string& prefix, const std::string& name,
                    const std::vector<Key>& keys);
    void read_models(const toml::table& root, Deck& deck);
    void read_sections(const toml::table& root, Deck& deck);
    void read_edges(const toml::table& root, Deck& deck);
    std::vector<const toml::table*> tables_of(const toml::table& root, const char* key);

    void complete_models(Deck& deck);
    void finish(Deck& deck);
    void finish_models(Deck& deck);
    void finish_attention(const std::string& key, Model& m);
    void finish_experts(const std::string& key, const Model& m);
    void check_sections(const Deck& deck);
    void check_tuning(const Deck& deck, const Section& section);
    void finish_lora(const Deck& deck, Section& section);
    void check_device(const Deck& deck);

    TableReader tables_;
    Needs needs_;
    FolderKeys folder_keys_;
};

/// Reads the tables that a deck has once each, and refuses unknown ones.
void DeckReader::read_tables(const toml::table& root, Deck& deck) {
    const toml::table empty;
    const std::vector<std::pair<std::string, std::function<void(const toml::table&)>>> tables = {
        {"run", [&](const auto& t) { fill(t, "run.", keys_of(deck.run, needs_)); }},
        {"data", [&](const auto& t) { read_data(t, deck.data); }},
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

void DeckReader::read_data(const toml::table& table, Data& data) {
    fill(table, "data.", keys_of(data, needs_), {"lengths"});
    read_inner(table, "data.", "lengths", keys_of(data.lengths));
}

/// Reads a table within a table, whose full name begins with `prefix`.
void DeckReader::read_inner(const toml::table& table, const std::string& prefix, const std::string& name,
                            const std::vector<Key>& keys) {
    const toml::table empty;
    const auto* node = table.get(name);
    if (node && !node->is_table()) fail(node->source(), prefix + name, "wrong type; allowed: a table");
    fill(node && node->is_table() ? *node->as_table() : empty, prefix + name + ".", keys);
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

/// Returns the tables [[key]].
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
    const auto sections = tables_of(root, "section");
    deck.sections.resize(sections.size());  // keys point into it
    for (std::size_t i = 0; i < sections.size(); ++i) {
        const toml::table& table = *sections[i];
        const std::string name = table["name"].value_or(std::string(fmt::format("#{}", i + 1)));
        if (name.starts_with("#") || !good_name(name))
            fail(table.source(), "section.name",
                 "every [[section]] needs a name of letters, digits, _ and -");
        const std::string prefix = "section." + name + ".";
        fill(table, prefix, keys_of(deck.sections[i], needs_), {"layout", "distill", "lora"});
        for (const auto& [inner, keys] : {std::pair{"layout", layout_keys_of(deck.sections[i])},
                                          std::pair{"distill", keys_of(deck.sections[i].distill)},
                                          std::pair{"lora", keys_of(deck.sections[i].lora)}})
            read_inner(table, prefix, inner, keys);
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

Deck DeckReader::read(const toml::table& root, const std::vector<std::string>& overrides,
                      const DeckCheck& check) {
    Deck deck;
    read_tables(root, deck);
    read_models(root, deck);
    read_sections(root, deck);
    read_edges(root, deck);
    tables_.override_with(overrides);
    complete_models(deck);
    tables_.check_required();
    check_source(deck.data, needs_.samples, tables_);
    if (good()) {
        finish(deck);
        if (check)
            for (const graph::Refusal& refusal : check(deck, good())) fail_at(refusal.key, refusal.what);
    }
    for (const auto& [name, key] : tables_.slots()) {
        deck.settings[name] = text_of(key);
        if (std::holds_alternative<std::string*>(key.target)) deck.texts.insert(name);
    }
    deck.defaults = tables_.defaults();
    deck.places = tables_.places();
    return deck;
}

/// Takes the sizes of models from the folders that sections start from.
void DeckReader::complete_models(Deck& deck) {
    if (!folder_keys_ || !needs_.models) return;
    for (Section& s : deck.sections) {
        if (s.weights.empty() || !deck.models.contains(s.model)) continue;
        const auto keys = folder_keys_(s.weights, deck.models.at(s.model).kind);
        if (!keys) continue;
        s.from_folder = true;
        for (const auto& [key, value] : *keys)
            tables_.complete("model." + s.model + "." + key, value, s.weights + "/config.json");
    }
    for (const Section& s : deck.sections)  // of a folder that was moved or mistyped
        if (!s.from_folder && !s.weights.empty() && s.weights != "random" && deck.models.contains(s.model) &&
            tables_.lacks("model." + s.model + "."))
            fail_at("section." + s.name + ".weights",
                    fmt::format("there is no {}/config.json, from which [model.{}] could take its missing "
                                "keys; paths are relative to the working directory",
                                s.weights, s.model));
}

/// Fills in the defaults that depend on other keys, and checks keys against each other.
void DeckReader::finish(Deck& deck) {
    finish_distribution(deck.data, tables_);
    finish_models(deck);
    check_sections(deck);
    for (Section& section : deck.sections) finish_lora(deck, section);
    check_device(deck);
    if (deck.optimizer.decay_steps > 0 && deck.optimizer.decay_steps < deck.optimizer.warmup_steps)
        fail_at("optimizer.decay_steps", "ends before warmup_steps; it counts from the start of training");
}

void DeckReader::finish_models(Deck& deck) {
    for (auto& [name, m] : deck.models) {
        const std::string key = "model." + name + ".";
        finish_attention(key, m);
        const model::ModelSpec::Kind kind = model::find_kind(m.kind)->kind;
        if (!families::find_family(m.family)->find(kind))
            fail_at(key + "family",
                    fmt::format("'{}' has no {} model; allowed: {}", m.family, m.kind,
                                names_of([&](const families::Family& f) { return f.find(kind); })));
        if (m.attention_window > 0 && deck.data.sequence_length > m.attention_window)
            fail_at("data.sequence_length",
                    fmt::format("{} is longer than the window of attention of model {}, and only full "
                                "attention is built; allowed: up to {}",
                                deck.data.sequence_length, name, m.attention_window));
        const auto& deepstack = m.deepstack;
        if (std::adjacent_find(deepstack.begin(), deepstack.end(), std::greater_equal<>()) !=
                deepstack.end() ||
            (!deepstack.empty() && deepstack.back() >= m.layers))
            fail_at(key + "deepstack",
                    fmt::format("[{}] are no ascending numbers of layers; allowed: 0 to {}",
                                fmt::join(deepstack, ", "), m.layers - 1));
        if (m.kind == "language" && m.vocabulary == 0)
            fail_at(key + "vocabulary", "missing; required for a language model");
        finish_experts(key, m);
        if (m.mlp == 0 && (m.experts == 0 || m.dense_layers > 0))
            fail_at(key + "mlp", "missing; required for layers without experts");
    }
}

void DeckReader::finish_attention(const std::string& key, Model& m) {
    if (m.kv_heads == 0) m.kv_heads = m.heads;
    if (m.head_dim == 0) m.head_dim = m.width / m.heads;
    if (m.heads % m.kv_heads != 0)
        fail_at(key + "kv_heads", fmt::format("{} heads are not a multiple of it", m.heads));
    const int unit = model::find_kind(m.kind)->head_dim_unit;
    if (m.head_dim < unit || m.head_dim % unit != 0)
        fail_at(key + "head_dim", fmt::format("{} is not a multiple of {}", m.head_dim, unit));
    const auto& sections = m.rope_sections;
    if (!sections.empty() &&
        (sections.size() != 3 || *std::min_element(sections.begin(), sections.end()) < 1 ||
         std::accumulate(sections.begin(), sections.end(), 0) != m.head_dim / 2))
        fail_at(
            key + "rope_sections",
            fmt::format("[{}] are not three numbers, at least 1 each, that add up to half of head_dim, {}",
                        fmt::join(sections, ", "), m.head_dim / 2));
}

void DeckReader::finish_experts(const std::string& key, const Model& m) {
    using Experts = families::FolderModel::Experts;
    const Experts has_experts = folder_model_of(m).experts;
    if (m.experts == 0) {
        for (const auto& [name, value] :
             {std::pair{"experts_per_token", m.experts_per_token}, std::pair{"expert_mlp", m.expert_mlp},
              std::pair{"shared_expert_mlp", m.shared_expert_mlp}, std::pair{"dense_layers", m.dense_layers}})
            if (value != 0)
                fail_at(key + name,
                        fmt::format("{} without experts; give their number by {}experts", value, key));
        if (has_experts == Experts::always)
            fail_at(key + "experts", "missing; required for a model of family " + m.family);
        return;
    }
    if (m.kind != "language")
        fail_at(key + "experts", fmt::format("a {} model has none; remove the key", m.kind));
    else if (has_experts == Experts::never)
        fail_at(key + "experts", fmt::format("a model of family {} has none; allowed: {}", m.family,
                                             names_of([](const families::Family& f) {
                                                 return f.models.front().experts != Experts::never;
                                             })));
    if (m.experts_per_token < 1 || m.experts_per_token > m.experts)
        fail_at(key + "experts_per_token",
                fmt::format(
                    "{}; allowed: 1 to {}, the number of experts",
                    m.experts_per_token == 0 ? std::string("missing") : std::to_string(m.experts_per_token),
                    m.experts));
    if (families::find_family(m.family)->has_folders() && m.balance == "bias")
        fail_at(
            key + "balance",
            fmt::format("a folder of family {} has no place for the bias; allowed: none, loss", m.family));
    if (m.expert_mlp == 0) fail_at(key + "expert_mlp", "missing; required with experts");
    if (m.dense_layers >= m.layers)
        fail_at(key + "dense_layers", fmt::format("{} of {} layers leave none with experts; allowed: 0 to {}",
                                                  m.dense_layers, m.layers, m.layers - 1));
}

/// Names, models and weights of the sections.
void DeckReader::check_sections(const Deck& deck) {
    for (const Section& s : deck.sections) {
        const std::string key = "section." + s.name + ".";
        if (!good_name(s.name) || s.name == "train")
            fail_at(
                key + "name",
                fmt::format("'{}' is not a valid section name; allowed: letters, digits, _ and -, but not "
                            "'train', which names a file of every checkpoint",
                            s.name));
        if (!needs_.models) continue;
        if (!deck.models.contains(s.model)) {
            std::vector<std::string> names;
            for (const auto& [name, m] : deck.models) names.push_back(name);
            fail_at(key + "model",
                    fmt::format("there is no [model.{}]; models: {}", s.model, fmt::join(names, ", ")));
        }
        if (s.weights.ends_with(".safetensors"))
            fail_at(key + "weights",
                    "is a file; allowed: the folder of a model, a Maestro run or checkpoint, or \"random\"");
        if (s.mode == "forward" && s.weights.empty())
            fail_at(key + "weights",
                    "a frozen section needs weights; allowed: a run, a checkpoint, or \"random\"");
        check_tuning(deck, s);
    }
}

/// What a section trains, and which of its layers run again in backward.
void DeckReader::check_tuning(const Deck& deck, const Section& s) {
    const std::string key = "section." + s.name + ".";
    for (const auto& [name, set] :
         {std::pair{"freeze", !s.freeze.empty()}, std::pair{"learning_rate", s.learning_rate.has_value()},
          std::pair{"weight_decay", s.weight_decay.has_value()}})
        if (set && s.mode == "forward")
            fail_at(key + name, "the whole section is frozen, because its mode is \"forward\"; remove one");
    if (s.recompute_layers == 0) return;
    if (deck.recompute_of(s) == "none")
        fail_at(key + "recompute_layers",
                fmt::format("no layer runs again in backward, because recompute is \"none\"; set {}recompute "
                            "to \"cheap\" or \"layer\"",
                            key));
    const auto model = deck.models.find(s.model);
    if (model != deck.models.end() && s.recompute_layers > model->second.layers)
        fail_at(key + "recompute_layers", fmt::format("{} is more than the {} layers of model.{}",
                                                      s.recompute_layers, model->second.layers, s.model));
}

void DeckReader::finish_lora(const Deck& deck, Section& s) {
    Lora& lora = s.lora.adapters;
    const std::string key = "section." + s.name + ".lora.";
    if (!lora.enabled()) {
        if (lora.alpha > 0 || !lora.targets.empty() || !s.lora.weights.empty())
            fail_at(key + "rank", "missing; a section with LoRA needs the rank of its adapters, such as 16");
        return;
    }
    if (s.mode == "forward")
        fail_at(key + "rank", "a frozen section trains no adapters; remove mode = \"forward\" or the table");
    else if (s.weights.empty() && needs_.training)
        fail_at("section." + s.name + ".weights",
                "a section with LoRA trains its adapters alone and needs weights; allowed: a run, a "
                "checkpoint, a model folder, or \"random\"");
    if (lora.alpha == 0) lora.alpha = lora.rank;
    const auto model = deck.models.find(s.model);
    const bool fused = model != deck.models.end() && folder_model_of(model->second).layer.fused_qkv;
    const auto attention = attention_targets(fused), mlp = mlp_targets(fused);
    std::vector<std::string_view> allowed(attention.begin(), attention.end());
    // The linear layers of experts have no adapters, and those of dense layers have the same names.
    if (model == deck.models.end() || model->second.experts == 0)
        allowed.insert(allowed.end(), mlp.begin(), mlp.end());
    for (const std::string& target : lora.targets)
        if (std::find(allowed.begin(), allowed.end(), target) == allowed.end())
            fail_at(key + "targets", fmt::format("this model has no '{}'; allowed: a list of {}", target,
                                                 fmt::join(allowed, ", ")));
    // All of them where there is no list. In one order, so that decks that mean the same compare equal.
    std::vector<std::string> targets;
    for (const std::string_view target : allowed)
        if (lora.targets.empty() || lora.has(target)) targets.emplace_back(target);
    lora.targets = std::move(targets);
}

void DeckReader::check_device(const Deck& deck) {
    if (deck.run.matmul_precision == "tf32" && deck.run.precision != "fp32")
        fail_at("run.matmul_precision",
                fmt::format("tf32 applies to fp32, but run.precision is {}; remove it", deck.run.precision));
    if (deck.run.precision == "fp64") {
        if (deck.run.device != "cpu")
            fail_at(
                "run.device",
                fmt::format("\"{}\", but run.precision is fp64, in which only the CPU computes; set it to "
                            "\"cpu\"",
                            deck.run.device));
        if (needs_.training && deck.checkpoint.every.value_or(0) > 0)
            fail_at("checkpoint.every",
                    fmt::format("{}, but checkpoints hold fp32 and run.precision is fp64; leave it out, or "
                                "set it to 0",
                                *deck.checkpoint.every));
    }
    if (!needs_.training || deck.run.device != "emulated") return;
    if (deck.emulated.cluster.empty())
        fail_at("emulated.cluster",
                "missing; with device = \"emulated\" it is the path of a cluster file, such as "
                "inputs/clusters/h100.toml");
    if (needs_.validation)
        fail_at("run.device", "an emulated device computes nothing to evaluate; allowed: auto, cpu");
}

}  // namespace

Deck parse_deck(std::string_view text, const std::string& path, const std::vector<std::string>& overrides,
                Command command, Times times, const DeckCheck& check, const FolderKeys& folder_keys) {
    DeckReader reader(path, command, times, folder_keys);
    Deck deck = read_toml(text, reader.tables(),
                          [&](const toml::table& root) { return reader.read(root, overrides, check); });
    deck.text = stored_text(std::string(text), reader.overrides());
    return deck;
}

std::string Deck::saves_nothing() const {
    if (run.device == "emulated") return "because an emulated run has no weights";
    if (run.precision == "fp64") return "because they would hold fp32, and run.precision is fp64";
    return "";
}

namespace {

/// Sets the targets of the keys, whose full names begin with `prefix`, to what a checkpoint has stored.
void read_settings(const std::map<std::string, std::string>& settings, const std::string& prefix,
                   const std::vector<Key>& keys) {
    TableReader reader("the checkpoint");
    reader.fill({}, prefix, keys);
    std::map<std::string, std::string> defaults = reader.defaults();
    for (const auto& [key, value] : settings)
        // A default may be outside of what a deck may say, as the vocabulary of a vision model.
        if (key.starts_with(prefix) && defaults[key] != value) reader.complete(key, value, "the checkpoint");
    if (!reader.errors().empty())
        throw Error(ExitCode::bad_data, fmt::format("{}", fmt::join(reader.errors(), "\n")),
                    Scope::all_ranks);
}

}  // namespace

Model model_of(const std::map<std::string, std::string>& settings, const std::string& name) {
    Model model;
    model.name = name;
    read_settings(settings, "model." + name + ".", keys_of(model));
    return model;
}

Lora lora_of(const std::map<std::string, std::string>& settings, const std::string& section) {
    LoraTable lora;
    const std::string prefix = "section." + section + ".lora.";
    // Without adapters the rank is stored as 0, which no deck may say.
    if (const auto rank = settings.find(prefix + "rank"); rank != settings.end() && rank->second != "0")
        read_settings(settings, prefix, keys_of(lora));
    return lora.adapters;
}

std::string read_text(const std::string& path) {
    const std::optional<std::string> text = read_text_file(path);
    if (!text)
        throw Error(ExitCode::input_missing,
                    fmt::format("{}: cannot be read; give the path of a .toml file", path), Scope::all_ranks);
    if (text->size() > kMaxDeckBytes)
        throw Error(ExitCode::bad_deck,
                    fmt::format("{}: larger than 1 MiB, so it cannot be a deck or cluster file", path),
                    Scope::all_ranks);
    return *text;
}

}  // namespace maestro::config
