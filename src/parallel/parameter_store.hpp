// The weights of one section on one rank. They are declared one by one, then allocate() puts them into groups
// and gives them memory.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/pulse.hpp"
#include "parallel/parameter_group.hpp"

namespace maestro::parallel {

/// Owns parameters and groups; the backend and the mesh outlive it.
class ParameterStore {
public:
    /// `section` and `seed` key the initial weights; `compute` is f32, bf16 or f64.
    ParameterStore(backend::Backend& backend, const Mesh& mesh, std::string section, std::uint64_t seed,
                   DType compute);

    /// Before allocate(); the reference stays valid. Names are unique. Held whole by every rank of the
    /// section.
    Parameter& declare(std::string name, std::vector<std::int64_t> shape, Init init, bool trainable);
    /// This rank holds the rows of `parts`, ascending, of `columns`.
    Parameter& declare(std::string name, std::vector<std::int64_t> shape, Init init, bool trainable,
                       const std::vector<ParameterPart>& parts, Range columns);
    /// What is declared from now on is in groups of its own. Without it there is one group of what is trained
    /// and one of what is frozen.
    void begin_group() { ++declared_groups_; }
    /// Weights are zeros afterwards. `residual_scale` is the factor of Init::residual.
    void allocate(double residual_scale);

    /// Draws initial weights for the parameters that have not been set, or for all. They are a function of
    /// the seed, the section and the place in the logical parameter, so every layout gets the same. With
    /// `shard_only` this rank's shards alone, for gather_weights() to bring the others.
    void initialize(Pulse& pulse, bool shard_only = false);
    /// The parameter's weights come from elsewhere: initialize() leaves them alone.
    void mark_initialized(const Parameter& parameter) { set_[index_.at(parameter.name)] = true; }

    const std::deque<Parameter>& parameters() const { return parameters_; }
    const Parameter* find(std::string_view name) const;
    std::list<ParameterGroup>& groups() { return groups_; }
    const std::list<ParameterGroup>& groups() const { return groups_; }
    const ParameterGroup& group_of(const Parameter& parameter) const;
    const Mesh& mesh() const { return mesh_; }
    backend::Backend& backend() const { return backend_; }
    DType compute() const { return compute_; }

    std::int64_t count() const;      ///< weights held here, without padding
    std::int64_t trainable() const;  ///< elements with a gradient, padding included
    /// Weights whose optimizer states a rank keeps, at most, padding included: those of the first rank's
    /// shards.
    std::int64_t optimizer_states() const;
    std::size_t bytes() const;           ///< of all arrays
    std::size_t reduce_scratch() const;  ///< bytes; see ParameterGroup
    void refresh_compute();
    void zero_gradients();

private:
    void draw(const Parameter& parameter, Range held);

    struct NameHash : std::hash<std::string_view> {
        using is_transparent = void;
    };
    backend::Backend& backend_;
    const Mesh& mesh_;
    std::string section_;
    std::uint64_t seed_;
    DType compute_;
    double residual_scale_ = 1;
    int declared_groups_ = 0;
    std::deque<Parameter> parameters_;
    std::vector<int> declared_group_;                                                ///< by parameter
    std::vector<bool> set_;                                                          ///< by parameter
    std::vector<const ParameterGroup*> group_;                                       ///< by parameter
    std::unordered_map<std::string, std::size_t, NameHash, std::equal_to<>> index_;  ///< by name
    std::list<ParameterGroup> groups_;  ///< those that are trained first
};

}  // namespace maestro::parallel
