// The sharded optimizer on any number of replicas against AdamW in double precision on one, and its moments
// through a checkpoint.
#include "train/optimizer.hpp"

#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "backend/backend.hpp"
#include "base/check.hpp"
#include "io/checkpoint.hpp"
#include "io/checkpoint_reader.hpp"
#include "mpi/mpi_main.hpp"
#include "train/agree.hpp"

using namespace maestro;

namespace {

constexpr train::AdamSettings kSettings{.learning_rate = 0.01,
                                        .final_learning_rate = 0.001,
                                        .warmup_steps = 2,
                                        .decay_steps = 20,
                                        .weight_decay = 0.1};
constexpr double kClip = 0.5;

void declare(model::ParameterStore& store, int shards) {
    store.declare("a.weight", {7, 5}, model::Init::normal, true);
    store.declare("frozen.weight", {4, 3}, model::Init::normal, false);
    store.declare("a.norm", {5}, model::Init::ones, true);
    store.declare("b.weight", {3, 11}, model::Init::normal, true);
    store.allocate(shards, 1);
}

/// Of parameter `p`'s element i on a replica, a number that no two share.
double gradient_of(std::size_t p, std::int64_t i, int replica, std::int64_t step) {
    return std::sin(1.0 + static_cast<double>(p) + 0.37 * static_cast<double>(i) + 2.1 * replica +
                    0.9 * static_cast<double>(step));
}

struct Reference {
    std::vector<double> weight, first, second;
};

void update(Reference& r, const model::Parameter& p, std::size_t index, int replicas, std::int64_t step) {
    const double rate = train::learning_rate(kSettings, step);
    for (std::size_t i = 0; i < r.weight.size(); ++i) {
        double g = 0;
        for (int k = 0; k < replicas; ++k) g += gradient_of(index, static_cast<std::int64_t>(i), k, step);
        g *= kClip;
        r.first[i] = kSettings.beta1 * r.first[i] + (1 - kSettings.beta1) * g;
        r.second[i] = kSettings.beta2 * r.second[i] + (1 - kSettings.beta2) * g * g;
        const double m = r.first[i] / (1 - std::pow(kSettings.beta1, static_cast<double>(step)));
        const double v = r.second[i] / (1 - std::pow(kSettings.beta2, static_cast<double>(step)));
        const double decay = p.decay ? rate * kSettings.weight_decay : 0;
        r.weight[i] -= decay * r.weight[i] + rate * m / (std::sqrt(v) + kSettings.eps);
    }
}

void step_both(const comm::Communicator& world, model::ParameterStore& store, train::Optimizer& optimizer,
               std::vector<Reference>& reference, std::int64_t step) {
    store.zero_gradients();
    double squares = 0;
    std::size_t index = 0;
    for (const model::Parameter& p : store.parameters()) {
        for (std::int64_t i = 0; p.trainable && i < p.size(); ++i) {
            p.gradient.as<float>()[i] = static_cast<float>(gradient_of(index, i, world.rank(), step));
            double sum = 0;
            for (int k = 0; k < world.size(); ++k) sum += gradient_of(index, i, k, step);
            squares += sum * sum;
        }
        if (p.trainable) update(reference[index], p, index, world.size(), step);
        ++index;
    }
    const double found = world.sum(optimizer.reduce());
    MAESTRO_CHECK(std::abs(found - squares) <= 1e-5 * squares, "squares {} where {} were due", found,
                  squares);
    optimizer.update(kSettings, step, kClip);
    index = 0;
    for (const model::Parameter& p : store.parameters()) {
        for (std::int64_t i = 0; i < p.size(); ++i) {
            const double is = p.master.as<float>()[i],
                         due = reference[index].weight[static_cast<std::size_t>(i)];
            MAESTRO_CHECK(std::abs(is - due) <= 2e-6, "step {}: element {} of {} is {}, not {}", step, i,
                          p.name, is, due);
        }
        ++index;
    }
}

std::vector<Reference> begin(const model::ParameterStore& store) {
    std::vector<Reference> all;
    for (const model::Parameter& p : store.parameters()) {
        const auto size = static_cast<std::size_t>(p.size());
        const float* weights = p.master.as<float>();
        all.push_back({{weights, weights + size}, std::vector<double>(size), std::vector<double>(size)});
    }
    return all;
}

/// Rank 0 writes what gather() brings, every rank reads its share into another optimizer.
void pass_on(const comm::Communicator& world, const std::filesystem::path& folder,
             const model::ParameterStore& store, const train::Optimizer& from, train::Optimizer& to) {
    std::vector<float> first, second;
    from.gather(first, second);
    Pulse quiet;
    train::agree(world, [&] {
        if (world.rank() != 0) return;
        std::vector<io::StoredParameter> stored;
        for (const model::Parameter& p : store.parameters())
            stored.push_back({.name = p.name,
                              .shape = p.shape,
                              .weight = p.master.as<float>(),
                              .first = p.trainable ? first.data() + p.offset : nullptr,
                              .second = p.trainable ? second.data() + p.offset : nullptr});
        io::write_section(folder, "language", 3, stored, quiet);
    });
    const io::SectionReader section(folder, "language", quiet);
    for (const model::Parameter& p : store.parameters()) {
        const Range share = to.share_of(p);
        if (share.size() > 0)
            to.set_moments(p, section.read(p.name, p.shape, io::Stored::first, p.shard, share),
                           section.read(p.name, p.shape, io::Stored::second, p.shard, share));
    }
}

}  // namespace

int main(int argc, char** argv) {
    return test::run(argc, argv, [](const comm::Communicator& world) {
        const auto backend = backend::make_cpu(1);
        model::ParameterStore store(*backend, "language", 1, DType::f32);
        declare(store, world.size());
        train::Optimizer optimizer(*backend, store, world);
        std::vector<Reference> reference = begin(store);
        for (std::int64_t step = 1; step <= 3; ++step) step_both(world, store, optimizer, reference, step);

        std::string folder =
            (std::filesystem::temp_directory_path() / fmt::format("optimizer-{}", ::getpid())).string();
        world.broadcast(folder);
        if (world.rank() == 0) std::filesystem::create_directories(folder);
        world.barrier();
        train::Optimizer other(*backend, store, world);
        pass_on(world, folder, store, optimizer, other);
        for (std::int64_t step = 4; step <= 6; ++step) step_both(world, store, other, reference, step);
        world.barrier();
        if (world.rank() == 0) std::filesystem::remove_all(folder);
    });
}
