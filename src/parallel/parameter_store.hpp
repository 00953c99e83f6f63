// The parameters of one section on one rank. A module declares them one by one; allocate() then puts them
// into groups and allocates their memory.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/pulse.hpp"
#include "parallel/frozen_parameters.hpp"
#include "parallel/parameter_group.hpp"

namespace maestro::parallel {

/// Elements of a group in f32: 16 MiB, of which many are under way in a large section, and enough for
/// messages to be fast.
inline constexpr std::int64_t kGroupElements = std::int64_t{1} << 22;

/// Is told of the progress of the passes over the layers of a section on one rank. Layer 0 is left to the
/// caller of a pass: the weights of its group are needed at the beginning of a forward, and its gradients are
/// final at the end of a backward.
class PassObserver {
public:
    virtual ~PassObserver() = default;
    /// A forward pass is about to use the weights of a trainable group for the first time.
    virtual void weights_needed(const ParameterGroup& group) = 0;
    /// A backward pass has finished the gradients of a trainable group.
    virtual void gradients_final(const ParameterGroup& group) = 0;
    /// A layer is about to be passed by a forward, or has been passed by a backward; see
    /// ParameterStore::begin_layer().
    virtual void layer_passed(int /*layer*/) {}
    /// Whether it matters at which time weights_needed(), or gradients_final(), is called: an emulated module
    /// need not sleep layer by layer where it does not.
    virtual bool awaits_weights() const { return true; }
    virtual bool awaits_gradients() const { return true; }
};

/// Owns the parameters and their groups. Backend and mesh outlive it.
class ParameterStore {
public:
    /// `section` and `seed` determine the initial weights; `compute` is f32, bf16 or f64. Parameters that
    /// `frozen` contains are not trainable, whatever declare() is told.
    ParameterStore(backend::Backend& backend, const Mesh& mesh, std::string section, std::uint64_t seed,
                   DType compute, FrozenParameters frozen = {});

    /// Declares a parameter that every rank of the section holds whole. Called before allocate(); the
    /// reference stays valid. Throws Error(broken_invariant) if the name is declared already.
    Parameter& declare(std::string name, std::vector<std::int64_t> shape, Init init, bool trainable);
    /// Declares a parameter of which this rank holds `rows`, which ascend, in `columns`. Ranks along
    /// `data_axes` hold the same.
    Parameter& declare(std::string name, std::vector<std::int64_t> shape, Init init, bool trainable,
                       const std::vector<ParameterRows>& rows, Range columns, Axes data_axes = kDataAxes);
    /// Keeps a declared parameter in ops::accumulate_type() of the section's type, so that nothing of it is
    /// rounded: f32 in a section that computes in bf16. Called before allocate().
    void keep_precise(Parameter& parameter) const;
    /// Begins a new layer: its parameters are declared from now on, and are needed and final together.
    /// Layers are declared in the order in which forward uses them.
    /// Returns its number, counted from 1: what is declared before is layer 0.
    int begin_layer() { return ++declared_layers_; }
    /// Returns the number of the last layer.
    int layers() const { return declared_layers_; }
    /// Allocates all parameters; their weights are zero. `residual_scale` is the factor of Init::residual.
    /// Parameters of consecutive layers are grouped from the last layer on, in which backward ends first,
    /// until a rank has `group_elements` of a group (DistributedDataParallel's buckets: Li et al., VLDB
    /// 2020). Trainable and frozen parameters are in different groups, and so are those of experts and
    /// others, and those of different types.
    void allocate(double residual_scale, std::int64_t group_elements = kGroupElements);

    /// Draws random weights for all parameters that are not marked as initialized. A weight is a function of
    /// the seed, the section, the parameter's name and the index in the logical parameter, so that every
    /// layout starts from the same weights. With `shard_only`, draws this rank's shards only;
    /// ParameterGroup::gather_weights() then completes the parameters. Tells `pulse` how far it is.
    void initialize(Pulse& pulse, bool shard_only = false);
    /// Tells initialize() that the weights of this parameter were loaded from a file.
    void mark_initialized(const Parameter& parameter) { initialized_[index_.at(parameter.name)] = true; }

