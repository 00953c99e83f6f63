// Both jobs of the unit tests, with each section on all ranks of the world as one replica. Losses and all
// gradients, in double, must equal those of the same sections on one rank, which the unit tests compare with
// PyTorch. What every rank has sent to its mesh must equal what the same code counts on a meta mesh.
#include <algorithm>
#include <cmath>
#include <map>
#include <variant>

#include "base/check.hpp"
#include "mpi/compare_gradients.hpp"
#include "mpi/mpi_main.hpp"
#include "unit/model/pipeline.hpp"

namespace {

using namespace maestro;
using namespace maestro::model;
using namespace maestro::parallel;
using model::test::Job;
using model::test::kNear;

struct Layout {
    Degrees degrees;
    ContextKind kind;
    ExpertDegrees experts = {};
    bool two_nodes = false;  ///< the ranks that share experts are on two nodes by turns
    std::vector<int> nodes() const {
        std::vector<int> nodes;
        for (int rank = 0; rank < experts.ranks(); ++rank) nodes.push_back(two_nodes ? rank % 2 : 0);
        return nodes;
    }
    std::string text() const {
        return "cp " + std::to_string(degrees.cp) + " tp " + std::to_string(degrees.tp) +
               (kind == ContextKind::ring ? " ring" : " all-to-all") +
               (experts.ranks() == 1 ? ""
                                     : " ep " + std::to_string(experts.ep) + " etp " +
                                           std::to_string(experts.etp) + (two_nodes ? " on two nodes" : ""));
    }
};

/// A section on the ranks of the world, whole or in stages of so many layers.
struct Sharded : model::test::Pipeline {
    Sharded(backend::Backend& b, const comm::Communicator& world, const ModelSpec& spec, const Role& role,
            const Layout& layout, const std::vector<int>& layers)
        : Pipeline(b, spec, role, layers, [&] {
              const bool has_experts = spec.experts.count > 0;
              const MeshShape shape{.degrees = layout.degrees,
                                    .context_kind = layout.kind,
                                    .kv_heads = spec.kv_heads(),
                                    .has_experts = has_experts,
                                    .experts = has_experts ? layout.experts : ExpertDegrees{}};
              return make_mesh(world, b, shape, role.section, nullptr, collective::Sums::automatic,
                               collective::Nodes(layout.nodes()));
          }) {}
    const Mesh& mesh() const { return stages().back()->module->mesh(); }
    /// Reduces the gradients as an optimizer does: each rank has the sums of its shards.
    void sum_gradients() {
        for (const auto& stage : stages())
            for (ParameterGroup& group : stage->module->parameters().groups())
                if (group.trainable()) group.reduce_gradients(stage->scratch);
    }
};

void compare(const Module& whole, const Sharded& parts, const std::string& what) {
    for (const auto& stage : parts.stages()) model::test::compare_gradients(whole, *stage->module, what);
}

/// What this rank has sent to its mesh in a forward and, where the role asks for one, a backward pass.
struct Sent {
    collective::Traffic tp, cp;
};

Sent sent_by(const Module& module) {
    return {module.mesh().tp().traffic(), module.mesh().cp().traffic()};
}
std::int64_t bytes_sent_by(const Sharded& section) {
    std::int64_t bytes = 0;
    for (const auto& stage : section.stages())
        bytes += sent_by(*stage->module).tp.bytes + sent_by(*stage->module).cp.bytes;
    return bytes;
}

/// Returns the same for a meta mesh of this rank, over the same micro-batch.
Sent sent_on_meta(const ModelSpec& spec, const Role& role, const Batch& batch, const Mesh& mesh) {
    const auto meta = backend::make_meta();
    const auto module = make_module(*meta, spec, role, make_meta_mesh(mesh.rank_in_replica(), mesh.shape()));
    std::vector<std::vector<Tensor>> inputs(role.inputs.size());
    std::vector<Tensor> d_inputs(role.inputs.size());
    const auto input_rows = module->input_rows(batch);
    for (std::size_t e = 0; e < inputs.size(); ++e)
        for (const std::int64_t rows : input_rows[e])
            inputs[e].push_back(Tensor(nullptr, role.compute, {rows, row_width(role.inputs[e], spec.width)}));
    backend::Arena saved, scratch;
    Tensor output;
    Result result;
    const auto state = module->forward(batch, inputs, saved, scratch, output, result);
    if (role.needs_backward) module->backward(*state, output, d_inputs, scratch);
    return sent_by(*module);
}

void compare(const Sent& found, const Sent& expected_sent, const std::string& what) {
    const auto one = [&](const collective::Traffic& is, const collective::Traffic& meta, const char* group) {
        MAESTRO_CHECK(is.messages == meta.messages && is.bytes == meta.bytes,
                      "{}: {} messages and {} bytes to the {} ranks, the meta mesh counts {} and {}", what,
                      is.messages, is.bytes, group, meta.messages, meta.bytes);
    };
    one(found.tp, expected_sent.tp, "tp");
    one(found.cp, expected_sent.cp, "cp");
}

/// measure() knows only the lengths of samples. It is exact too for a section without a loss, whose traffic
/// depends on the targets.
void compare_measured(const Sent& found, const ModelSpec& spec, const Role& role,
                      const std::vector<SampleShape>& shapes, const Mesh& mesh, const std::string& what) {
    const Footprint f = measure(spec, role, shapes, {}, make_meta_mesh(mesh.rank_in_replica(), mesh.shape()));
    compare(found, {f.tp, f.cp}, what + ", measured");
}

/// The memory that is planned for the tasks of a section is enough, whatever the router has chosen. Shapes of
/// samples do not tell which rows have targets: the loss may need a little more than for those assumed.
void check_scratch(const model::test::StageOnDevice& stage, const std::vector<SampleShape>& shapes,
                   const Layout& layout, const std::string& what) {
    const Mesh& mesh = stage.module->mesh();
    const Footprint planned =
        measure(stage.spec, stage.role, shapes, {.worst_case = layout.degrees.cp > 1},
                make_meta_mesh(mesh.rank_in_replica(), mesh.shape(),
                               {.tp = {}, .cp = {}, .data = {}, .expert_nodes = layout.nodes()}));
    MAESTRO_CHECK(stage.scratch.peak() <= planned.scratch + 512, "{}: {} bytes of scratch, planned are {}",
                  what, stage.scratch.peak(), planned.scratch);
}

/// The rows of both sections, counted over the micro-batch.
struct Rows {
    std::vector<std::int64_t> first_lengths, last_lengths;  ///< rows of the sequences
    std::vector<std::int32_t> source;  ///< by row of the last section: the output row that fills it; -1: none
    std::int64_t unit = 1;             ///< rows of the first section that become one output row
};

Rows rows_of(const Job& job, bool pictures) {
    Rows rows;
    std::int32_t next = 0;
    for (const SampleView& sample : job.samples.views()) {
        const std::size_t before = rows.source.size();
        std::size_t picture = 0;
        for (const std::int32_t token : sample.tokens) {
            if (!pictures) {
                rows.source.push_back(next++);
            } else if (token != model::test::kMarker) {
                rows.source.push_back(-1);
            } else {
                const std::int64_t tokens =
                    model::Units(model::test::vision_spec()).outputs(sample.items[picture++].item);
                for (std::int64_t i = 0; i < tokens; ++i) rows.source.push_back(next++);
                rows.first_lengths.push_back(4 * tokens);
            }
        }
        rows.last_lengths.push_back(static_cast<std::int64_t>(rows.source.size() - before));
    }
    if (pictures)
        rows.unit = 4;
    else
        rows.first_lengths = rows.last_lengths;
    return rows;
}

/// Returns the output rows of the first section on this rank in their local order, counted over the
/// micro-batch.
std::vector<std::int32_t> local_output_rows(const Rows& rows, bool pictures, const Mesh& mesh) {
    const Partition partition(rows.first_lengths,
                              pictures ? AttentionMask::bidirectional : AttentionMask::causal, mesh.degrees(),
                              rows.unit);
    std::vector<std::int32_t> local;
    for (const RowRange& range : partition.rows_of(mesh.cp_rank(), mesh.tp_rank()))
        for (std::int64_t row = range.first; row < range.first + range.count; row += rows.unit)
            local.push_back(
                static_cast<std::int32_t>((partition.offsets()[range.sequence] + row) / rows.unit));
    return local;
}

bool fits(const ModelSpec& spec, const Layout& layout) {
    const Degrees degrees = layout.degrees;
    return std::all_of(spec.mixers.begin(), spec.mixers.end(), [&](const model::MixerForm& mixer) {
        const auto& form = std::get<model::AttentionForm>(mixer);
        return form.not_split_by(degrees.tp).empty() &&
               (layout.kind == ContextKind::ring || form.not_split_by(degrees.tp, degrees.cp).empty());
    });
}

/// Runs both sections in the layouts `up` and `down`, whole or in stages of so many layers, and compares them
/// with `reference`. Returns the bytes that this rank has sent to its mesh.
std::int64_t run(const comm::Communicator& world, Job& reference, bool pictures, const Layout& up,
                 const Layout& down, const std::vector<int>& layers) {
    const std::string what = (pictures ? "pictures, " : "teacher, ") + up.text() + " to " + down.text() +
                             (layers.size() > 1 ? ", in stages" : "");
    const Result expected = reference.run();
    const auto backend = backend::make_cpu(1);
    Sharded first(*backend, world, reference.first_spec, reference.first_role, up, layers);
    Sharded last(*backend, world, reference.last_spec, reference.last_role, down, layers);
    const Batch batch = reference.samples.batch();
    const Rows rows = rows_of(reference, pictures);
    const std::int64_t width = reference.first_role.output_width;
    std::int64_t total = 0;
    for (const std::int64_t length : rows.first_lengths) total += length / rows.unit;
    Result result;
    const Tensor output = first.forward(batch, {}, result);
    const auto local = local_output_rows(rows, pictures, first.mesh());
    MAESTRO_CHECK(output.dim(0) == static_cast<std::int64_t>(local.size()), "{}: {} rows of {}", what,
                  output.describe(), local.size());
    // The edge is simulated: every rank gets the rows of all ranks. Channels have separate tests.
    std::vector<double> all(static_cast<std::size_t>(total * width), 0.0);
    for (std::size_t r = 0; r < local.size(); ++r)
        std::copy_n(output.as<double>() + static_cast<std::int64_t>(r) * width, width,
                    all.begin() + local[r] * width);
    world.allreduce_sum(std::span(all));
    const Tensor whole(all.data(), DType::f64, {total, width});
    const Partition partition(rows.last_lengths, AttentionMask::causal, down.degrees);
    std::vector<std::vector<Tensor>> inputs(1);
    std::vector<std::int32_t> edge_rows;  // rows of `whole`, in this rank's local order
    for (const RowRange& range : partition.rows_of(last.mesh().cp_rank(), last.mesh().tp_rank()))
        for (std::int64_t row = range.first; row < range.first + range.count; ++row)
            if (const auto at = rows.source[partition.offsets()[range.sequence] + row]; at >= 0)
                edge_rows.push_back(at);
    std::vector<double> gathered;
    for (const std::int32_t at : edge_rows)
        gathered.insert(gathered.end(), all.begin() + at * width, all.begin() + (at + 1) * width);
    std::int64_t at = 0;
    for (const std::int64_t count : last.edge_rows(batch)) {
        inputs[0].push_back(Tensor(gathered.data() + at * width, DType::f64, {count, width}));
        at += count;
    }
    MAESTRO_CHECK(at == static_cast<std::int64_t>(edge_rows.size()), "{}: {} rows of {}", what, at,
                  edge_rows.size());
    last.forward(batch, inputs, result);
    const Tensor d_edge = last.backward({});
    if (layers.size() == 1)
        compare(sent_by(*last.stages()[0]->module),
                sent_on_meta(reference.last_spec, reference.last_role, batch, last.mesh()),
                what + ", " + reference.last_name);
    for (const auto& stage : last.stages())
        if (reference.last_spec.experts.count > 0)
            check_scratch(*stage, reference.samples.shapes(), down, what + ", " + reference.last_name);
    const std::int64_t last_sent = bytes_sent_by(last);
    std::vector<double> sums{result.loss, static_cast<double>(result.tokens)};
    world.allreduce_sum(std::span(sums));
    MAESTRO_CHECK(std::abs(sums[0] - expected.loss) < kNear * expected.loss, "{}: loss {:.15g}, not {:.15g}",
                  what, sums[0], expected.loss);
    MAESTRO_CHECK(sums[1] == static_cast<double>(expected.tokens), "{}: {} tokens", what, sums[1]);
    last.sum_gradients();
    compare(*reference.last, last, what + ", " + reference.last_name);
    std::map<std::string, double> terms;
    for (const LossSum& sum : reference.last->loss_sums()) terms[sum.term] += sum.value;
    model::test::compare_terms(world, terms, last.terms(), what);
    const auto check_first = [&] {
        const Sent sent = sent_by(*first.stages()[0]->module);
        const std::string name = what + ", " + reference.first_name;
        if (layers.size() == 1) {
            compare(sent, sent_on_meta(reference.first_spec, reference.first_role, batch, first.mesh()),
                    name);
            compare_measured(sent, reference.first_spec, reference.first_role, reference.samples.shapes(),
                             first.mesh(), name);
        }
        return bytes_sent_by(first) + last_sent;
    };
    if (!pictures) return check_first();
    std::fill(all.begin(), all.end(), 0.0);
    for (std::size_t r = 0; r < edge_rows.size(); ++r)
        std::copy_n(d_edge.as<double>() + static_cast<std::int64_t>(r) * width, width,
                    all.begin() + edge_rows[r] * width);
    world.allreduce_sum(std::span(all));
    std::vector<double> d_local;
    for (const std::int32_t row : local)
        d_local.insert(d_local.end(), all.begin() + row * width, all.begin() + (row + 1) * width);
    first.backward(Tensor(d_local.data(), DType::f64, {static_cast<std::int64_t>(local.size()), width}));
    const std::int64_t sent = check_first();
    first.sum_gradients();
    compare(*reference.first, first, what + ", " + reference.first_name);
    return sent;
}

}  // namespace

