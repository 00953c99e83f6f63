#include "collective/collective_times.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace maestro::collective {

namespace {

/// What each rank exchanges with others, up to the factor 2 of an all-reduce.
double exchanged(double bytes, int ranks) {
    return bytes * (ranks - 1) / ranks;
}

/// The times of one kind among one number of ranks on one number of nodes.
struct Curve {
    struct Point {
        double exchanged, seconds;
    };
    CollectiveKind kind;
    int ranks, nodes;
    std::vector<Point> points = {};  ///< ascending

    double per_node() const { return static_cast<double>(ranks) / nodes; }
    double at(double bytes) const {
        if (bytes <= points.front().exchanged) return points.front().seconds;
        const Point& last = points.back();
        const auto above = std::find_if(points.begin() + 1, points.end(),
                                        [&](const Point& p) { return p.exchanged >= bytes; });
        if (above != points.end()) {
            const Point& below = *(above - 1);
            return std::lerp(below.seconds, above->seconds,
                             (bytes - below.exchanged) / (above->exchanged - below.exchanged));
        }
        // The bandwidth between the last two rows. Where noise hides it, or there is one row, that of the
        // last.
        double byte_s = last.seconds / last.exchanged;
        if (points.size() > 1) {
            const Point& before = points[points.size() - 2];
            if (last.seconds > before.seconds)
                byte_s = (last.seconds - before.seconds) / (last.exchanged - before.exchanged);
        }
        return last.seconds + (bytes - last.exchanged) * byte_s;
    }
};

}  // namespace

struct CollectiveTimes::Table {
    std::vector<CollectiveRow> rows;
    std::vector<Curve> curves;  ///< by kind, nodes and ranks
};

CollectiveTimes::CollectiveTimes(std::vector<CollectiveRow> rows) {
    if (rows.empty()) return;
    std::sort(rows.begin(), rows.end(), [](const CollectiveRow& a, const CollectiveRow& b) {
        return std::tie(a.kind, a.nodes, a.ranks, a.bytes) < std::tie(b.kind, b.nodes, b.ranks, b.bytes);
    });
    auto table = std::make_shared<Table>();
    for (const CollectiveRow& row : rows) {
        if (table->curves.empty() || table->curves.back().kind != row.kind ||
            table->curves.back().nodes != row.nodes || table->curves.back().ranks != row.ranks)
            table->curves.push_back({row.kind, row.ranks, row.nodes});
        table->curves.back().points.push_back({exchanged(row.bytes, row.ranks), row.seconds});
    }
    table->rows = std::move(rows);
    table_ = std::move(table);
}

const std::vector<CollectiveRow>& CollectiveTimes::rows() const {
    static const std::vector<CollectiveRow> none;
    return table_ ? table_->rows : none;
}

std::optional<double> CollectiveTimes::seconds(CollectiveKind kind, int ranks, int nodes,
                                               double bytes) const {
    if (!table_) return {};
    const auto alike = [&](const Curve& c) { return c.kind == kind && (c.nodes > 1) == (nodes > 1); };
    const double per_node = static_cast<double>(ranks) / nodes;
    const auto distance = [&](const Curve& c) {
        return nodes > 1 ? std::abs(std::log(c.per_node() / per_node)) : 0;
    };
    const Curve* nearest = nullptr;
    for (const Curve& c : table_->curves)
        if (alike(c) && (!nearest || distance(c) < distance(*nearest))) nearest = &c;
    if (!nearest) return {};
    // The next smaller and the next larger number of ranks of those as near.
    const Curve *below = nullptr, *above = nullptr;
    for (const Curve& c : table_->curves) {
        if (!alike(c) || (nodes > 1 && c.per_node() != nearest->per_node())) continue;
        if (c.ranks <= ranks && (!below || c.ranks > below->ranks)) below = &c;
        if (c.ranks >= ranks && (!above || c.ranks < above->ranks)) above = &c;
    }
    const double each = exchanged(bytes, ranks);
    if (!below || !above || below == above) return (below ? below : above)->at(each);
    const double share = static_cast<double>(ranks - below->ranks) / (above->ranks - below->ranks);
    return std::lerp(below->at(each), above->at(each), share);
}

CollectiveTimes CollectiveTimes::slower(bool across_nodes, double factor) const {
    std::vector<CollectiveRow> changed = rows();
    for (CollectiveRow& row : changed)
        if ((row.nodes > 1) == across_nodes) row.seconds *= factor;
    return CollectiveTimes(std::move(changed));
}

bool CollectiveTimes::operator==(const CollectiveTimes& other) const {
    return table_ == other.table_ || rows() == other.rows();
}

}  // namespace maestro::collective
