// Replicas of fake modules, with edges between them, as far as a rank needs them to be played by hand.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "channel/open.hpp"
#include "comm/environment.hpp"
#include "mpi/expect.hpp"
#include "support/edges.hpp"
#include "support/fake_module.hpp"
#include "train/step/local_stage.hpp"

namespace maestro::test {

using channel::Channel;
using channel::ChannelSpec;
using channel::Route;
using testing_support::Diary;
using testing_support::FakeModule;
using train::LocalStage;
using train::TaskTimes;
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kWidth = 2;

/// That a fake module puts out for a sample: 0, 1 or 2.
inline std::int64_t rows_of(std::int64_t sample) {
    return sample % 3;
}

// The output of fake modules for a sample, computed from their description alone.

/// Sum of the rows that a section sends whose x is `x`.
inline double sum_of_rows(std::int64_t sample, double x) {
    double sum = 0;
    for (std::int64_t j = 0; j < rows_of(sample); ++j)
        for (std::int64_t c = 0; c < kWidth; ++c)
            sum += 2 * x + 10 * static_cast<double>(j) + static_cast<double>(c);
    return sum;
}

/// The g that comes back over an edge from a section whose own g is `g`, and whose input `e` the edge is.
inline double g_over_edge(std::int64_t sample, double g, int e = 0) {
    double sum = 0;
    for (std::int64_t j = 0; j < rows_of(sample); ++j)
        for (std::int64_t c = 0; c < kWidth; ++c) {
            const auto row = static_cast<double>(j + 1);
            sum += row * (g * row + static_cast<double>(c) + 7.0 * e);
        }
    return sum;
}

/// A micro-batch of samples with one token each: their id.
class Samples {
public:
    explicit Samples(Ids ids) : ids_(std::move(ids)), tokens_(ids_.begin(), ids_.end()) {
        for (std::size_t i = 0; i < ids_.size(); ++i) {
            views_.emplace_back().id = ids_[i];
            views_.back().tokens = std::span(&tokens_[i], 1);
        }
    }
    model::Batch batch() const { return {.samples = views_}; }

private:
    Ids ids_;
    std::vector<std::int32_t> tokens_;
    std::vector<model::SampleView> views_;
};

inline ChannelSpec edge(std::string name, const std::vector<int>& from, const std::vector<int>& to,
                        int window, bool gradient = true) {
    ChannelSpec spec;
    spec.name = std::move(name);
    spec.pointer = from == to;
    spec.producers = testing_support::one_each(from);
    spec.consumers = testing_support::one_each(to);
    spec.width = kWidth;
    spec.window = window;
    spec.max_sent = spec.max_received = 8;
    spec.max_samples = 16;
    spec.carries_gradient = gradient;
    return spec;
}

/// Routes to replica 0 from micro-batches of replica 0; those in `left_out` go nowhere.
inline std::vector<Route> routes_of(const std::vector<Ids>& micro_batches, const Ids& left_out = {}) {
    std::vector<Route> routes;
    for (std::size_t k = 0; k < micro_batches.size(); ++k) {
        std::int64_t row = 0;
        for (const std::int64_t id : micro_batches[k]) {
            if (std::find(left_out.begin(), left_out.end(), id) == left_out.end())
                routes.push_back(testing_support::route(id, 0, static_cast<int>(k), 0, row, rows_of(id)));
            row += rows_of(id);
        }
    }
    return routes;
}

/// What the sections of a rank share. Waits on its edges have short deadlines.
class Rig {
public:
    explicit Rig(const comm::Communicator& world) : world_(world) {}

    /// An edge between replicas of this rank.
    std::unique_ptr<Channel> local(const std::string& name, int window, bool gradient = true) {
        const ChannelSpec spec = edge(name, {world_.rank()}, {world_.rank()}, window, gradient);
        return std::make_unique<Channel>(spec, world_.rank(), impatient_,
                                         transport::make_local(rank_bytes(spec, world_.rank())));
    }
    /// Collective over the world, in which ranks of one `colour` hold the section's replicas (< 0: none).
    std::unique_ptr<LocalStage> replica(LocalStage::Settings settings, std::vector<Channel*> inputs,
                                        std::vector<Channel*> outputs, FakeModule::Settings module = {},
                                        int colour = 0) {
        const comm::Communicator replicas = world_.split(colour, world_.rank(), settings.name);
        if (colour < 0) return nullptr;
        module.section = settings.name;
        module.width = kWidth;
        if (!outputs.empty()) module.rows = rows_of;
        if (settings.saved_bytes == 0) settings.saved_bytes = 1 << 10;
        parallel::Mesh mesh = parallel::make_mesh(
            replicas, *backend_, {.dp = replicas.size(), .trainable = module.trained}, settings.name);
        auto fake = std::make_unique<FakeModule>(*backend_, module, diary, std::move(mesh));
        return std::make_unique<LocalStage>(*backend_, settings, std::move(fake), world_.waiter(),
                                            std::move(inputs), std::move(outputs), scratch_);
    }
    TaskTimes forward(LocalStage& replica, int micro_batch, const Ids& ids) {
        return forward(replica, micro_batch, ids, comm::now_s());
    }
    TaskTimes forward(LocalStage& replica, int micro_batch, const Ids& ids, double requested_s) {
        const std::vector<int> slots = replica.await_forward(ids);
        return measured(replica,
                        replica.forward(micro_batch, ids, Samples(ids).batch(), slots, result, requested_s));
    }
    static TaskTimes backward(LocalStage& replica, int micro_batch) {
        return backward(replica, micro_batch, comm::now_s());
    }
    static TaskTimes backward(LocalStage& replica, int micro_batch, double requested_s) {
        replica.await_backward(micro_batch);
        return measured(replica, replica.backward(micro_batch, requested_s));
    }
    static TaskTimes measured(LocalStage& replica, const train::TaskMarks& task) {
        replica.read_clock();
        return replica.measured(task);
    }
    static float gradient(LocalStage& replica, int i) {
        return replica.module().parameters().groups().front().gradient().as<float>()[i];
    }

    Diary diary;
    model::Result result;

private:
    const comm::Communicator& world_;
    comm::Waiter impatient_{0.05};
    std::unique_ptr<backend::Backend> backend_ = backend::make_cpu(1);
    backend::Arena scratch_{*backend_, 1 << 14};
};

}  // namespace maestro::test
