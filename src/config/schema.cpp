#include "config/schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "families/family.hpp"
#include "model/kind.hpp"

namespace maestro::config {

namespace {
constexpr double kMany = 1e12;
constexpr double kSize = 1 << 20;
constexpr double kMaxSamples = 1e8;  // drawn in seconds, 2.4 GB
constexpr double kMaxSide = 4096;    // pixels, as of the pictures of a sample file
constexpr double kWindow = graph::kMaxInFlight;
constexpr double kMaxMoves = 1e6;  // per sub-problem: minutes for a plan
}  // namespace

Needs needs_of(Command command, Times times) {
    const bool runs = command == Command::train || command == Command::evaluate;
    const bool from_file = times == Times::from_file;
    return {.output = runs,
            .samples = command == Command::train || command == Command::plan ||
                       command == Command::calibrate || (command == Command::simulate && !from_file),
            .validation = command == Command::evaluate,
            .batch = !from_file,
            .models = !from_file,
            .training = runs};
}

std::vector<Key> keys_of(Run& r, const Needs& needs) {
    return {{"name", &r.name},
            {"seed", &r.seed, false, 0, 9e18},
            {"output", &r.output, needs.output},
            {"device", &r.device, false, 0, 0, {"auto", "cpu", "cuda", "emulated"}},
            {"precision", &r.precision, false, 0, 0, {"fp32", "bf16", "fp64"}},
            {"matmul_precision", &r.matmul_precision, false, 0, 0, {"fp32", "tf32"}},
            {"gemm_autotune", &r.gemm_autotune, false, 0, 0, {"heuristic", "benchmark"}},
            {"timeout_s", &r.timeout_s, false, 1, 86400},
            {"transport", &r.transport, false, 0, 0, {"auto", "window", "messages"}},
            {"sums", &r.sums, false, 0, 0, {"auto", "ordered"}},
            {"tp_overlap", &r.tp_overlap, false, 0, 0, {"auto", "always", "never"}}};
}
std::vector<Key> keys_of(Data& d, const Needs& needs) {
    return {{"train", &d.train},
            {"validation", &d.validation, needs.validation},
            {"global_batch", &d.global_batch, needs.batch, 1, kSize},
            {"sequence_length", &d.sequence_length, needs.batch, 2, kSize}};
}
std::vector<Key> keys_of(Lengths& l) {
    SampleDistribution& d = l.drawn;
    return {{"file", &l.file},
            {"samples", &d.samples, false, 1, kMaxSamples},
            {"seed", &d.seed, false, 0, 9e18},
            {"distribution", &d.shape, false, 0, 0, {"fixed", "uniform", "lognormal"}},
            {"tokens", &d.tokens, false, 1, kSize},
            {"spread", &d.spread, false, 1e-3, 10},
            {"least_tokens", &d.least_tokens, false, 1, kSize},
            {"most_tokens", &d.most_tokens, false, 1, kSize},
            {"picture_share", &d.picture_share, false, 0, 1},
            {"pictures", &d.pictures, false, 1, kMostPictures},
            {"picture_height", &d.picture_height, false, 1, kMaxSide},
            {"picture_width", &d.picture_width, false, 1, kMaxSide},
            {"picture_unit", &d.picture_unit, false, 1, kMaxSide}};
}
std::vector<Key> keys_of(Train& t, const Needs& needs) {
    return {{"steps", &t.steps, needs.training, 1, kMany},
            {"log_every", &t.log_every, false, 1, kMany},
            {"recompute", &t.recompute, false, 0, 0, {"none", "cheap", "layer"}}};
}
std::vector<Key> keys_of(Optimizer& o, const Needs& needs) {
    return {{"learning_rate", &o.learning_rate, needs.training, 0, 1},
            {"final_learning_rate", &o.final_learning_rate, false, 0, 1},
            {"warmup_steps", &o.warmup_steps, false, 0, kMany},
            {"decay_steps", &o.decay_steps, false, 0, kMany},
            {"betas", &o.betas, false, 0, 0.999999},
            {"eps", &o.eps, false, 1e-16, 1},
            {"weight_decay", &o.weight_decay, false, 0, 10},
            {"clip", &o.clip, false, 0, 1e9}};
}
std::vector<Key> keys_of(Checkpoint& c) {
    return {{"every", &c.every, false, 0, kMany}, {"keep", &c.keep, false, 1, kSize}};
}
std::vector<Key> keys_of(Metrics& m) {
    return {{"interval_s", &m.interval_s, false, 0, 3600},
            {"timeline_every", &m.timeline_every, false, 0, kMany}};
}
std::vector<Key> keys_of(Emulated& e) {
    return {{"cluster", &e.cluster},
            {"time_scale", &e.time_scale, false, 1e-6, 1e6},
            {"message_scale", &e.message_scale, false, 0, 1}};
}
std::vector<Key> keys_of(Schedule& s) {
    return {{"policy", &s.policy, false, 0, 0, {"wavefront", "fifo", "lpt"}},
            {"dispatch", &s.dispatch, false, 0, 0, {"planned", "ready"}},
            {"costs", &s.costs, false, 0, 0, {"model", "measured"}},
            {"moves", &s.moves, false, 0, kMaxMoves}};
}
std::vector<Key> keys_of(Model& m) {
    std::vector<std::string> kinds, families;
    for (const model::ModelKind* const kind : model::kinds()) kinds.emplace_back(kind->word);
    for (const families::Family* const family : families::families()) families.emplace_back(family->name);
    return {{"kind", &m.kind, true, 0, 0, kinds, {"audio"}},
            {"family", &m.family, false, 0, 0, families},
            {"layers", &m.layers, true, 1, 1000},
            {"width", &m.width, true, 1, kSize},
            {"heads", &m.heads, true, 1, 4096},
            {"kv_heads", &m.kv_heads, false, 1, 4096},
            {"head_dim", &m.head_dim, false, 2, 256},
            {"mlp", &m.mlp, false, 1, kSize},
            {"vocabulary", &m.vocabulary, false, 1, 1 << 24},
            {"rope_theta", &m.rope_theta, false, 1, 1e12},
            {"rope_factor", &m.rope_factor, false, 1, 1e6},
            {"rope_low_frequency_factor", &m.rope_low_frequency_factor, false, 0, 1e6},
            {"rope_high_frequency_factor", &m.rope_high_frequency_factor, false, 0, 1e6},
            {"rope_original_length", &m.rope_original_length, false, 1, 1e9},
            {"rope_sections", &m.rope_sections, false, 0, 128},
            {"norm_eps", &m.norm_eps, false, 0, 1},
            {"tie_embeddings", &m.tie_embeddings},
            {"experts", &m.experts, false, 0, 4096},
            {"experts_per_token", &m.experts_per_token, false, 1, 4096},
            {"expert_mlp", &m.expert_mlp, false, 1, kSize},
            {"shared_expert_mlp", &m.shared_expert_mlp, false, 0, kSize},
            {"dense_layers", &m.dense_layers, false, 0, 1000},
            {"router", &m.router, false, 0, 0, {"softmax", "sigmoid"}},
            {"router_normalize", &m.router_normalize},
            {"balance", &m.balance, false, 0, 0, {"none", "loss", "bias"}},
            {"balance_strength", &m.balance_strength, false, 0, 1},
            {"attention_window", &m.attention_window, false, 0, kMany},
            {"picture_token", &m.picture_token, false, -1, 1 << 24},
            {"patch", &m.patch, false, 1, 256},
            {"merge", &m.merge, false, 1, 16},
            {"channels", &m.channels, false, 1, 16},
            {"output_width", &m.output_width, false, 0, kSize},
            {"position_table", &m.position_table, false, 0, 4096},
            {"deepstack", &m.deepstack, false, 0, 1000}};
}
std::vector<Key> keys_of(Section& s, const Needs& needs) {
    return {{"name", &s.name, true},
            {"model", &s.model, needs.models},
            {"mode", &s.mode, false, 0, 0, {"train", "forward"}},
            {"weights", &s.weights},
            {"micro_batch", &s.micro_batch, false, 1, kSize},
            {"window", &s.window, false, 0, kWindow},
            {"colocate_with", &s.colocate_with},
            {"freeze", &s.freeze},
            {"learning_rate", &s.learning_rate, false, 0, 1},
            {"weight_decay", &s.weight_decay, false, 0, 10},
            {"recompute", &s.recompute, false, 0, 0, {"none", "cheap", "layer"}},
            {"recompute_layers", &s.recompute_layers, false, 0, 1000}};
}
std::vector<Key> layout_keys_of(Section& s) {
    graph::Layout& l = s.layout;
    return {
        {"dp", &l.dp, false, 1, kSize},         {"tp", &l.tp, false, 1, kSize},
        {"cp", &l.cp, false, 1, kSize},         {"cp_kind", &s.cp_kind, false, 0, 0, {"ring", "all-to-all"}},
        {"pp", &l.pp, false, 1, kSize},         {"stages", &l.layers, false, 1, kSize},
        {"chunks", &l.chunks, false, 1, kSize}, {"ep", &l.ep, false, 1, kSize},
        {"etp", &l.etp, false, 1, kSize},       {"first_rank", &l.first_rank, false, -1, kSize}};
}
std::vector<Key> keys_of(Distill& d) {
    return {{"alpha", &d.alpha, false, 0, 1}, {"temperature", &d.temperature, false, 0.01, 1000}};
}
std::vector<Key> keys_of(LoraTable& l) {
    return {{"rank", &l.adapters.rank, false, 1, kSize},
            {"alpha", &l.adapters.alpha, false, 1e-6, 1e6},
            {"targets", &l.adapters.targets, false, 0, 0, {kLoraTargets.begin(), kLoraTargets.end()}},
            {"weights", &l.weights}};
}
std::vector<Key> keys_of(Edge& e) {
    return {{"from", &e.from, true},
            {"to", &e.to, true},
            {"tensor", &e.tensor, false, 0, 0, {"embeddings", "hidden"}}};
}

std::string text_of(double number) {
    constexpr double kWholeTo = 1e15;
    return std::abs(number) < kWholeTo && number == std::floor(number) ? fmt::format("{:.0f}", number)
                                                                       : fmt::format("{:g}", number);
}

std::string describe(const Key& key) {
    if (std::holds_alternative<std::vector<std::string>*>(key.target) && !key.words.empty())
        return fmt::format("a list of {}, such as [\"{}\"]", fmt::join(key.words, ", "), key.words.front());
    if (!key.words.empty()) return fmt::format("one of {}", fmt::join(key.words, ", "));
    if (std::holds_alternative<std::string*>(key.target)) return "text";
    if (std::holds_alternative<bool*>(key.target)) return "true or false";
    if (std::holds_alternative<Pair*>(key.target))
        return fmt::format("two numbers from {} to {}, such as [0.9, 0.95]", text_of(key.low),
                           text_of(key.high));
    if (std::holds_alternative<std::vector<int>*>(key.target))
        return fmt::format("a list of whole numbers from {} to {}, such as [2, 3, 3]", text_of(key.low),
                           text_of(key.high));
    if (std::holds_alternative<std::vector<std::string>*>(key.target))
        return "a list of texts, such as [\"embedding\", \"layers.0-3\"]";
    const char* kind = std::holds_alternative<double*>(key.target) ||
                               std::holds_alternative<std::optional<double>*>(key.target)
                           ? "a number"
                           : "a whole number";
    return fmt::format("{} from {} to {}", kind, text_of(key.low), text_of(key.high));
}

std::string text_of(const Key& key) {
    return std::visit(
        [](const auto* value) {
            if constexpr (std::is_same_v<decltype(value), const Pair*>)
                return fmt::format("[{}, {}]", (*value)[0], (*value)[1]);
            else if constexpr (std::is_same_v<decltype(value), const std::vector<int>*>)
                return fmt::format("[{}]", fmt::join(*value, ", "));
            else if constexpr (std::is_same_v<decltype(value), const std::vector<std::string>*>)
                return value->empty() ? "[]" : fmt::format("[\"{}\"]", fmt::join(*value, "\", \""));
            else if constexpr (std::is_same_v<decltype(value), const std::optional<double>*> ||
                               std::is_same_v<decltype(value), const std::optional<std::int64_t>*>)
                return *value ? fmt::format("{}", **value) : "not set";
            else
                return fmt::format("{}", *value);
        },
        key.target);
}

std::string nearest(const std::string& name, const std::vector<std::string>& names) {
    std::string best;
    std::size_t fewest = name.size() / 3 + 2;
    for (const std::string& other : names) {
        std::vector<std::size_t> row(other.size() + 1);
        for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
        for (std::size_t i = 1; i <= name.size(); ++i) {
            std::size_t diagonal = row[0];
            row[0] = i;
            for (std::size_t j = 1; j <= other.size(); ++j) {
                const std::size_t cost = diagonal + (name[i - 1] != other[j - 1]);
                diagonal = row[j];
                row[j] = std::min({cost, row[j] + 1, row[j - 1] + 1});
            }
        }
        if (row.back() < fewest) {
            fewest = row.back();
            best = other;
        }
    }
    return best;
}

}  // namespace maestro::config
