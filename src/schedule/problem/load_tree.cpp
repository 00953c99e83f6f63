#include "schedule/problem/load_tree.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace maestro::schedule {

LoadTree::LoadTree(int machines, std::vector<double> scale)
    : scale_(std::move(scale)), leaves_(std::bit_ceil(static_cast<std::size_t>(machines))), leaf_(machines) {
    // rebuild() reads the loads from the leaves: at the start any order of the leaves will do.
    smallest_.assign(2 * leaves_ * scale_.size(), 0.0);
    std::iota(leaf_.begin(), leaf_.end(), leaves_);
    rebuild();
}

/// Branch and bound. The offer of an inner node combines minima that may belong to different machines, and
/// the lowest number below it; each is no worse than that of any machine below. A subtree is therefore
/// skipped only if none of its machines could win, and the answer is that of a scan over all machines, ties
/// included.
int LoadTree::best(std::span<const double> work) const {
    Offer best;
    search(1, work, best);
    return best.machine;
}

void LoadTree::add(int machine, std::span<const double> work) {
    const std::size_t dimensions = scale_.size();
    std::size_t node = leaf_[machine];
    for (std::size_t d = 0; d < dimensions; ++d) smallest_[node * dimensions + d] += work[d] * scale_[d];
    for (node /= 2; node > 0; node /= 2)
        for (std::size_t d = 0; d < dimensions; ++d)
            smallest_[node * dimensions + d] =
                std::min(smallest_[2 * node * dimensions + d], smallest_[(2 * node + 1) * dimensions + d]);
    // Bounds stay valid as loads grow, but machines that were alike when they became neighbours drift apart,
    // and their minima bound less and less. One rebuild of M log M operations for M items or more costs each
    // item a logarithm, as the update above does.
    if (++added_ >= leaves_) rebuild();
}

LoadTree::Offer LoadTree::bound(std::size_t node, std::span<const double> work) const {
    double largest = 0;
    for (std::size_t d = 0; d < scale_.size(); ++d)
        largest = std::max(largest, smallest_[node * scale_.size() + d] + work[d] * scale_[d]);
    return {largest, first_[node]};
}

void LoadTree::search(std::size_t node, std::span<const double> work, Offer& best) const {
    if (node >= leaves_) {
        best = bound(node, work);
        return;
    }
    std::size_t child = 2 * node, other = child + 1;
    Offer offer = bound(child, work), other_offer = bound(other, work);
    // The better child first: what it finds often excludes the other one.
    if (other_offer.better_than(offer)) {
        std::swap(child, other);
        std::swap(offer, other_offer);
    }
    if (offer.better_than(best)) search(child, work, best);
    if (other_offer.better_than(best)) search(other, work, best);
}

void LoadTree::rebuild() {
    const std::size_t dimensions = scale_.size();
    std::vector<double> loads;
    loads.reserve(leaf_.size() * dimensions);
    for (const std::size_t leaf : leaf_)
        for (std::size_t d = 0; d < dimensions; ++d) loads.push_back(smallest_[leaf * dimensions + d]);
    std::vector<int> machines(leaf_.size());
    std::iota(machines.begin(), machines.end(), 0);
    smallest_.assign(smallest_.size(), std::numeric_limits<double>::infinity());
    first_.assign(2 * leaves_, std::numeric_limits<int>::max());
    place(1, machines, loads);
    added_ = 0;
}

/// Puts machines below `node`, the half with the smaller loads on the left, by the dimension in which they
/// differ most, so that minima over both halves bound tightly (Friedman, Bentley and Finkel, 1977). `loads`:
/// [machine][dimension].
void LoadTree::place(std::size_t node, std::span<int> machines, const std::vector<double>& loads) {
    const std::size_t dimensions = scale_.size();
    const auto load = [&](int machine, std::size_t d) { return loads[machine * dimensions + d]; };
    first_[node] = *std::min_element(machines.begin(), machines.end());
    std::size_t widest = 0;
    double width = -1;
    for (std::size_t d = 0; d < dimensions; ++d) {
        const auto [low, high] = std::minmax_element(machines.begin(), machines.end(),
                                                     [&](int a, int b) { return load(a, d) < load(b, d); });
        smallest_[node * dimensions + d] = load(*low, d);
        if (load(*high, d) - load(*low, d) <= width) continue;
        width = load(*high, d) - load(*low, d);
        widest = d;
    }
    if (node >= leaves_) {
        leaf_[machines.front()] = node;
        return;
    }
    // Neither half is larger than half of the leaves below, so that every machine finds a leaf.
    const auto middle = machines.begin() + (machines.size() + 1) / 2;
    std::nth_element(machines.begin(), middle - 1, machines.end(), [&](int a, int b) {
        return load(a, widest) != load(b, widest) ? load(a, widest) < load(b, widest) : a < b;
    });
    place(2 * node, {machines.begin(), middle}, loads);
    if (middle != machines.end()) place(2 * node + 1, {middle, machines.end()}, loads);
}

}  // namespace maestro::schedule
