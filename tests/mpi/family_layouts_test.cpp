// Models of Hugging Face folders in layouts: loss, logits, rows of the tower and every gradient against those
// of transformers in double precision (tests/golden/families/make_families.py). Samples of unlike lengths are
// packed into one micro-batch per replica. Layouts of fewer ranks than the world has run side by side.
//
// A tower and its language model are connected by hand, because channels have separate tests: the rows that
// the ranks of the tower output are summed into one table of all picture tokens, from which each rank of the
// language model takes those that it holds. Their gradients go back in the same way.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "mpi/mpi_main.hpp"
#include "parallel/partition.hpp"
#include "support/family_folder.hpp"
#include "train/checkpoint/folder_weights.hpp"
#include "unit/model/pipeline.hpp"

namespace {

using namespace maestro;
using namespace maestro::parallel;
using model::test::Pipeline;
using testing_support::FamilyReference;
using testing_support::FamilySamples;

using Views = std::vector<model::SampleView>;

/// Largest differences, relative to the 2-norm of a tensor.
struct Precision {
    DType type;
    double loss, logits, gradients, tower;
};

constexpr Precision kExact[] = {
    {DType::f64, 1e-10, 1e-10, 1e-10, 1e-10},
    {DType::f32, 1e-5, 1e-5, 1e-5, 1e-5},
};

/// In bf16 every matmul rounds its output to 8 bits, and other orders of summation round to other neighbours.
/// With these weights and samples in bf16, transformers itself differs from its double precision by up to
/// 1.2e-3 in the loss, 0.017 in logits and 0.037 in gradients (llama; qwen3: 8e-4, 0.013 and 0.031;
/// qwen3_moe: 1e-4, 0.017 and 0.047). The bounds are about 1.6 times as large. The gradients of this qwen3_vl
/// depend more on the order: with linear layers that sum two random halves of their columns, as tp ranks do,
/// 30 runs of transformers differ by 0.05 to 0.15 in the worst gradient, mostly that of a norm of the tower's
/// layer 1, and by at most 1.8e-3 in the loss, 0.020 in logits and 0.011 in rows of the tower. The bounds are
/// about 1.4 times as large. For qwen2 the largest difference, 0.060, is that of a key bias with PyTorch's
/// fused attention: a constant added to all keys changes little, so its gradient is a small sum of large
/// terms.
struct FamilyCase {
    const char* name;
    Precision rounded;
};
constexpr FamilyCase kFamilies[] = {
    {"llama", {DType::bf16, 2e-3, 0.028, 0.06, 0}},
    {"mistral", {DType::bf16, 2e-3, 0.028, 0.06, 0}},
    {"qwen2", {DType::bf16, 2e-3, 0.028, 0.1, 0}},
    {"qwen3", {DType::bf16, 2e-3, 0.028, 0.06, 0}},
    {"qwen3_moe", {DType::bf16, 2e-3, 0.028, 0.08, 0}},
    {"qwen3_vl", {DType::bf16, 2.5e-3, 0.028, 0.2, 0.016}},
    {"qwen3_vl_moe", {DType::bf16, 2.5e-3, 0.028, 0.2, 0.016}},
};

struct Layout {
    const char* name;
    int dp = 1;
    Degrees degrees = {};
    int pp = 1;  ///< of the language model; all stages of a rank run in its process
    ContextKind kind = ContextKind::ring;
    std::optional<Degrees> tower = {};  ///< where they differ
    bool one_by_one = false;            ///< a micro-batch for each sample
    ExpertDegrees experts = {};         ///< of families with experts; else the layout is left out
    int ranks() const { return dp * degrees.ranks(); }
};

constexpr Layout kLayouts[] = {
    {"one rank"},
    {"pp 2", 1, {}, 2},
    {"tp 2", 1, {1, 2}},
    {"cp 2", 1, {2, 1}},
    {"cp 2, all-to-all", 1, {2, 1}, 1, ContextKind::all_to_all},
    {"dp 2", 2},
    {"pp 2 x tp 2", 1, {1, 2}, 2},
    {"pp 2 x cp 2", 1, {2, 1}, 2},
    {"tp 2 x cp 2", 1, {2, 2}},
    {"tp 2 x cp 2, samples one by one", 1, {2, 2}, 1, ContextKind::ring, {}, true},
    {"tp 4, which has copies of KV heads", 1, {1, 4}, 1, ContextKind::ring, Degrees{2, 2}},
    {"dp 2 x tp 2 x pp 2", 2, {1, 2}, 2},
    {"dp 2 x cp 2", 2, {2, 1}},
    {"tp 2, ep 2", 1, {1, 2}, 1, ContextKind::ring, {}, false, {2, 1}},
    {"pp 2 x cp 2, etp 2", 1, {2, 1}, 2, ContextKind::ring, {}, false, {1, 2}},
    {"tp 2 x cp 2, ep 4", 1, {2, 2}, 1, ContextKind::ring, {}, false, {4, 1}},
    {"tp 4, ep 2 x etp 2", 1, {1, 4}, 1, ContextKind::ring, Degrees{2, 2}, true, {2, 2}},
    {"dp 2 x tp 2, ep 2", 2, {1, 2}, 1, ContextKind::ring, {}, false, {2, 1}},
};
bool fits(const Layout& layout, const model::ModelSpec& spec) {
    return layout.experts.ranks() == 1 || spec.experts.count > 0;
}

struct Family {
    explicit Family(const FamilyCase& family)
        : name(family.name),
          rounded(family.rounded),
          specs(testing_support::specs_of_folder(name)),
          spec(specs.front()),
          reference(name),
          samples(reference) {
        if (specs.size() > 1) encoder = model::Units(specs[1]);
        Pulse pulse;
        const safetensors::SafetensorsFile file(testing_support::folder_of(name) + "/model.safetensors",
                                                pulse);
        const auto pieces = families::pieces_of(spec, "head.weight", {spec.vocabulary, spec.width});
        const safetensors::TensorInfo* const tensor = file.find(pieces.at(0).tensor);
        head.resize(static_cast<std::size_t>(tensor->elements));
        file.read(*tensor, Range{0, tensor->elements}, head.data(), pulse);
    }
    std::string name;
    Precision rounded;
    std::vector<model::ModelSpec> specs;  ///< the language model's, and the tower's where there is one
    const model::ModelSpec& spec;         ///< the language model's
    model::Units encoder;
    FamilyReference reference;
    FamilySamples samples;
    std::vector<float> head;  ///< [V, C]
};

/// A section with the weights of the folder.
class Section {
public:
    Section(const comm::Communicator& world, backend::Backend& backend, const Family& family,
            const model::ModelSpec& spec, model::Role role, const Layout& layout, Degrees degrees,
            const std::vector<int>& layers)
        : spec_(spec), pipeline_(backend, spec, role, layers, [&] {
              return make_mesh(world, backend,
                               {.dp = layout.dp,
                                .degrees = degrees,
                                .context_kind = layout.kind,
                                .kv_heads = spec.kv_heads(),
                                .has_experts = spec.experts.count > 0,
                                .experts = layout.experts},
                               role.section);
          }) {
        Pulse pulse;
        for (const auto& stage : pipeline_.stages()) {
            ParameterStore& store = stage->module->parameters();
            train::load_folder(testing_support::folder_of(family.name), spec, store, pulse);
            for (ParameterGroup& group : store.groups()) group.gather_weights();
        }
    }
    Pipeline& pipeline() { return pipeline_; }
    const model::ModelSpec& spec() const { return spec_; }
    const Mesh& mesh() const { return pipeline_.stages().back()->module->mesh(); }
    /// The rows of this rank, in their local order.
    std::vector<RowRange> rows_of(const Partition& partition) const {
        return partition.rows_of(mesh().cp_rank(), mesh().tp_rank());
    }

private:
    const model::ModelSpec& spec_;
    Pipeline pipeline_;
};

/// The tokens of all pictures of the samples, numbered in their order, and which of them a rank has.
class PictureTokens {
public:
    PictureTokens(const Views& all, const model::Units& encoder) : encoder_(encoder) {
        for (const model::SampleView& view : all) {
            first_.emplace_back();
            for (const model::ItemView& picture : view.items) {
                first_.back().push_back(count_);
                count_ += tokens_of(picture);
            }
        }
    }
    std::int64_t count() const { return count_; }
    std::int64_t tokens_of(const model::ItemView& picture) const { return encoder_.outputs(picture.item); }
    std::int64_t first(const model::SampleView& view, std::size_t picture) const {
        return first_.at(view.id).at(picture);
    }
    /// By row of the sample in the language model: the number of the token, or -1 for text.
    std::vector<std::int64_t> expanded(const model::SampleView& view) const {
        std::vector<std::int64_t> rows;
        std::size_t picture = 0;
        for (const std::int32_t token : view.tokens) {
            if (token != testing_support::kFamilyMarker) {
                rows.push_back(-1);
                continue;
            }
            const std::int64_t begin = first(view, picture), end = begin + tokens_of(view.items[picture]);
            for (std::int64_t number = begin; number < end; ++number) rows.push_back(number);
            ++picture;
        }
        return rows;
    }
    /// Those that this rank of the tower outputs, by row.
    std::vector<std::int64_t> output_of(const Section& tower, const Views& views) const {
        const std::int64_t unit = encoder_.unit();
        std::vector<std::int64_t> patches, begins, numbers;
        for (const model::SampleView& view : views)
            for (std::size_t p = 0; p < view.items.size(); ++p) {
                patches.push_back(unit * tokens_of(view.items[p]));
                begins.push_back(first(view, p));
            }
        const Partition partition(patches, AttentionMask::bidirectional, tower.mesh().degrees(), unit);
        for (const RowRange& range : tower.rows_of(partition))
            for (std::int64_t row = range.first; row < range.first + range.count; row += unit)
                numbers.push_back(begins[range.sequence] + row / unit);
        return numbers;
    }

private:
    model::Units encoder_;
    std::vector<std::vector<std::int64_t>> first_;  ///< by sample and picture
    std::int64_t count_ = 0;
};

/// The samples' partition in the language model.
Partition partition_of(const PictureTokens& tokens, const Views& views, Degrees degrees) {
    std::vector<std::int64_t> lengths;
    for (const model::SampleView& view : views)
        lengths.push_back(static_cast<std::int64_t>(tokens.expanded(view).size()));
    return {lengths, AttentionMask::causal, degrees};
}

/// A row for each picture token, in double.
class Table {
public:
    Table(std::int64_t rows, std::int64_t width)
        : width_(width), values_(static_cast<std::size_t>(rows * width)) {}
    void write(const Tensor& rows, const std::vector<std::int64_t>& numbers) {
        MAESTRO_CHECK(rows.size() == width_ * static_cast<std::int64_t>(numbers.size()), "{} for {} tokens",
                      rows.describe(), numbers.size());
        for (std::int64_t i = 0; i < rows.size(); ++i)
            values_.at(numbers[i / width_] * width_ + i % width_) = testing_support::element_of(rows, i);
    }
    /// Every rank gets what all ranks have written.
    void sum(const comm::Communicator& world) { world.allreduce_sum(std::span(values_)); }
    Tensor read(const std::vector<std::int64_t>& numbers, DType type, backend::Arena& arena) const {
        const Tensor rows = arena.allocate(type, {static_cast<std::int64_t>(numbers.size()), width_});
        for (std::int64_t i = 0; i < rows.size(); ++i)
            testing_support::set_element(rows, i, values_.at(numbers[i / width_] * width_ + i % width_));
        return rows;
    }
    double at(std::int64_t number, std::int64_t column) const { return values_.at(number * width_ + column); }

private:
    std::int64_t width_;
    std::vector<double> values_;
};

/// The gradient of a tensor, and how many ranks and stages have each of its elements. Of copies the first one
/// counts.
struct Gradient {
    std::vector<double> sum, holders;
};

/// The sums of the gradients over all ranks and stages, by the tensors of the folder.
std::map<std::string, Gradient> sum_gradients(const comm::Communicator& world, Family& family,
                                              const std::vector<Section*>& sections) {
    std::map<std::string, Gradient> gradients;
    for (const safetensors::TensorInfo& tensor : family.reference.tensors()) {
        const std::vector<double> zeros(static_cast<std::size_t>(tensor.elements));
        if (tensor.name.starts_with("gradient.")) gradients[tensor.name] = {zeros, zeros};
    }
    const auto add = [&](const model::ModelSpec& spec, const ParameterStore& store, const Parameter& p) {
        const auto values = testing_support::read_elements(store.backend(), p.gradient);
        const auto pieces = families::pieces_of(spec, p.name, p.shape);
        const Range shard = store.group_of(p).shard_of(p);
        if (shard.size() <= 0) return;
        for (const Range& range : store.group_of(p).first_copies(p, shard)) {
            const auto extents = extents_of(p.shape, p.shard, range);
            const auto by_piece = families::extents_by_piece(pieces, extents);
            for (std::size_t i = 0; i < pieces.size(); ++i) {
                Gradient& gradient = gradients.at("gradient." + pieces[i].tensor);
                for (const Extent& e : by_piece[i])
                    for (std::int64_t k = 0; k < e.count; ++k) {
                        gradient.sum.at(e.logical + k) += values[e.local + k * e.stride];
                        ++gradient.holders.at(e.logical + k);
                    }
            }
        }
    };
    for (Section* const section : sections)
        for (const auto& stage : section->pipeline().stages()) {
            ParameterStore& store = stage->module->parameters();
            for (ParameterGroup& group : store.groups()) group.reduce_gradients(stage->scratch);
            for (const Parameter& p : store.parameters()) add(section->spec(), store, p);
        }
    for (auto& [name, gradient] : gradients) {
        world.allreduce_sum(std::span(gradient.sum));
        world.allreduce_sum(std::span(gradient.holders));
    }
    return gradients;
}

/// How far some values are from those that are expected.
struct Distance {
    double squares = 0, norm_squares = 0, count = 0;
    void add(double found, double expected) {
        squares += (found - expected) * (found - expected);
        norm_squares += expected * expected;
        ++count;
    }
    void sum(const comm::Communicator& world) {
        std::vector<double> all{squares, norm_squares, count};
        world.allreduce_sum(std::span(all));
        squares = all[0], norm_squares = all[1], count = all[2];
    }
    double relative() const { return std::sqrt(squares / norm_squares); }
};

/// The logits of the samples, of which each rank adds the rows that it holds.
class Logits {
public:
    explicit Logits(Family& family) : family_(family) {
        for (const model::SampleView& view : family.samples.views())
            expected_.push_back(family.reference.read<double>(fmt::format("logits.{}", view.id)));
        distances_.resize(expected_.size());
    }
    /// `output`: the hidden states of a micro-batch.
    void add(const Section& language, const Partition& partition, const Views& views, const Tensor& output) {
        const int width = family_.spec.width, vocabulary = family_.spec.vocabulary;
        std::int64_t local = 0;
        for (const RowRange& range : language.rows_of(partition))
            for (std::int64_t row = range.first; row < range.first + range.count; ++row, ++local) {
                const auto sample = static_cast<std::size_t>(views[range.sequence].id);
                for (int v = 0; v < vocabulary; ++v) {
                    double logit = 0;
                    for (int c = 0; c < width; ++c)
                        logit += testing_support::element_of(output, local * width + c) *
                                 static_cast<double>(family_.head[static_cast<std::size_t>(v * width + c)]);
                    distances_[sample].add(logit, expected_[sample].at(row * vocabulary + v));
                }
            }
        MAESTRO_CHECK(local == output.dim(0), "{} rows, the partition has {}", output.dim(0), local);
    }
    /// Compares them, and counts those of all ranks.
    void check(const comm::Communicator& world, double allowed, const std::string& what) {
        for (std::size_t s = 0; s < distances_.size(); ++s) {
            distances_[s].sum(world);
            MAESTRO_CHECK(distances_[s].count == static_cast<double>(expected_[s].size()),
                          "{}: {} logits of sample {}", what, distances_[s].count, s);
            MAESTRO_CHECK(distances_[s].relative() <= allowed, "{}: logits of sample {} differ by {:.2g}",
                          what, s, distances_[s].relative());
        }
    }

private:
    Family& family_;
    std::vector<std::vector<double>> expected_;
    std::vector<Distance> distances_;
};

/// Compares the rows that the tower has output for these samples.
void check_tower(Family& family, const PictureTokens& tokens, const Table& table, const Views& views,
                 double allowed, const std::string& what) {
    const int width = family.spec.width;
    for (const model::SampleView& view : views)
        for (std::size_t p = 0; p < view.items.size(); ++p)
            for (std::size_t block = 0; block <= family.specs[1].deepstack.size(); ++block) {
                const std::string name = block == 0
                                             ? fmt::format("vision.{}.{}", view.id, p)
                                             : fmt::format("deepstack.{}.{}.{}", view.id, p, block - 1);
                const auto expected = family.reference.read<double>(name);
                MAESTRO_CHECK(
                    static_cast<std::int64_t>(expected.size()) == width * tokens.tokens_of(view.items[p]),
                    "{}: {} has {} values", what, name, expected.size());
                Distance distance;
                for (std::size_t i = 0; i < expected.size(); ++i)
                    distance.add(table.at(tokens.first(view, p) + static_cast<std::int64_t>(i) / width,
                                          static_cast<std::int64_t>(block) * width +
                                              static_cast<std::int64_t>(i) % width),
                                 expected[i]);
                MAESTRO_CHECK(distance.relative() <= allowed, "{}: {} differs by {:.2g}", what, name,
                              distance.relative());
            }
}

/// The micro-batches of this rank's replica.
std::vector<Views> micro_batches(const Family& family, const Layout& layout, int replica) {
    std::vector<Views> batches;
    for (const model::SampleView& view : family.samples.views()) {
        if (view.id % layout.dp != replica) continue;
        if (batches.empty() || layout.one_by_one) batches.emplace_back();
        batches.back().push_back(view);
    }
    return batches;
}

void run(const comm::Communicator& world, Family& family, const Layout& layout, const Precision& precision) {
    const std::string what = fmt::format("{}, {}, {}", family.name, layout.name, name_of(precision.type));
    const model::ModelSpec& spec = family.spec;
    const auto backend = backend::make_cpu(1);
    model::Role role{};
    role.section = "text";
    role.loss_terms = {model::LossTerm{}};
    role.emits = true;  // the hidden states too, for the logits
    role.output_width = spec.width;
    role.compute = precision.type;
    std::optional<Section> tower;
    std::int64_t edge_width = 0;
    if (family.specs.size() > 1) {
        role.inputs = {{EdgeTensor::embeddings, family.specs[1]}};
        role.markers = Markers(testing_support::kFamilyMarker);
        edge_width = model::row_width(role.inputs[0], spec.width);
        model::Role encoder{};
        encoder.section = "tower";
        encoder.emits = true;
        encoder.output_width = static_cast<int>(edge_width);
        encoder.compute = precision.type;
        tower.emplace(world, *backend, family, family.specs[1], encoder, layout,
                      layout.tower.value_or(layout.degrees), std::vector{family.specs[1].layers});
    }
    Section language(world, *backend, family, spec, role, layout, layout.degrees,
                     layout.pp == 1 ? std::vector{spec.layers} : std::vector{spec.layers - 1, 1});
    const PictureTokens tokens(family.samples.views(), family.encoder);
    Logits logits(family);
    model::Result result;
    for (const Views& views :
         micro_batches(family, layout, language.mesh().data_rank() / layout.degrees.cp)) {
        const model::Batch batch{.samples = views, .loss_scale = 1 / family.samples.weight()};
        const Partition partition = partition_of(tokens, views, layout.degrees);
        backend::Arena edge(*backend, std::size_t{1} << 20);
        Table rows(tokens.count(), edge_width), gradients(tokens.count(), edge_width);
        std::vector<std::int64_t> sent, received;  // picture tokens that this rank has in each section
        std::vector<std::vector<Tensor>> inputs;
        if (tower) {
            sent = tokens.output_of(*tower, views);
            rows.write(tower->pipeline().forward(batch, {}, result), sent);
            rows.sum(world);
            check_tower(family, tokens, rows, views, precision.tower, what);
            for (const RowRange& range : language.rows_of(partition)) {
                const auto numbers = tokens.expanded(views[range.sequence]);
                for (std::int64_t row = range.first; row < range.first + range.count; ++row)
                    if (numbers[row] >= 0) received.push_back(numbers[row]);
            }
            const Tensor local = rows.read(received, precision.type, edge);
            std::int64_t at = 0;
            inputs.emplace_back();
            for (const std::int64_t count : language.pipeline().edge_rows(batch)) {
                inputs[0].push_back(local.slice(at, at + count));
                at += count;
            }
            MAESTRO_CHECK(at == local.dim(0), "{}: {} rows of {}", what, at, local.dim(0));
        }
        logits.add(language, partition, views, language.pipeline().forward(batch, inputs, result));
        const Tensor d_edge = language.pipeline().backward({});
        if (tower) {
            gradients.write(d_edge, received);
            gradients.sum(world);
            tower->pipeline().backward(gradients.read(sent, precision.type, edge));
        }
    }
    const double loss = world.sum(result.loss), expected = family.reference.read<double>("loss").at(0);
    MAESTRO_CHECK(std::abs(loss - expected) <= precision.loss * expected, "{}: loss {:.15g}, not {:.15g}",
                  what, loss, expected);
    logits.check(world, precision.logits, what);
    std::vector<Section*> sections{&language};
    if (tower) sections.push_back(&*tower);
    for (const auto& [name, gradient] : sum_gradients(world, family, sections)) {
        // A tied embedding is in the first and in the last stage, each of which has a part of the gradient.
        const auto [least, most] = std::minmax_element(gradient.holders.begin(), gradient.holders.end());
        MAESTRO_CHECK(*least >= 1 && *most <= layout.pp, "{}: {} to {} ranks have an element of {}", what,
                      *least, *most, name);
        Distance distance;
        const auto values = family.reference.read<double>(name);
        for (std::size_t i = 0; i < values.size(); ++i) distance.add(gradient.sum[i], values[i]);
        MAESTRO_CHECK(distance.norm_squares > 1e-6, "{}: {} is zero", what, name);
        MAESTRO_CHECK(distance.relative() <= precision.gradients, "{}: {} differs by {:.2g}", what, name,
                      distance.relative());
    }
}

}  // namespace

