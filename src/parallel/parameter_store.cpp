#include "parallel/parameter_store.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "base/random.hpp"
#include "ops/adamw.hpp"
#include "ops/dispatch.hpp"

namespace maestro::parallel {

namespace {
constexpr double kInitialDeviation = 0.02;  ///< standard deviation of GPT-2's initial weights
/// Elements drawn between two beats of the pulse, some milliseconds of work: to initialize a large model
/// takes longer than other ranks wait for one that does not report.
constexpr std::int64_t kDrawBlock = 1 << 18;
}  // namespace

ParameterStore::ParameterStore(backend::Backend& backend, const Mesh& mesh, std::string section,
                               std::uint64_t seed, DType compute, FrozenParameters frozen)
    : backend_(backend),
      mesh_(mesh),
      section_(std::move(section)),
      seed_(seed),
      compute_(compute),
      frozen_(std::move(frozen)) {}

Parameter& ParameterStore::declare(std::string name, std::vector<std::int64_t> shape, Init init,
                                   bool trainable) {
    // Whole on every rank, so replicated along tp: each tp rank computes the gradient of its local rows.
    const Shard all = whole(shape);
    return declare(std::move(name), std::move(shape), init, trainable, {{all.rows.front(), Axis::tp}},
                   all.columns);
}

Parameter& ParameterStore::declare(std::string name, std::vector<std::int64_t> shape, Init init,
                                   bool trainable, const std::vector<ParameterRows>& rows, Range columns,
                                   Axes data_axes) {
    // Once groups are allocated there is no memory for further parameters.
    MAESTRO_CHECK(groups_.empty() && (shape.size() == 1 || shape.size() == 2), "parameter {}", name);
    MAESTRO_CHECK(index_.emplace(name, parameters_.size()).second, "parameter {} is declared twice", name);
    Parameter& p = parameters_.emplace_back();
    // The held rows lie one after another, so that a fused weight is one matrix for its GEMM.
    std::vector<Range> ranges;
    std::int64_t held = 0;
    for (const ParameterRows& block : rows) {
        const std::int64_t end = held + block.rows.size() * columns.size();
        if (!block.replicated.empty() && end > held) p.replicated.push_back({{held, end}, block.replicated});
        ranges.push_back(block.rows);
        held = end;
    }
    p.name = std::move(name);
    p.decay = shape.size() == 2;  // matrices only, as GPT-3
    p.shape = std::move(shape);
    p.shard = make_shard(ranges, columns);
    p.data_axes = data_axes;
    p.type = compute_;
    p.trainable = trainable && !frozen_.contains(p.name);
    p.init = init;
    layer_.push_back(declared_layers_);
    return p;
}

void ParameterStore::keep_precise(Parameter& parameter) const {
    MAESTRO_CHECK(groups_.empty(), "parameter {} is allocated already", parameter.name);
    parameter.type = ops::accumulate_type(compute_);
}

std::vector<int> ParameterStore::group_layers(const Kind& kind, std::int64_t group_elements) const {
    // Sizes of whole parameters, not of what this rank holds: all ranks of a replica need the same groups,
    // because they sum the gradients of weights of which several of them hold copies.
    std::vector<std::int64_t> elements(static_cast<std::size_t>(declared_layers_) + 1, 0);
    for (std::size_t i = 0; i < parameters_.size(); ++i)
        if (kind.has(parameters_[i]))
            elements[static_cast<std::size_t>(layer_[i])] += whole(parameters_[i].shape).size();
    const MeshShape& shape = mesh_.shape();
    const int parts = kind.data_axes == kExpertDataAxes ? shape.experts.ranks() : shape.degrees.tp;
    std::vector<int> groups(elements.size(), -1);
    int group = 0;  // counted from the last layer on
    std::int64_t of_group = 0;
    for (std::size_t layer = elements.size(); layer-- > 0;) {
        if (elements[layer] == 0) continue;
        if (of_group >= group_elements * parts) {
            ++group;
            of_group = 0;
        }
        groups[layer] = group;
        of_group += elements[layer];
    }
    for (int& g : groups)
        if (g >= 0) g = group - g;
    return groups;
}

void ParameterStore::allocate(double residual_scale, std::int64_t group_elements) {
    residual_scale_ = residual_scale;
    initialized_.assign(parameters_.size(), false);
    group_.assign(parameters_.size(), nullptr);
    first_of_.assign(static_cast<std::size_t>(declared_layers_) + 1, {});
    // Trainable and frozen parameters are separate groups, because only the former have gradients and are
    // reduced. The order of groups is the same on all ranks, and their collectives run in this order.
    for (const bool trainable : {true, false}) {
        /// Numbers of parameters, and of the layer with the first of them: they are declared layer by layer.
        struct Members {
            int first_layer;
            std::vector<std::size_t> numbers;
        };
        std::vector<Members> groups;
        const auto collect = [&](const Kind& kind) {
            const std::vector<int> group_of_layer = group_layers(kind, group_elements);
            for (int group = 0; group <= declared_layers_; ++group) {
                Members members{};
                for (std::size_t i = 0; i < parameters_.size(); ++i)
                    if (kind.has(parameters_[i]) &&
                        group_of_layer[static_cast<std::size_t>(layer_[i])] == group)
                        members.numbers.push_back(i);
                if (members.numbers.empty()) continue;
                members.first_layer = layer_[members.numbers.front()];
                groups.push_back(std::move(members));
            }
        };
        std::set<DType> types = {compute_, ops::accumulate_type(compute_)};
        for (const Axes data_axes : {kDataAxes, kExpertDataAxes})
            for (const DType type : types) collect({trainable, data_axes, type});
        std::stable_sort(groups.begin(), groups.end(),
                         [](const Members& a, const Members& b) { return a.first_layer < b.first_layer; });
        for (const Members& members : groups) {
            std::vector<Parameter*> parameters;
            for (const std::size_t i : members.numbers) parameters.push_back(&parameters_[i]);
            groups_.emplace_back(backend_, mesh_, std::move(parameters));
            for (const std::size_t i : members.numbers) group_[i] = &groups_.back();
            if (trainable)
                first_of_[static_cast<std::size_t>(members.first_layer)].push_back(&groups_.back());
        }
    }
}

void ParameterStore::pass(int layer, void (PassObserver::*tell)(const ParameterGroup&)) const {
    if (!observer_) return;
    observer_->layer_passed(layer);
    for (const ParameterGroup* group : first_of_[static_cast<std::size_t>(layer)]) (observer_->*tell)(*group);
}

void ParameterStore::initialize(Pulse& pulse, bool shard_only) {
    if (!backend_.computes()) return;  // meta tensors have no elements to write
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
        const Parameter& p = parameters_[i];
        if (initialized_[i]) continue;
        pulse.doing("drawing initial weights of " + section_ + "." + p.name);
        const Range held = shard_only ? group_of(p).shard_of(p) : Range{0, p.size()};
        for (std::int64_t at = held.begin; at < held.end; at += kDrawBlock) {
            draw(p, {at, std::min(at + kDrawBlock, held.end)});
            pulse.beat();
        }
    }
}

