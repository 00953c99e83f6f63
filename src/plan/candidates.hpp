// Choices of all sections together: which sections share ranks, and which choices fit each other. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <queue>
#include <tuple>
#include <vector>

#include "plan/rating.hpp"

namespace maestro::plan {

/// Choices of the sections of a set, which share ranks.
struct Row {
    double work_s = 0;        ///< of a lane, at least
    double others_s = 0;      ///< sum of the work of all sections: of equal bounds the lower comes first
    double likely_s = 0;      ///< Rated::likely_s of the set
    double chain_s = 0;       ///< Rated::chain_s, of all its sections
    double likely_bytes = 0;  ///< Rated::likely_bytes, of all its sections
    int ranks = 0;
    std::vector<const Rated*> rated = {};  ///< by section of the set
};

/// A way to put the sections into sets of colocated ones, with the rows of each set, by work_s.
struct Partition {
    std::vector<std::vector<int>> sets = {};
    std::vector<int> hosts = {};  ///< by set: the section whose ranks it has
    std::vector<std::vector<Row>> rows = {};
};

/// All choices of all sections that fit so many ranks.
struct Layouts {
    int ranks = 1;
    double memory = 0;  ///< bytes that a rank may need
    std::vector<Partition> partitions = {};
    double count = 0;           ///< of the combinations of rows that fit the ranks
    double left_out_s = kNone;  ///< no plan that was left out, because there are too many, has a shorter step
};
/// Of more than four sections each by itself, one pair that an edge joins, all sections that edges of one
/// kind or of any kind join, all together, or as in the deck. `one_layout`: all sections on the same ranks,
/// in one layout. The ratings must outlive the result.
Layouts layouts_of(const Subject& subject, const Ratings& ratings, int ranks, bool one_layout);

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
std::vector<Candidate> neighbours_of(const graph::SectionGraph& graph, const Layouts& layouts,
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
    /// By likely times only rows that are likely to fit into memory are taken, the best of each number of
    /// ranks and replica groups. `graph` and
    /// `layouts` must outlive the object.
    Candidates(const graph::SectionGraph& graph, const Layouts& layouts, Order order);

    /// No candidate that is still to come has a smaller bound or likely time. Infinite where none is left.
    double next_s() const { return next_ < events_.size() ? events_[next_].seconds : kNone; }
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
    using Open = std::map<int, std::vector<const Row*>>;  ///< by ranks
    /// [partition][set]: the rows that came before.
    std::vector<std::vector<Open>> open_;
    std::int64_t made_ = 0;
};

/// Whether sections share the ranks of `host_of[section]` only as the deck has it, where that is fixed.
bool keeps_colocation(const Subject& subject, const std::vector<int>& host_of);

}  // namespace maestro::plan