int main(int argc, char** argv) {
    return maestro::test::run(argc, argv, [](const comm::Communicator& world) {
        for (const std::string& name : testing_support::folder_families())
            MAESTRO_CHECK(std::any_of(std::begin(kFamilies), std::end(kFamilies),
                                      [&](const FamilyCase& each) { return name == each.name; }),
                          "{} has no bounds in kFamilies", name);
        int compared = 0;
        for (int ranks = 1; ranks <= world.size(); ranks *= 2) {
            const int parts = world.size() / ranks, part = world.rank() / ranks;
            const comm::Communicator group = world.split(part, world.rank());
            int next = 0;
            for (const FamilyCase& each : kFamilies) {
                Family family(each);
                for (const Layout& layout : kLayouts) {
                    if (!fits(layout, family.spec)) continue;
                    for (const Precision& precision : {kExact[0], kExact[1], family.rounded})
                        if (layout.ranks() == ranks && next++ % parts == part) {
                            run(group, family, layout, precision);
                            if (group.rank() == 0) ++compared;
                        }
                }
            }
        }
        compared = static_cast<int>(world.sum(std::int64_t{compared}));
        int expected = 0;
        for (const FamilyCase& each : kFamilies)
            for (const Layout& layout : kLayouts)
                if (fits(layout, testing_support::spec_of_folder(each.name)))
                    expected += static_cast<int>(std::size(kExact)) + 1;
        MAESTRO_CHECK(compared == expected, "{} of {} runs", compared, expected);
        if (world.rank() == 0) std::printf("%d runs compared\n", compared);
    });
}
