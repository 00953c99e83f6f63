// Which sections share ranks, and which of their choices fit each other. Pure.
#pragma once

#include <memory>
#include <optional>
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
    std::vector<int> groups = {};          ///< of replicas, by section of the set
};

/// Returns the row of these choices of a set. Nothing where the lanes do not fit the ranks, an edge cannot
/// join two of the sections, or the memory is too small.
std::optional<Row> row_of(const Subject& subject, const std::vector<int>& set,
                          std::vector<const Rated*> chosen);
/// Returns the rows of as many ranks that differ from this one in the choice of one section. `one_layout`: in
/// the same layout.
std::vector<Row> rows_near(const Subject& subject, const Ratings& ratings, const std::vector<int>& set,
                           const Row& row, bool one_layout);
/// Whether edges may join the sections of two sets in these rows: each fanout or fan-in is whole.
bool edges_fit(const graph::SectionGraph& graph, const std::vector<int>& set, const Row& row,
               const std::vector<int>& other_set, const Row& other);
/// How often all micro-batches that a section has in flight are replaced by others in a step.
double rounds_of(const Rated& rated);

/// A way to put the sections into sets of colocated ones, with the rows of each set, by work_s.
struct Partition {
    std::vector<std::vector<int>> sets = {};
    std::vector<int> hosts = {};  ///< by set: the section whose ranks it has
    /// By set; other partitions with the same set share them.
    std::vector<std::shared_ptr<const std::vector<Row>>> rows = {};
};

/// All choices of all sections that fit so many ranks.
struct Layouts {
    int ranks = 1;
    bool one_layout = false;  ///< all sections on the same ranks, in one layout
    double memory = 0;        ///< bytes that a rank may need
    std::vector<Partition> partitions = {};
    double count = 0;           ///< of the combinations of rows that fit the ranks
    double left_out_s = kNone;  ///< no plan that was left out, because there are too many, has a shorter step
};
/// Of more than four sections each by itself, one pair that an edge joins, all sections that edges of one
/// kind or of any kind join, all together, or as in the deck. The ratings must outlive the result.
Layouts layouts_of(const Subject& subject, const Ratings& ratings, int ranks, bool one_layout);

/// Whether sections share the ranks of `host_of[section]` only as the deck has it, where that is fixed.
bool keeps_colocation(const Subject& subject, const std::vector<int>& host_of);

}  // namespace maestro::plan