void ParameterStore::draw(const Parameter& p, Range held) {
    ops::by_type(ops::accumulate_type(compute_), [&]<class T>(T) {
        std::vector<T> values(static_cast<std::size_t>(held.size()),
                              static_cast<T>(p.init == Init::ones ? 1.0f : 0.0f));
        // Counter-based: the index in the logical parameter is the counter, so that a rank draws exactly its
        // part of what one rank would draw, in any order and on any number of threads.
        const Random random(seed_, "init/" + section_ + "." + p.name);
        const double deviation = kInitialDeviation * (p.init == Init::residual ? residual_scale_ : 1.0);
        const auto value = [&](std::uint64_t at) {
            if (p.init != Init::kaiming_uniform) return deviation * random.normal(at);
            return (2 * random.uniform(at) - 1) / std::sqrt(static_cast<double>(p.shape[1]));
        };
        if (p.init == Init::normal || p.init == Init::residual || p.init == Init::kaiming_uniform)
            for (const Extent& extent : extents_of(p.shape, p.shard, held))
                ops::parallel_for(extent.count, 64, [&](std::int64_t i) {
                    const auto at = static_cast<std::uint64_t>(extent.logical + i);
                    values[static_cast<std::size_t>(extent.local - held.begin + i)] =
                        static_cast<T>(static_cast<Accumulate<T>>(value(at)));
                });
        group_of(p).set_weights(p, held,
                                Tensor(values.data(), ops::accumulate_type(compute_), {held.size()}));
    });
}

const Parameter* ParameterStore::find(std::string_view name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &parameters_[found->second];
}

const ParameterGroup& ParameterStore::group_of(const Parameter& parameter) const {
    return *group_[index_.find(parameter.name)->second];
}

std::int64_t ParameterStore::count() const {
    std::int64_t n = 0;
    for (const auto& p : parameters_) n += p.size();
    return n;
}

std::int64_t ParameterStore::trainable() const {
    std::int64_t n = 0;
    for (const ParameterGroup& g : groups_) n += g.trainable() ? g.size() : 0;
    return n;
}

std::int64_t ParameterStore::optimizer_states() const {
    std::int64_t n = 0;
    for (const ParameterGroup& g : groups_)
        if (g.trainable()) n += g.shard().size();
    return n;
}

std::size_t ParameterStore::frozen_shard_bytes() const {
    std::size_t bytes = 0;
    for (const ParameterGroup& g : groups_)
        if (!g.trainable()) bytes += static_cast<std::size_t>(g.shard().size()) * size_of(g.weights().dtype);
    return bytes;
}

std::size_t ParameterStore::bytes() const {
    std::size_t bytes = 0;
    for (const ParameterGroup& g : groups_) bytes += g.bytes();
    return bytes;
}

std::size_t ParameterStore::gradient_bytes() const {
    std::size_t bytes = 0;
    for (const ParameterGroup& g : groups_) bytes += g.gradient_bytes();
    return bytes;
}

std::size_t ParameterStore::copies_scratch() const {
    std::size_t max_bytes = 0;  // groups are reduced one after another
    for (const ParameterGroup& g : groups_) max_bytes = std::max(max_bytes, g.copies_scratch());
    return max_bytes;
}

std::size_t ParameterStore::reduce_scratch() const {
    std::size_t sum = 0, squares = 0;
    for (const ParameterGroup& g : groups_) {
        sum = std::max(sum, g.reduce_scratch());
        if (g.trainable()) squares = std::max(squares, ops::squares_scratch(g.shard().size()));
    }
    return sum + squares;
}

void ParameterStore::zero_gradients() {
    for (ParameterGroup& g : groups_) g.zero_gradients();
}

}  // namespace maestro::parallel
