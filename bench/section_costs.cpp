// Prints the cost of a section's micro-batch and of its optimizer, operation by operation, as one JSON
// object, and the bytes that its groups exchange. Runs the section's code on a backend that computes nothing.
// scripts/cuda/roofline.py and prediction.py convert the costs into times.
//
// Arguments are KEY=VALUE: `section` (language, vision, or student: a language model with a teacher and a
// picture in each sample), sizes of its model and of the micro-batch, and the degrees `tp`, `cp` and `dp`.
// The costs are those of the first rank.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ledger.hpp"
#include "model/module.hpp"
#include "train/step/optimizer.hpp"
#include "train/step/parameter_sync.hpp"

using namespace maestro;
using bench::Ledger;

namespace {

constexpr int kMarker = 1;  ///< the token that stands for a picture

model::ModelSpec language_spec() {
    return {.kind = model::ModelSpec::Kind::language,
            .name = "language",
            .layers = 16,
            .width = 2048,
            .mixers = {model::AttentionForm{.heads = 32, .kv_heads = 8, .head_dim = 64}},
            .mlp = 8192,
            .vocabulary = 128256};
}

model::ModelSpec vision_spec() {
    return {.kind = model::ModelSpec::Kind::vision,
            .name = "vision",
            .layers = 24,
            .width = 1024,
            .mixers = {model::AttentionForm{.heads = 16, .kv_heads = 16, .head_dim = 64}},
            .mlp = 4096,
            .patch = 14,
            .merge = 2,
            .channels = 3};
}

struct Section {
    std::string kind = "language";
    model::ModelSpec spec = language_spec();
    int tokens = 8192;              ///< of a sample, those of its picture included
    int samples = 1;                ///< of the micro-batch
    int pictures = 8;               ///< of the micro-batch of a vision section
    int height = 448, width = 448;  ///< of a picture, pixels
    int tp = 1, cp = 1, dp = 1;

    bool vision() const { return kind == "vision"; }
    bool student() const { return kind == "student"; }

    std::map<std::string_view, int*> keys() {
        auto& attention = std::get<model::AttentionForm>(spec.mixers[0]);
        return {{"layers", &spec.layers},
                {"width", &spec.width},
                {"heads", &attention.heads},
                {"mlp", &spec.mlp},
                {"kv_heads", &attention.kv_heads},
                {"head_dim", &attention.head_dim},
                {"tokens", &tokens},
                {"vocabulary", &spec.vocabulary},
                {"samples", &samples},
                {"pictures", &pictures},
                {"picture_height", &height},
                {"picture_width", &width},
                {"tp", &tp},
                {"cp", &cp},
                {"dp", &dp}};
    }

