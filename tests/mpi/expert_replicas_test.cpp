// Replicas that share experts (layout.ep across dp), each with samples of different number and length and one
// of them without any. Loss and all gradients, in double, must equal those of one rank with all samples.
#include <cmath>

#include "base/check.hpp"
#include "mpi/compare_gradients.hpp"
#include "mpi/mpi_main.hpp"
#include "unit/model/pipeline.hpp"

namespace {

using namespace maestro;
using namespace maestro::model;
using namespace maestro::parallel;

/// The samples of a micro-batch: `count` texts of unlike length.
model::test::Samples texts(int count) {
    model::test::Samples samples;
    for (int i = 0; i < count; ++i) {
        std::vector<std::int32_t> tokens;
        for (int t = 0; t < 5 + 7 * i % 11; ++t)
            tokens.push_back((3 + 5 * i + 7 * t + t * t) % model::test::kMarker);
        samples.add(tokens);
    }
    return samples;
}

/// Returns the replica of a sample. The first one has every second sample, and the last one none.
int replica_of(int sample, int replicas) {
    return sample % 2 == 0 || replicas < 3 ? 0 : 1 + sample / 2 % (replicas - 2);
}

struct Layout {
    Degrees degrees;
    ExpertDegrees experts;
    std::string text() const {
        return "cp " + std::to_string(degrees.cp) + " tp " + std::to_string(degrees.tp) + " ep " +
               std::to_string(experts.ep) + " etp " + std::to_string(experts.etp);
    }
};

/// A step of one micro-batch on every replica of the world.
void run(const comm::Communicator& world, const ModelSpec& spec, const Role& role, const Layout& layout) {
    const std::string what = layout.text() + (role.recompute == Recompute::layer ? ", recomputed" : "");
    const auto backend = backend::make_cpu(1);
    const int replicas = world.size() / layout.degrees.ranks();
    const model::test::Samples samples = texts(2 * replicas + 1);

    model::test::Pipeline reference(*backend, spec, role, {spec.layers});
    Result expected;
    reference.forward(samples.batch(), {}, expected);
    reference.backward({});

    model::test::Pipeline part(*backend, spec, role, {spec.layers}, [&] {
        const MeshShape shape{.dp = replicas,
                              .degrees = layout.degrees,
                              .kv_heads = spec.kv_heads(),
                              .has_experts = true,
                              .experts = layout.experts};
        return make_mesh(world, *backend, shape, role.section);
    });
    Module& module = *part.stages()[0]->module;
    const int mine = module.mesh().rank_in_stage() / layout.degrees.ranks();
    std::vector<SampleView> views;
    std::vector<std::int64_t> rows_of_ranks;
    for (int replica = 0; replica < replicas; ++replica) {
        std::vector<std::int64_t> lengths;
        for (std::size_t i = 0; i < samples.views().size(); ++i) {
            if (replica_of(static_cast<int>(i), replicas) != replica) continue;
            lengths.push_back(static_cast<std::int64_t>(samples.views()[i].tokens.size()));
            if (replica == mine) views.push_back(samples.views()[i]);
        }
        const Partition partition(lengths, AttentionMask::causal, layout.degrees);
        for (int cp = 0; cp < layout.degrees.cp; ++cp)
            for (const std::int64_t rows : partition.tp_rows(cp)) rows_of_ranks.push_back(rows);
    }
    MAESTRO_CHECK((mine == replicas - 1) == views.empty(), "replica {} has {} samples", mine, views.size());
    Batch batch = samples.batch();
    batch.samples = views;
    batch.lane_rows = rows_of_ranks;
    Result result;
    part.forward(batch, {}, result);
    part.backward({});
    std::vector<double> sums{result.loss, static_cast<double>(result.tokens)};
    world.allreduce_sum(std::span(sums));
    MAESTRO_CHECK(std::abs(sums[0] - expected.loss) < model::test::kNear * expected.loss,
                  "{}: loss {:.15g}, not {:.15g}", what, sums[0], expected.loss);
    MAESTRO_CHECK(sums[1] == static_cast<double>(expected.tokens), "{}: {} tokens", what, sums[1]);
    model::test::compare_terms(world, reference.terms(), part.terms(), what);
    for (ParameterGroup& group : module.parameters().groups())
        if (group.trainable()) group.reduce_gradients(part.stages()[0]->scratch);
    model::test::compare_gradients(*reference.stages()[0]->module, module, what);
    // By these alone a bias is moved, which has no gradient.
    std::vector<model::ExpertLoad> loads = module.take_expert_loads(),
                                   due = reference.stages()[0]->module->take_expert_loads();
    MAESTRO_CHECK(!due.empty() && loads.size() == due.size(), "{}: loads of {} layers", what, loads.size());
    for (std::size_t i = 0; i < due.size(); ++i) {
        world.allreduce_sum(std::span(loads[i].choices));
        MAESTRO_CHECK(loads[i].choices == due[i].choices && !loads[i].bias == !due[i].bias,
                      "{}: other choices of layer {}", what, due[i].layer);
    }
}

}  // namespace

int main(int argc, char** argv) {
    return maestro::test::run(argc, argv, [](const comm::Communicator& world) {
        const int ranks = world.size();
        int compared = 0;
        for (const auto& change : {model::test::use_experts, model::test::use_sigmoid_experts})
            for (const Recompute recompute : {Recompute::none, Recompute::layer}) {
                ModelSpec spec = model::test::language_spec(24, 32, false);
                change(spec);
                const Role role{.section = "language",
                                .inputs = {},
                                .loss_terms = {LossTerm{}},
                                .markers = Markers(model::test::kMarker),
                                .compute = DType::f64,
                                .recompute = recompute};
                for (int of_replica = 1; 2 * of_replica <= ranks; ++of_replica)
                    for (int cp = 1; cp <= of_replica; ++cp)
                        for (int sharing = 2 * of_replica; sharing <= ranks; sharing += of_replica)
                            for (int etp = 1; etp <= sharing; ++etp) {
                                const int tp = of_replica / cp, ep = sharing / etp,
                                          heads = model::test::attention_of(spec).heads;
                                if (ranks % sharing != 0 || of_replica % cp != 0 || heads % tp != 0 ||
                                    sharing % etp != 0 || 12 % ep != 0 || 12 % etp != 0)
                                    continue;
                                run(world, spec, role, {{cp, tp}, {ep, etp}});
                                ++compared;
                            }
            }
        MAESTRO_CHECK(compared > 0, "no layout fits {} ranks", ranks);
        if (world.rank() == 0) std::printf("%d runs compared\n", compared);
    });
}
