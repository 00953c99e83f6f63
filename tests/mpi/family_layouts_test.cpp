// Models of Hugging Face folders in layouts: loss, logits and every gradient against those of transformers in
// double precision (tests/golden/families/make_families.py). Samples of unlike lengths are packed into one
// micro-batch per replica. Layouts of fewer ranks than the world has run side by side.
#include <cmath>
#include <map>

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

/// A further family is a further name.
constexpr const char* kFamilies[] = {"llama", "qwen3"};

struct Layout {
    const char* name;
    int dp = 1;
    Degrees degrees = {};
    int pp = 1;
    ContextKind kind = ContextKind::ring;
    int ranks() const { return dp * degrees.ranks(); }  // all stages of a rank run in its process
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
    {"tp 4, which has copies of KV heads", 1, {1, 4}},
    {"dp 2 x tp 2 x pp 2", 2, {1, 2}, 2},
    {"dp 2 x cp 2", 2, {2, 1}},
};

/// Largest differences, relative to the 2-norm of a tensor.
struct Precision {
    DType type;
    double loss, logits, gradients;
};

/// In bf16 every matmul rounds its output to 8 bits, and other orders of summation round to other neighbours.
/// With these weights and samples in bf16, transformers itself differs from its double precision by up to
/// 1.2e-3 in the loss, 0.017 in logits and 0.037 in gradients (llama; qwen3: 8e-4, 0.013 and 0.031). The
/// bounds are about 1.6 times as large.
constexpr Precision kPrecisions[] = {
    {DType::f64, 1e-10, 1e-10, 1e-10},
    {DType::f32, 1e-5, 1e-5, 1e-5},
    {DType::bf16, 2e-3, 0.028, 0.06},
};

struct Family {
    explicit Family(const std::string& family_name)
        : name(family_name),
          spec(testing_support::spec_of_folder(name)),
          reference(name),
          samples(reference) {
        Pulse pulse;
        const safetensors::SafetensorsFile file(testing_support::folder_of(name) + "/model.safetensors",
                                                pulse);
        const auto pieces = families::pieces_of(spec, "head.weight", {spec.vocabulary, spec.width});
        const safetensors::TensorInfo* const tensor = file.find(pieces.at(0).tensor);
        head.resize(static_cast<std::size_t>(tensor->elements));
        file.read(*tensor, Range{0, tensor->elements}, head.data(), pulse);
    }
    std::string name;
    model::ModelSpec spec;
    FamilyReference reference;
    FamilySamples samples;
    std::vector<float> head;  ///< [V, C]
};

