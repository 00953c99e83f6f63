// Choices of all sections together, in the order in which the search looks at them. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <queue>
#include <tuple>
#include <vector>

#include "plan/layouts.hpp"

namespace maestro::plan {

/// Choices of all sections, and by what they are compared.
struct Candidate {
    double bound_s = 0;     ///< no step is shorter; sum over the steps, like the others
    double others_s = 0;    ///< see Row
    double likely_s = 0;    ///< an estimate
    double expected_s = 0;  ///< a better estimate, from a simulation under a policy that takes little time
    int ranks = 0;
    std::int64_t number = 0;               ///< in the order of their making: the last criterion
    std::vector<const Rated*> rated = {};  ///< by section
    std::vector<int> host_of = {};         ///< by section: the one whose ranks it has, or itself

    std::vector<Choice> choices() const;
};
/// Returns the candidates that differ from one in the choice of one section, at most `most` of them: those
/// with the least likely times of each section, micro-batch and number of micro-batches in flight.
std::vector<Candidate> neighbours_of(const Subject& subject, const Ratings& ratings, const Layouts& layouts,
                                     const Candidate& candidate, std::size_t most);
/// Orders of priority queues, of which the top is the least.
struct LaterBound {
    bool operator()(const Candidate& a, const Candidate& b) const {
        return std::tie(a.bound_s, a.others_s, a.ranks, a.number) >
               std::tie(b.bound_s, b.others_s, b.ranks, b.number);
    }
};
struct LaterExpected {
    bool operator()(const Candidate& a, const Candidate& b) const {
        return std::tie(a.expected_s, a.bound_s, a.ranks, a.number) >
               std::tie(b.expected_s, b.bound_s, b.ranks, b.number);
    }
};
using ByExpected = std::priority_queue<Candidate, std::vector<Candidate>, LaterExpected>;

/// Makes candidates in the order of the largest bound, or the largest likely time, of any of their sets.
class Candidates {
public:
    enum class Order { bound, likely };
    /// By likely times only rows that are likely to fit into memory are used, the best of each number of
    /// ranks and replica groups. Rows with times of `limit_s` or more are left out. `graph` and `layouts`
    /// must outlive the object.
    Candidates(const graph::SectionGraph& graph, const Layouts& layouts, Order order, double limit_s = kNone);

    /// No candidate that is still to come, or is left out, has a smaller bound or likely time. Infinite where
    /// there is none.
    double next_s() const { return next_ < events_.size() ? events_[next_].seconds : left_out_s_; }
    /// Appends the candidates of this time, at most `most`; others of the same time are lost. Returns whether
    /// none was.
    bool next(std::vector<Candidate>& candidates, std::size_t most);

private:
    struct Event {
        double seconds;
        std::size_t partition, set, row;
    };
    struct Extension;
    void extend(Extension& extension, std::size_t set, int ranks);

    const graph::SectionGraph& graph_;
    const Layouts& layouts_;
    std::vector<Event> events_;
    std::size_t next_ = 0;
    double left_out_s_ = kNone;
    using Open = std::map<int, std::vector<const Row*>>;  ///< by ranks
    /// [partition][set]: the rows that came before.
    std::vector<std::vector<Open>> open_;
    std::int64_t made_ = 0;
};

}  // namespace maestro::plan
