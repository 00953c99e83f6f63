#include "train/run/evaluator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>

#include "base/log.hpp"
#include "comm/agree.hpp"
#include "comm/environment.hpp"
#include "train/checkpoint/checkpoint_search.hpp"
#include "train/checkpoint/weights.hpp"
#include "train/run/device.hpp"
#include "train/run/samples.hpp"
#include "train/step/sample_views.hpp"
#include "workload/models.hpp"

namespace maestro::train {

namespace {

/// A picture of the file, and the tokens that name it.
struct PlacedPicture {
    std::int64_t sample;
    std::size_t index;
    std::vector<std::int32_t> label;
};

/// For every picture of the file one that shows something else: sorted by what they show, each takes the
/// place of the one that lies as far on as the most frequent label is frequent.
std::map<std::pair<std::int64_t, std::size_t>, std::pair<std::int64_t, std::size_t>> exchange(
    const data::SampleFile& samples, Pulse& pulse) {
    std::vector<PlacedPicture> pictures;
    data::Sample sample;
    for (std::int64_t i = 0; i < samples.size(); ++i) {
        samples.read(i, sample, data::Part::text);
        pulse.beat();
        for (std::size_t t = 0, index = 0; t < sample.tokens.size(); ++t) {
            if (sample.tokens[t] == samples.marker())
                pictures.push_back({i, index++, {}});
            else if (index > 0 && (sample.flags[t] & data::kCountsForExactMatch) != 0)
                pictures.back().label.push_back(sample.tokens[t]);
        }
    }
    std::stable_sort(pictures.begin(), pictures.end(),
                     [](const auto& a, const auto& b) { return a.label < b.label; });
    std::size_t most = 0;
    for (std::size_t i = 0, run = 0; i < pictures.size(); ++i) {
        run = i > 0 && pictures[i].label == pictures[i - 1].label ? run + 1 : 1;
        most = std::max(most, run);
    }
    if (2 * most > pictures.size())
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: more than half of the pictures show the same; they cannot be exchanged",
                                samples.path().string()));
    std::map<std::pair<std::int64_t, std::size_t>, std::pair<std::int64_t, std::size_t>> places;
    for (std::size_t i = 0; i < pictures.size(); ++i) {
        const PlacedPicture& other = pictures[(i + most) % pictures.size()];
        places[{pictures[i].sample, pictures[i].index}] = {other.sample, other.index};
    }
    return places;
}

class Evaluator {
public:
    Evaluator(RunContext& context, const config::CommandLine& line)
        : context_(context), deck_(context.deck), backend_(open_device(context)) {
        samples_ = open_samples(context.world, deck_.data.validation, context.pulse);
        const std::string checkpoint = need_checkpoint(context.world, line.checkpoint, context.pulse);
        comm::agree(context.world, [&] {
            if (samples_->size() == 0)
                throw Error(ExitCode::bad_data, deck_.data.validation + ": holds no samples");
            workload::check_samples(deck_, *samples_, false);
            if (line.exchange_images) places_ = exchange(*samples_, context.pulse);
            build(checkpoint);
        });
    }

    model::Result run() {
        model::Result result;
        double weight = 0;
        for (std::int64_t i = 0; i < samples_->size(); ++i) weight += samples_->index().weight(i);
        std::vector<data::Sample> chunk;
        comm::agree(context_.world, [&] {
            for (std::int64_t i = context_.world.rank(); i < samples_->size(); i += context_.world.size()) {
                samples_->read(i, chunk.emplace_back());
                swap_pictures(chunk.back());
                if (chunk.size() == kSamples || i + context_.world.size() >= samples_->size()) {
                    evaluate(chunk, 1 / weight, result);
                    chunk.clear();
                    context_.pulse.doing(fmt::format("evaluation, sample {}", i));
                }
            }
        });
        for (Part& part : parts_) part.module->collect(result);
        return result;
    }

private:
    static constexpr std::size_t kSamples = 16;

    struct Part {
        int section;
        model::Role role;
        std::unique_ptr<model::Module> module;
        backend::Arena saved, scratch;
    };