/// The sums of the gradients over all ranks and stages, by the tensors of the folder. Of copies the first one
/// counts.
std::map<std::string, std::vector<double>> sum_gradients(const comm::Communicator& world, Family& family,
                                                         const Pipeline& pipeline) {
    std::map<std::string, std::vector<double>> sums;
    for (const safetensors::TensorInfo& tensor : family.reference.tensors())
        if (tensor.name.starts_with("gradient."))
            sums[tensor.name].resize(static_cast<std::size_t>(tensor.elements));
    for (const auto& stage : pipeline.stages()) {
        ParameterStore& store = stage->module->parameters();
        for (ParameterGroup& group : store.groups()) group.reduce_gradients(stage->scratch);
        for (const Parameter& p : store.parameters()) {
            const auto values = testing_support::read_elements(store.backend(), p.gradient);
            const auto pieces = families::pieces_of(family.spec, p.name, p.shape);
            const Range shard = store.group_of(p).shard_of(p);
            if (shard.size() <= 0) continue;
            for (const Range& range : store.group_of(p).first_copies(p, shard)) {
                const auto extents = extents_of(p.shape, p.shard, range);
                const auto by_piece =
                    families::extents_by_piece(pieces, whole(p.shape).columns.size(), extents);
                for (std::size_t i = 0; i < pieces.size(); ++i) {
                    std::vector<double>& sum = sums.at("gradient." + pieces[i].tensor);
                    for (const Extent& e : by_piece[i])
                        for (std::int64_t k = 0; k < e.count; ++k)
                            sum.at(e.logical + k) += values[e.local + k];
                }
            }
        }
    }
    for (auto& [name, sum] : sums) world.allreduce_sum(std::span(sum));
    return sums;
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

/// Compares the logits of the rows that this rank holds, and counts those of all ranks.
void check_logits(const comm::Communicator& world, Family& family, const Layout& layout,
                  std::span<const model::SampleView> views, const Mesh& mesh, const Tensor& output,
                  double allowed, const std::string& what) {
    std::vector<std::int64_t> lengths;
    for (const model::SampleView& view : views)
        lengths.push_back(static_cast<std::int64_t>(view.tokens.size()));
    const Partition partition(lengths, AttentionMask::causal, layout.degrees);
    std::vector<std::vector<double>> expected;
    for (const model::SampleView& view : family.samples.views())
        expected.push_back(family.reference.read<double>(fmt::format("logits.{}", view.id)));
    std::vector<Distance> distances(expected.size());
    const int width = family.spec.width, vocabulary = family.spec.vocabulary;
    std::int64_t local = 0;
    for (const RowRange& range : partition.rows_of(mesh.cp_rank(), mesh.tp_rank()))
        for (std::int64_t row = range.first; row < range.first + range.count; ++row, ++local) {
            const auto sample = static_cast<std::size_t>(views[range.sequence].id);
            for (int v = 0; v < vocabulary; ++v) {
                double logit = 0;
                for (int c = 0; c < width; ++c)
                    logit += testing_support::element_of(output, local * width + c) *
                             static_cast<double>(family.head[static_cast<std::size_t>(v * width + c)]);
                distances[sample].add(logit, expected[sample].at(row * vocabulary + v));
            }
        }
    MAESTRO_CHECK(local == output.dim(0), "{}: {} rows, the partition has {}", what, output.dim(0), local);
    for (std::size_t s = 0; s < distances.size(); ++s) {
        distances[s].sum(world);
        MAESTRO_CHECK(distances[s].count == static_cast<double>(expected[s].size()),
                      "{}: {} logits of sample {}", what, distances[s].count, s);
        MAESTRO_CHECK(distances[s].relative() <= allowed, "{}: logits of sample {} differ by {:.2g}", what, s,
                      distances[s].relative());
    }
}

void run(const comm::Communicator& world, Family& family, const Layout& layout, const Precision& precision) {
    const std::string what = fmt::format("{}, {}, {}", family.name, layout.name, name_of(precision.type));
    const model::ModelSpec& spec = family.spec;
    const auto backend = backend::make_cpu(1);
    model::Role role{};
    role.section = "text";
    role.loss = role.emits = true;  // the hidden states too, for the logits
    role.output_width = spec.width;
    role.compute = precision.type;
    const std::vector<int> layers =
        layout.pp == 1 ? std::vector{spec.layers} : std::vector{spec.layers - 1, 1};
    Pipeline pipeline(*backend, spec, role, layers, [&] {
        return make_mesh(world, *backend,
                         {.dp = layout.dp,
                          .degrees = layout.degrees,
                          .context_kind = layout.kind,
                          .kv_heads = spec.kv_heads},
                         role.section);
    });
    Pulse pulse;
    for (const auto& stage : pipeline.stages()) {
        ParameterStore& store = stage->module->parameters();
        train::load_folder(testing_support::folder_of(family.name), spec, store, pulse);
        for (ParameterGroup& group : store.groups()) group.gather_weights();
    }
    const Mesh& mesh = pipeline.stages().back()->module->mesh();
    std::vector<model::SampleView> views;  // of this replica
    for (const model::SampleView& view : family.samples.views())
        if (view.id % layout.dp == mesh.data_rank() / layout.degrees.cp) views.push_back(view);
    model::Result result;
    const Tensor output =
        pipeline.forward({.samples = views, .loss_scale = 1 / family.samples.weight()}, {}, result);
    const double loss = world.sum(result.loss), expected = family.reference.read<double>("loss").at(0);
    MAESTRO_CHECK(std::abs(loss - expected) <= precision.loss * expected, "{}: loss {:.15g}, not {:.15g}",
                  what, loss, expected);
    check_logits(world, family, layout, views, mesh, output, precision.logits, what);
    pipeline.backward({});
    for (const auto& [name, found] : sum_gradients(world, family, pipeline)) {
        Distance distance;
        const auto values = family.reference.read<double>(name);
        for (std::size_t i = 0; i < values.size(); ++i) distance.add(found[i], values[i]);
        MAESTRO_CHECK(distance.norm_squares > 1e-6, "{}: {} is zero", what, name);
        MAESTRO_CHECK(distance.relative() <= precision.gradients, "{}: {} differs by {:.2g}", what, name,
                      distance.relative());
    }
}

}  // namespace

int main(int argc, char** argv) {
    return maestro::test::run(argc, argv, [](const comm::Communicator& world) {
        int compared = 0;
        for (int ranks = 1; ranks <= world.size(); ranks *= 2) {
            const int parts = world.size() / ranks, part = world.rank() / ranks;
            const comm::Communicator group = world.split(part, world.rank());
            int next = 0;
            for (const char* name : kFamilies) {
                Family family(name);
                for (const Layout& layout : kLayouts)
                    for (const Precision& precision : kPrecisions)
                        if (layout.ranks() == ranks && next++ % parts == part) {
                            run(group, family, layout, precision);
                            if (group.rank() == 0) ++compared;
                        }
            }
        }
        compared = static_cast<int>(world.sum(std::int64_t{compared}));
        const auto expected = std::size(kFamilies) * std::size(kLayouts) * std::size(kPrecisions);
        MAESTRO_CHECK(compared == static_cast<int>(expected), "{} of {} runs", compared, expected);
        if (world.rank() == 0) std::printf("%d runs compared\n", compared);
    });
}