int main(int argc, char** argv) {
    return maestro::test::run(argc, argv, [](const comm::Communicator& world) {
        const int ranks = world.size();
        std::vector<Layout> layouts;
        for (int cp = 1; cp <= ranks; ++cp)
            if (ranks % cp == 0)
                for (const ContextKind kind : {ContextKind::ring, ContextKind::all_to_all})
                    if (cp > 1 || kind == ContextKind::ring) layouts.push_back({{cp, ranks / cp}, kind});
        // Each stage would add its part of a tied gradient.
        const auto untied = [](ModelSpec& spec) { spec.tie_embeddings = false; };
        const auto uneven = [](ModelSpec& spec) {  // heads are divisible by three, the other sizes by nothing
            model::test::attention_of(spec).heads = 6;
            model::test::attention_of(spec).kv_heads = 3;
            spec.vocabulary = spec.vocabulary > 0 ? 41 : 0;
            spec.mlp = 25;
        };
        // Some of the experts' degrees, so that each is seen with some layout.
        std::vector<ExpertDegrees> shares;
        for (int etp = 1; etp <= ranks; ++etp)
            for (int ep = 1; ep * etp <= ranks; ++ep)
                if (ranks % (ep * etp) == 0 && 12 % ep == 0 && 12 % etp == 0) shares.push_back({ep, etp});
        using model::test::use_experts;
        const auto sigmoid_experts = [](ModelSpec& spec) {
            spec.tie_embeddings = false;
            model::test::use_sigmoid_experts(spec);
        };
        const auto sigmoid_experts_by_loss = [&](ModelSpec& spec) {
            sigmoid_experts(spec);
            if (spec.experts.count == 0) return;
            spec.experts.balance = ExpertsSpec::Balance::loss;
            spec.experts.balance_strength = 0.3;
        };
        int compared = 0;
        std::int64_t sent = 0;
        struct Case {
            std::function<void(ModelSpec&)> change;
            Recompute recompute = Recompute::none;
            std::vector<int> layers = {2};
            TpOverlap tp_overlap = TpOverlap::automatic;
            std::vector<std::string> frozen = {};
            Lora lora = {};
        };
        using model::test::kAllAdapters, model::test::kSomeAdapters;
        for (const Case& c :
             {Case{{}}, Case{{}, Recompute::layer}, Case{{}, Recompute::cheap}, Case{uneven},
              Case{uneven, Recompute::layer}, Case{untied, Recompute::none, {1, 1}},
              Case{model::test::use_other_forms}, Case{model::test::use_two_mixers, Recompute::cheap},
              Case{{}, Recompute::cheap, {2}, TpOverlap::always},
              Case{uneven, Recompute::none, {2}, TpOverlap::always}, Case{use_experts},
              Case{use_experts, Recompute::cheap}, Case{sigmoid_experts, Recompute::layer},
              Case{sigmoid_experts_by_loss, Recompute::none, {1, 1}},
              Case{{},
                   Recompute::none,
                   {2},
                   TpOverlap::automatic,
                   {"patch", "embedding", "layers.0", "projector"}},
              Case{untied,
                   Recompute::none,
                   {1, 1},
                   TpOverlap::automatic,
                   {"layers.0.mlp", "layers.1.attention", "merger", "head"}},
              Case{{}, Recompute::cheap, {2}, TpOverlap::always, {}, kAllAdapters},
              Case{uneven, Recompute::layer, {2}, TpOverlap::automatic, {}, kSomeAdapters},
              Case{model::test::use_other_forms,
                   Recompute::none,
                   {1, 1},
                   TpOverlap::automatic,
                   {},
                   kAllAdapters}})
            for (const Job::Kind kind : {Job::Kind::vlm, Job::Kind::distill}) {
                Job reference(kind, DType::f64, c.recompute, 1, c.change, c.lora);
                reference.first_role.tp_overlap = reference.last_role.tp_overlap = c.tp_overlap;
                // The modules of the reference train everything.
                reference.first_role.frozen = reference.last_role.frozen =
                    frozen_with(c.lora, FrozenParameters(c.frozen));
                std::vector<Layout> ups, downs;
                for (const Layout& layout : layouts) {
                    if (fits(reference.first_spec, layout)) ups.push_back(layout);
                    if (fits(reference.last_spec, layout)) downs.push_back(layout);
                }
                // The two sections have different layouts where several fit.
                for (std::size_t i = 0; i < ups.size() && !downs.empty(); ++i) {
                    Layout up = ups[i], down = downs[(i + 1) % downs.size()];
                    // With experts, all of their degrees beside these layouts, on one node or on two.
                    const bool has_experts = reference.last_spec.experts.count > 0;
                    for (std::size_t share = 0; share < (has_experts ? shares.size() : 1); ++share) {
                        up.experts = down.experts = shares[share];
                        up.two_nodes = down.two_nodes = (i + share) % 2 == 1;
                        sent += run(world, reference, kind == Job::Kind::vlm, up, down, c.layers);
                        ++compared;
                    }
                }
            }
        MAESTRO_CHECK(compared > 0, "no layout fits {} ranks", ranks);
        sent = world.sum(sent);
        MAESTRO_CHECK(ranks == 1 || sent > 0, "nothing was sent");
        if (world.rank() == 0)
            std::printf("%d runs compared, %lld bytes sent as on a meta mesh\n", compared,
                        static_cast<long long>(sent));
    });
}
