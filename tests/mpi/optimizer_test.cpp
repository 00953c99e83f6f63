// The optimizer over every grid of dp x cp and tp that the ranks make up, and with an embedding that two
// stages hold copies of, against AdamW in double precision
// on one rank that holds everything: sums, norm, weights and moments, and that those who hold the same
// weights have the same bits.
#include "train/step/optimizer.hpp"

#include <bit>
#include <cmath>
#include <map>

#include "backend/backend.hpp"
#include "base/check.hpp"
#include "mpi/mpi_main.hpp"
#include "mpi/shard_grid.hpp"
#include "train/step/parameter_sync.hpp"

using namespace maestro;
using test::Grid;

namespace {

constexpr train::AdamSettings kSettings{.learning_rate = 0.01,
                                        .final_learning_rate = 0.001,
                                        .warmup_steps = 2,
                                        .decay_steps = 20,
                                        .weight_decay = 0.1};
constexpr double kClip = 0.5;
constexpr std::int64_t kSteps = 20;

struct Reference {
    std::vector<double> weight, first, second, gradient;
};

/// The partial gradient of element i of a parameter on rank `rank`; no two of these numbers are equal.
double part_of_gradient(const std::string& name, std::int64_t i, int rank, std::int64_t step) {
    const double key = static_cast<double>(name[0]) + 3.0 * static_cast<double>(name[1]);
    return std::sin(key + 0.37 * static_cast<double>(i) + 2.1 * rank + 0.9 * static_cast<double>(step));
}

/// Visits the elements that this rank holds, with their index in the whole parameter and here.
class RowPlacements {
public:
    explicit RowPlacements(const parallel::ParameterStore& store) : store_(store) {}
    template <class Visit>
    void each(Visit&& visit) const {
        for (const parallel::Parameter& p : store_.parameters())
            for (const Extent& extent : extents_of(p.shape, p.shard))
                for (std::int64_t i = 0; i < extent.count; ++i)
                    visit(p, extent.logical + i, extent.local + i);
    }

private:
    const parallel::ParameterStore& store_;
};

/// The sums of the partial gradients over all ranks that hold an element, by the name of the parameter, for
/// the elements of this rank.
std::map<std::string, std::vector<double>> sums(const comm::Communicator& world,
                                                const parallel::ParameterStore& store, std::int64_t step) {
    std::map<std::string, std::vector<double>> all;
    for (const parallel::Parameter& p : store.parameters())
        all[p.name].resize(static_cast<std::size_t>(whole(p.shape).size()));
    RowPlacements(store).each([&](const parallel::Parameter& p, std::int64_t logical, std::int64_t) {
        if (p.trainable)
            all[p.name][static_cast<std::size_t>(logical)] =
                static_cast<float>(part_of_gradient(p.name, logical, world.rank(), step));
    });
    for (auto& [name, values] : all) world.allreduce_sum(std::span(values));
    return all;
}

void update(Reference& r, bool decays, std::int64_t step) {
    const double rate = train::learning_rate(kSettings, step);
    for (std::size_t i = 0; i < r.weight.size(); ++i) {
        const double g = r.gradient[i] * kClip;
        r.first[i] = kSettings.beta1 * r.first[i] + (1 - kSettings.beta1) * g;
        r.second[i] = kSettings.beta2 * r.second[i] + (1 - kSettings.beta2) * g * g;
        const double m = r.first[i] / (1 - std::pow(kSettings.beta1, static_cast<double>(step)));
        const double v = r.second[i] / (1 - std::pow(kSettings.beta2, static_cast<double>(step)));
        const double decay = decays ? rate * kSettings.weight_decay : 0;
        r.weight[i] -= decay * r.weight[i] + rate * m / (std::sqrt(v) + kSettings.eps);
    }
}

/// Elements that several ranks hold have the same bits on all of them. By a sum of the holders' bits.
void expect_same_bits(const comm::Communicator& world, const parallel::ParameterStore& store) {
    for (const parallel::Parameter& p : store.parameters()) {
        const auto size = static_cast<std::size_t>(whole(p.shape).size());
        std::vector<std::int64_t> sum(size), count(size);
        const auto bits = [&](std::int64_t local) {
            return static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(p.weight.as<float>()[local]));
        };
        const std::vector<Extent> extents = extents_of(p.shape, p.shard);
        for (const Extent& e : extents)
            for (std::int64_t i = 0; i < e.count; ++i) {
                sum[static_cast<std::size_t>(e.logical + i)] = bits(e.local + i);
                count[static_cast<std::size_t>(e.logical + i)] = 1;
            }
        world.allreduce_sum(std::span(sum));
        world.allreduce_sum(std::span(count));
        for (const Extent& e : extents)
            for (std::int64_t i = 0; i < e.count; ++i) {
                const auto at = static_cast<std::size_t>(e.logical + i);
                MAESTRO_CHECK(sum[at] == count[at] * bits(e.local + i), "element {} of {} differs among {}",
                              at, p.name, count[at]);
            }
    }
}