    void set(std::string_view key, std::string_view value) {
        const auto settings = keys();
        const auto found = settings.find(key);
        int number = 0;
        const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
        if (found != settings.end() && error == std::errc{} && end == value.data() + value.size() &&
            number > 0) {
            *found->second = number;
            return;
        }
        std::string names;
        for (const auto& [name, _] : settings) names += fmt::format(" {}", name);
        throw Error(
            ExitCode::usage,
            fmt::format("{}={}: expected section=language|student|vision, or KEY=NUMBER with a number "
                        "of at least 1 and a key of{}",
                        key, value, names));
    }
};

Section parse(int argc, char** argv) {
    Section section;
    const auto each = [&](auto&& visit) {
        for (int i = 1; i < argc; ++i) {
            const std::string_view argument = argv[i];
            const std::size_t equals = std::min(argument.find('='), argument.size());
            visit(argument.substr(0, equals), argument.substr(std::min(equals + 1, argument.size())));
        }
    };
    const auto names_kind = [](std::string_view key, std::string_view value) {
        return key == "section" && (value == "language" || value == "student" || value == "vision");
    };
    each([&](std::string_view key, std::string_view value) {
        if (names_kind(key, value)) section.kind = value;
    });
    if (section.vision()) section.spec = vision_spec();
    each([&](std::string_view key, std::string_view value) {
        if (!names_kind(key, value)) section.set(key, value);
    });
    return section;
}

model::Role role_of(const Section& section) {
    model::Role role{.section = "bench", .inputs = {}, .compute = DType::bf16};
    if (section.vision()) {
        role.emits = true;
        role.output_width = language_spec().width;
        return role;
    }
    role.loss_terms = {model::LossTerm{}};
    if (section.student()) {
        role.inputs = {{EdgeTensor::hidden, language_spec()}, {EdgeTensor::embeddings, vision_spec()}};
        role.markers = Markers(kMarker);
        role.loss_terms = {
            {.weight = 0.5},
            {.kind = model::LossTerm::Kind::forward_kl, .edge = 0, .weight = 0.5, .temperature = 2}};
    }
    return role;
}

/// Samples of one length in which every token is a target. Owns the data that the views refer to.
class Samples {
public:
    explicit Samples(const Section& section) {
        const model::ItemView picture{nullptr, {section.height, section.width}};
        std::size_t stored = section.vision() ? 0 : static_cast<std::size_t>(section.tokens);
        pictures_.assign(section.vision() ? static_cast<std::size_t>(section.pictures) : 1, picture);
        if (section.student()) {
            const auto rows = static_cast<std::size_t>(model::Units(vision_spec()).outputs(picture.item));
            if (stored < rows + 1)
                throw Error(ExitCode::usage, fmt::format("tokens={}: a picture alone has {}", stored, rows));
            stored -= rows - 1;
        }
        tokens_.assign(stored, 0);
        if (section.student()) tokens_.front() = kMarker;
        weights_.assign(stored, 1.0f);
        flags_.assign(stored, 1);
        const bool shown = section.vision() || section.student();
        for (int s = 0; s < (section.vision() ? 1 : section.samples); ++s)
            views_.push_back(
                {s, tokens_, weights_, flags_,
                 shown ? std::span<const model::ItemView>(pictures_) : std::span<const model::ItemView>{}});
    }
    std::span<const model::SampleView> views() const { return views_; }

private:
    std::vector<std::int32_t> tokens_;
    std::vector<float> weights_;
    std::vector<std::uint8_t> flags_;
    std::vector<model::ItemView> pictures_;
    std::vector<model::SampleView> views_;
};

/// Bytes that this rank has sent along the axes of its mesh.
struct Exchanged {
    std::int64_t tp = 0, cp = 0, data = 0;
};
Exchanged take_exchanged(const parallel::Mesh& mesh) {
    const auto take = [](collective::ProcessGroup& group) {
        const std::int64_t bytes = group.traffic().bytes;
        group.reset_traffic();
        return bytes;
    };
    return {take(mesh.tp()), take(mesh.cp()), take(mesh.group(parallel::kDataAxes))};
}

struct Phase {
    const char* name;
    Ledger::Lines lines;
    Exchanged exchanged;
};
struct Costs {
    std::vector<Phase> phases;
    std::int64_t parameters = 0;
};

Costs run(const Section& section) {
    Ledger ledger;
    const model::Role role = role_of(section);
    const auto module = model::make_module(
        ledger, section.spec, role,
        parallel::make_meta_mesh(
            0, {.dp = section.dp, .degrees = {section.cp, section.tp}, .kv_heads = section.spec.kv_heads()}));
    const Samples samples(section);
    model::Batch batch{.samples = samples.views()};
    const auto input_rows = module->input_rows(batch);
    std::vector<std::vector<Tensor>> inputs(role.inputs.size());
    std::vector<Tensor> d_inputs(role.inputs.size());
    for (std::size_t e = 0; e < inputs.size(); ++e) {
        const std::int64_t columns = model::row_width(role.inputs[e], section.spec.width);
        std::int64_t all = 0;
        for (const std::int64_t rows : input_rows[e]) {
            inputs[e].push_back(Tensor(nullptr, role.compute, {rows, columns}));
            all += rows;
        }
        d_inputs[e] = Tensor(nullptr, role.compute, {all, columns});
    }
    parallel::ParameterStore& store = module->parameters();
    train::Optimizer optimizer(ledger, store);
    comm::Waiter waiter;
    train::ParameterSync sync(store, optimizer, waiter, section.spec.name);
    backend::Arena saved, scratch;
    Tensor output;
    model::Result result;
    Costs costs;
    costs.parameters = store.count();
    const auto end_phase = [&](const char* name) {
        costs.phases.push_back({name, ledger.take(), take_exchanged(module->mesh())});
    };
    ledger.take();  // discards the cost of initialization
    const auto kept = module->forward(batch, inputs, saved, scratch, output, result);
    end_phase("forward");
    module->backward(*kept, output.rank != 0 ? output : Tensor{}, d_inputs, scratch);
    end_phase("backward");
    sync.finish_sums();
    sync.update({}, 1, 1);
    sync.await_weights();
    end_phase("update");
    if (section.student() && section.tp * section.cp == 1) {
        batch.train = false;
        module->forward(batch, inputs, saved, scratch, output, result);
        end_phase("evaluation");
    }
    return costs;
}

std::string json(const Ledger::Lines& lines) {
    std::string text;
    for (const auto& [line, calls] : lines)
        text += fmt::format(
            "{}\n    {{\"operation\": \"{}\", \"m\": {}, \"n\": {}, \"k\": {}, \"calls\": {}, \"flops\": {}, "
            "\"bytes\": {}, \"tensor_cores\": {}, \"dtype\": \"{}\"}}",
            text.empty() ? "" : ",", line.operation, line.m, line.n, line.k, calls, line.flops, line.bytes,
            line.tensor_cores, name_of(line.dtype));
    return text;
}

void print(Section& section, const Costs& costs) {
    fmt::print("{{\"section\": {{\"kind\": \"{}\", \"parameters\": {}", section.kind, costs.parameters);
    for (const auto& [name, value] : section.keys()) fmt::print(", \"{}\": {}", name, *value);
    fmt::print("}}");
    std::string exchanged;
    for (const Phase& phase : costs.phases) {
        fmt::print(",\n\"{}\": [{}]", phase.name, json(phase.lines));
        exchanged += fmt::format("{}\n    \"{}\": {{\"tp\": {}, \"cp\": {}, \"data\": {}}}",
                                 exchanged.empty() ? "" : ",", phase.name, phase.exchanged.tp,
                                 phase.exchanged.cp, phase.exchanged.data);
    }
    fmt::print(",\n\"exchanged\": {{{}}}}}\n", exchanged);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        Section section = parse(argc, argv);
        print(section, run(section));
    } catch (const Error& error) {
        fmt::print(stderr, "section_costs: {}\n", error.what());
        return static_cast<int>(error.code());
    }
}