    void build(const std::string& checkpoint) {
        for (const int s : context_.deck.graph.order) {
            model::Role role = workload::role_of(deck_, s, samples_->marker());
            role.needs_backward = false;
            auto module = model::make_module(*backend_, workload::spec_of(deck_, s), role,
                                             parallel::single_rank_mesh(), model::InitialWeights::zeros);
            const auto& section = deck_.sections[s];
            load_weights(checkpoint, section.name, module->parameters(), context_.pulse);
            module->parameters().initialize(context_.pulse, true);
            module->parameters().refresh_compute();
            parts_.push_back({s, role, std::move(module), {}, {}});
        }
    }

    void swap_pictures(data::Sample& sample) {
        for (std::size_t p = 0; p < sample.pictures.size(); ++p)
            if (const auto at = places_.find({sample.id, p}); at != places_.end()) {
                data::Sample other;
                samples_->read(at->second.first, other, data::Part::pixels);
                sample.pictures[p] = std::move(other.pictures[at->second.second]);
            }
    }

    /// One chunk through all sections, upstream first; arenas are made to measure and grow.
    void evaluate(const std::vector<data::Sample>& chunk, double scale, model::Result& result) {
        const SampleViews views(chunk);
        std::vector<model::SampleShape> shapes;
        for (const data::Sample& sample : chunk) {
            shapes.push_back({static_cast<std::int64_t>(sample.tokens.size()), {}, 0});
            for (const auto& p : sample.pictures) shapes.back().pictures.push_back({p.height, p.width});
        }
        std::map<int, std::vector<Tensor>> outputs;  // by section: rows of each sample
        for (Part& part : parts_) {
            const model::Footprint footprint = model::measure(
                workload::spec_of(deck_, part.section), part.role, shapes,
                {.train = false, .traits = backend::traits_of(context_.device, context_.topology.threads)});
            if (part.saved.capacity() < footprint.saved)
                part.saved = backend::Arena(*backend_, footprint.saved + footprint.saved / 2);
            if (part.scratch.capacity() < footprint.scratch)
                part.scratch = backend::Arena(*backend_, footprint.scratch + footprint.scratch / 2);
            part.saved.reset();
            part.scratch.reset();
            std::vector<std::vector<Tensor>> inputs;
            for (const graph::Edge& e : context_.deck.graph.edges)
                if (e.to == part.section) inputs.push_back(outputs.at(e.from));
            Tensor output;
            const auto state =
                part.module->forward({.samples = views.all(), .loss_scale = scale, .train = false}, inputs,
                                     part.saved, part.scratch, output, result);
            if (output.rank == 0) continue;
            const model::Geometry vision = workload::geometry_of(deck_, part.section);
            std::int64_t row = 0;
            for (const auto& shape : shapes) {
                std::int64_t rows = 0;
                if (vision.patch == 0)
                    rows = model::expanded_tokens(shape, workload::expansion_of(deck_, part.section));
                else
                    for (const auto& p : shape.pictures)
                        rows += model::picture_tokens(p.height, p.width, vision);
                outputs[part.section].push_back(output.slice(row, row + rows));
                row += rows;
            }
        }
    }

    RunContext& context_;
    const config::Deck& deck_;
    std::unique_ptr<backend::Backend> backend_;
    std::unique_ptr<data::SampleFile> samples_;
    std::map<std::pair<std::int64_t, std::size_t>, std::pair<std::int64_t, std::size_t>> places_;
    std::vector<Part> parts_;
};

}  // namespace

void run_evaluation(RunContext& context, const config::CommandLine& line) {
    Evaluator evaluator(context, line);
    const double start = comm::now_s();
    const model::Result mine = evaluator.run();
    std::vector<double> sums{mine.loss, static_cast<double>(mine.tokens), static_cast<double>(mine.names),
                             static_cast<double>(mine.exact)};
    context.world.allreduce_sum(std::span(sums));
    if (!std::isfinite(sums[0]))
        throw Error(ExitCode::not_finite, fmt::format("{}: the loss is {}", line.checkpoint, sums[0]),
                    Scope::all_ranks);
    const std::string match = sums[2] > 0 ? fmt::format("{:.6f}", sums[3] / sums[2]) : "null";
    log::info("{}: loss {:.4f}, {:.0f} of {:.0f} names exact, {:.0f} tokens in {:.1f} s",
              context.deck.data.validation, sums[0], sums[3], sums[2], sums[1], comm::now_s() - start);
    log::info("{{\"loss\": {:.9g}, \"exact_match\": {}, \"names\": {:.0f}, \"tokens\": {:.0f}}}", sums[0],
              match, sums[2], sums[1]);
}

}  // namespace maestro::train