/// `declare(store, tp_rank, tp)` declares the parameters of a tp rank.
template <class Declare>
void run(const comm::Communicator& world, const parallel::Mesh& mesh, const Declare& declare) {
    const auto backend = backend::make_cpu(1);
    const parallel::Mesh single = parallel::single_rank_mesh();
    parallel::ParameterStore store(*backend, mesh, "language", 1, DType::f32),
        whole_store(*backend, single, "language", 1, DType::f32);
    declare(store, mesh.tp_rank(), mesh.degrees().tp);
    declare(whole_store, 0, 1);
    train::Optimizer optimizer(*backend, store);
    train::ParameterSync sync(store, optimizer, world.waiter(), "language");
    std::map<std::string, Reference> references;
    for (const parallel::Parameter& p : whole_store.parameters()) {
        const auto count = static_cast<std::size_t>(p.size());
        references[p.name] = {.weight = {p.weight.as<float>(), p.weight.as<float>() + count},
                              .first = std::vector<double>(count),
                              .second = std::vector<double>(count),
                              .gradient = {}};
    }
    const RowPlacements holdings(store);
    for (std::int64_t step = 1; step <= kSteps; ++step) {
        const auto due = sums(world, store, step);
        double squares = 0;
        for (const parallel::Parameter& p : whole_store.parameters()) {
            Reference& r = references[p.name];
            r.gradient = due.at(p.name);
            for (const double g : r.gradient) squares += g * g;
            if (p.trainable) update(r, p.decay, step);
        }
        // The update has left zeros.
        holdings.each([&](const parallel::Parameter& p, std::int64_t logical, std::int64_t local) {
            if (p.trainable)
                p.gradient.as<float>()[local] +=
                    static_cast<float>(part_of_gradient(p.name, logical, world.rank(), step));
        });
        const double found = world.sum(sync.finish_sums());
        MAESTRO_CHECK(std::abs(found - squares) <= 1e-5 * squares, "squares {} where {} were due", found,
                      squares);
        holdings.each([&](const parallel::Parameter& p, std::int64_t logical, std::int64_t local) {
            const Range share = test::updated(store, p);
            if (local < share.begin || local >= share.end) return;
            const double is = p.gradient.as<float>()[local],
                         sum = references[p.name].gradient[static_cast<std::size_t>(logical)];
            MAESTRO_CHECK(std::abs(is - sum) <= 2e-6, "gradient {} of {} is {}, not {}", logical, p.name, is,
                          sum);
        });
        sync.update(kSettings, step, kClip);
        sync.await_weights();
        holdings.each([&](const parallel::Parameter& p, std::int64_t logical, std::int64_t local) {
            const double is = p.weight.as<float>()[local],
                         due_weight = references[p.name].weight[static_cast<std::size_t>(logical)];
            MAESTRO_CHECK(std::abs(is - due_weight) <= 5e-6, "step {}: element {} of {} is {}, not {}", step,
                          logical, p.name, is, due_weight);
        });
    }
    holdings.each([&](const parallel::Parameter& p, std::int64_t logical, std::int64_t local) {
        const Range share = test::updated(store, p);
        if (local < share.begin || local >= share.end) return;
        const auto at = static_cast<std::size_t>(local - share.begin), i = static_cast<std::size_t>(logical);
        const Reference& r = references[p.name];
        MAESTRO_CHECK(std::abs(optimizer.first_moments(p).as<float>()[at] - r.first[i]) <= 2e-6 &&
                          std::abs(optimizer.second_moments(p).as<float>()[at] - r.second[i]) <= 2e-6,
                      "moments of element {} of {}", logical, p.name);
    });
    expect_same_bits(world, store);
}

void run_grid(const comm::Communicator& world, const Grid& grid, std::int64_t size, bool groups) {
    run(world, test::mesh_of(world, grid), [&](parallel::ParameterStore& store, int tp_rank, int tp) {
        test::declare(store, tp == 1 ? Grid{} : grid, tp_rank, size, true, groups);
    });
}

/// Half of the ranks are the first stage of a pipeline and half the last one. Both hold a tied embedding.
void run_tied(const comm::Communicator& world, const Grid& grid) {
    const int stage = world.rank() / grid.ranks();
    parallel::MeshShape shape = test::shape_of(grid);
    shape.tied = {stage, 2};
    const comm::Communicator ranks = world.split(stage, world.rank());
    const parallel::Mesh mesh = parallel::make_mesh(
        ranks, test::cpu(), shape, "language",
        collective::make_process_group(world.split(world.rank() % grid.ranks(), world.rank()), test::cpu()));
    run(world, mesh, [](parallel::ParameterStore& store, int tp_rank, int tp) {
        store.declare("embedding", {37, 5}, parallel::Init::normal, true,
                      {{part_of(37, tp_rank, tp), parallel::Axis::tied}}, {0, 5});
        store.allocate(1);
        Pulse quiet;
        store.initialize(quiet);
    });
}

}  // namespace

int main(int argc, char** argv) {
    return test::run(argc, argv, [](const comm::Communicator& world) {
        for (const Grid& grid : test::grids_of(world.size()))
            for (const std::int64_t size : {1, 2, 7, 100})  // from fewer blocks than ranks on
                for (const bool groups : {false, true}) run_grid(world, grid, size, groups);
        if (world.size() % 2 != 0) return;
        for (const Grid& grid : test::grids_of(world.size() / 2))
            if (grid.keys == 1) run_tied(world, grid);
    });
}
