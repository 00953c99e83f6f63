// LoadTree: the loads of many machines in several dimensions, and which machine should get the next item.
#pragma once

#include <limits>
#include <span>
#include <vector>

namespace maestro::schedule {

/// List scheduling of vectors (Chekuri and Khanna, "On multidimensional packing problems", 2004) gives each
/// item to the machine whose largest load then is smallest. A k-d tree over the machines (Bentley, 1975)
/// finds it without looking at all of them: a node stores the smallest load below it in each dimension, which
/// bounds what its machines can offer.
class LoadTree {
public:
    /// Starts with all loads 0. `scale`: [dimension]; an item's work times the scale is what it adds to a
    /// load.
    LoadTree(int machines, std::vector<double> scale);

    /// Returns the machine whose largest load is smallest once an item of this work, [dimension], is added;
    /// of several, the one with the lowest number.
    int best(std::span<const double> work) const;
    void add(int machine, std::span<const double> work);
    /// Returns the load of a machine, [dimension]; valid until the next add().
    std::span<const double> load(int machine) const {
        return std::span(smallest_).subspan(leaf_[machine] * scale_.size(), scale_.size());
    }

private:
    struct Offer {
        double largest = std::numeric_limits<double>::infinity();  ///< of the loads with the item
        int machine = std::numeric_limits<int>::max();
        bool better_than(const Offer& o) const {
            return largest != o.largest ? largest < o.largest : machine < o.machine;
        }
    };
    /// Returns an offer that no machine below `node` beats; for a leaf, the offer of its machine.
    Offer bound(std::size_t node, std::span<const double> work) const;
    void search(std::size_t node, std::span<const double> work, Offer& best) const;
    void rebuild();
    void place(std::size_t node, std::span<int> machines, const std::vector<double>& loads);

    std::vector<double> scale_;
    std::size_t leaves_;             ///< a power of two; node n has the children 2n and 2n + 1, the root is 1
    std::vector<std::size_t> leaf_;  ///< [machine], its node
    std::vector<double> smallest_;   ///< [node][dimension]; infinite where no machine is below
    std::vector<int> first_;         ///< [node], the lowest number of a machine below
    std::size_t added_ = 0;          ///< items since the tree was built
};

}  // namespace maestro::schedule
