#include "workload/task_factors.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace maestro::workload {

namespace {

using config::Correction;

/// Numbers that differ by less count as the same shape.
constexpr double kSameShape = 0.69314718055994531;  // log(2)

double distance(double a, double b) {
    return std::abs(std::log(a / b));
}

bool is_of_run(const Correction& correction) {
    return correction.part == "stage";
}

/// What was measured of a shape, by single parts or by a run, with the sums over a stage of its predicted and
/// measured seconds.
class Measured {
public:
    void add(const Correction& correction) { parts_.push_back(&correction); }
    const Correction& shape() const { return *parts_.front(); }
    /// Returns false where a part of the stage was not measured.
    bool sum(const model::ModelSpec& spec, const model::Stage& stage) {
        predicted_s_ = measured_s_ = {};
        const int end = stage.layers > 0 ? stage.first_layer + stage.layers : spec.layers;
        if (is_of_run(shape())) return sum_stages(spec.layers, stage.first_layer, end);
        bool all = true;
        for (int layer = stage.first_layer; layer < end; ++layer)
            all = all && add("layer", spec.first_like(layer), 1);
        // The first and the last part include a layer each.
        if (stage.first()) all = all && add("first", 0, 1) && add("layer", spec.first_like(0), -1);
        if (stage.last())
            all = all && add("last", 0, 1) && add("layer", spec.first_like(spec.layers - 1), -1);
        return all;
    }
    std::array<double, 2> factors() const {
        std::array<double, 2> factors{1, 1};
        for (std::size_t phase = 0; phase < 2; ++phase)
            if (predicted_s_[phase] > 0 && measured_s_[phase] > 0)
                factors[phase] = measured_s_[phase] / predicted_s_[phase];
        return factors;
    }

private:
    /// The stages of the run count by how much of them is between the same depths of the model.
    bool sum_stages(double layers, int first, int end) {
        for (const Correction* c : parts_) {
            const double both = std::min(c->end, end / layers) - std::max(c->begin, first / layers);
            if (both > 0) add(*c, both / (c->end - c->begin));
        }
        return predicted_s_[0] > 0;
    }
    bool add(const char* part, int layer, double count) {
        const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const Correction* c) {
            return c->part == part && (c->part != "layer" || c->layer == layer);
        });
        if (found == parts_.end()) return false;
        add(**found, count);
        return true;
    }
    void add(const Correction& c, double count) {
        predicted_s_[0] += count * c.forward_s;
        predicted_s_[1] += count * c.backward_s;
        measured_s_[0] += count * c.forward_s * c.forward;
        measured_s_[1] += count * c.backward_s * c.backward;
    }
    std::vector<const Correction*> parts_;
    std::array<double, 2> predicted_s_{}, measured_s_{};
};

}  // namespace

TaskShape task_shape(std::span<const std::int64_t> lengths, const parallel::MeshShape& mesh) {
    TaskShape shape{.rows = 0, .tp = mesh.degrees.tp, .cp = mesh.degrees.cp, .ep = mesh.experts.ranks()};
    double squares = 0;
    for (const std::int64_t n : lengths) {
        shape.rows += static_cast<double>(n);
        squares += static_cast<double>(n) * static_cast<double>(n);
    }
    if (shape.rows > 0) shape.length = squares / shape.rows;
    shape.rows = std::max(shape.rows, 1.0);
    return shape;
}

TaskFactors task_factors(const config::Cluster& cluster, const model::ModelSpec& spec,
                         const model::Role& role, const TaskShape& shape) {
    const char* precision = role.compute == DType::bf16 ? "bf16" : role.compute == DType::f32 ? "fp32" : "";
    std::map<std::tuple<bool, double, double, std::int64_t, std::int64_t, std::int64_t>, Measured> shapes;
    for (const Correction& c : cluster.corrections)
        if (c.section == role.section && c.width == spec.width && c.precision == precision)
            shapes[{is_of_run(c), c.rows, c.length, c.tp, c.cp, c.ep}].add(c);
    TaskFactors factors;
    // Whole tasks of this layout tell more than any parts of it; then the nearest shape counts.
    std::pair nearest{true, static_cast<double>(INFINITY)};
    for (auto& [key, measured] : shapes) {
        const Correction& c = measured.shape();
        const double layout = distance(static_cast<double>(c.tp), static_cast<double>(shape.tp)) +
                              distance(static_cast<double>(c.cp), static_cast<double>(shape.cp)) +
                              distance(static_cast<double>(c.ep), static_cast<double>(shape.ep));
        const double rows = distance(c.rows, shape.rows), length = distance(c.length, shape.length);
        const bool same = layout == 0 && rows <= kSameShape && length <= kSameShape;
        const std::pair order{!(same && is_of_run(c)), layout + rows + length};
        if (order >= nearest || !measured.sum(spec, role.stage)) continue;
        nearest = order;
        factors.phases = measured.factors();
        factors.measured = same;
    }
    return factors;
}

}  // namespace maestro::workload