    const std::deque<Parameter>& parameters() const { return parameters_; }
    /// Returns the parameter of this name, or null. Takes constant time.
    const Parameter* find(std::string_view name) const;
    std::list<ParameterGroup>& groups() { return groups_; }
    const std::list<ParameterGroup>& groups() const { return groups_; }
    const ParameterGroup& group_of(const Parameter& parameter) const;
    const Mesh& mesh() const { return mesh_; }
    backend::Backend& backend() const { return backend_; }
    DType compute() const { return compute_; }  ///< of parameters that keep_precise() was not told of

    std::int64_t count() const;              ///< weights held by this rank, without padding
    std::int64_t trainable() const;          ///< elements with a gradient, padding included
    std::int64_t optimizer_states() const;   ///< weights with optimizer states on a rank, padding included
    std::size_t frozen_shard_bytes() const;  ///< of this rank's shard of the frozen weights, padding included
    std::size_t bytes() const;               ///< of all arrays
    std::size_t gradient_bytes() const;      ///< of those of gradients
    /// Return the bytes of scratch memory for all groups, one after another: for
    /// ParameterGroup::sum_copies(), and for launch_reduce() of one group while the norm of another one's
    /// shard is computed.
    std::size_t copies_scratch() const;
    std::size_t reduce_scratch() const;
    std::size_t sync_scratch() const { return copies_scratch() + reduce_scratch(); }
    void zero_gradients();

    /// The trainable groups whose first parameter is of this layer.
    const std::vector<const ParameterGroup*>& groups_from(int layer) const {
        return first_of_[static_cast<std::size_t>(layer)];
    }

    /// Null: none. It outlives the passes.
    void set_observer(PassObserver* observer) { observer_ = observer; }
    const PassObserver* observer() const { return observer_; }
    /// Called by modules, in the order of their passes.
    void layer_needed(int layer) const { pass(layer, &PassObserver::weights_needed); }
    void layer_final(int layer) const { pass(layer, &PassObserver::gradients_final); }

private:
    void draw(const Parameter& parameter, Range held);
    void pass(int layer, void (PassObserver::*tell)(const ParameterGroup&)) const;
    /// Parameters that may be in one group.
    struct Kind {
        bool trainable;
        Axes data_axes;
        DType type;
        bool has(const Parameter& p) const {
            return p.trainable == trainable && p.data_axes == data_axes && p.type == type;
        }
    };
    /// Returns the group of each layer that has parameters of this kind, -1 for the others. Groups are
    /// numbered in the order of layers.
    std::vector<int> group_layers(const Kind& kind, std::int64_t group_elements) const;

    struct NameHash : std::hash<std::string_view> {
        using is_transparent = void;
    };
    backend::Backend& backend_;
    const Mesh& mesh_;
    std::string section_;
    std::uint64_t seed_;
    DType compute_;
    FrozenParameters frozen_;
    double residual_scale_ = 1;
    int declared_layers_ = 0;
    std::deque<Parameter> parameters_;
    std::vector<int> layer_;                    ///< by parameter
    std::vector<bool> initialized_;             ///< by parameter
    std::vector<const ParameterGroup*> group_;  ///< by parameter
    /// By layer: the trainable groups that begin with it, that of experts last.
    std::vector<std::vector<const ParameterGroup*>> first_of_;
    std::unordered_map<std::string, std::size_t, NameHash, std::equal_to<>> index_;  ///< by name
    /// The trainable ones first, in the order of the layers with which they begin.
    std::list<ParameterGroup> groups_;
    PassObserver* observer_ = nullptr;
};

}  // namespace maestro::parallel
