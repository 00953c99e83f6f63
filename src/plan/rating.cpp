#include "plan/rating.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "plan/balance.hpp"
#include "plan/stage_times.hpp"

namespace maestro::plan {

namespace {

/// The order in which choices are rated: those of one shape, but for dp, follow each other.
auto key_of(const Choice& c) {
    const graph::Layout& l = c.layout;
    return std::tuple(l.tp, l.cp, l.cp_kind, l.ep, l.etp, c.micro_batch, c.recompute, c.recompute_layers,
                      l.pp, l.chunks, l.dp);
}
/// Choices that differ in their recomputation, pipelines and replicas.
auto shape_of(const Choice& c) {
    const graph::Layout& l = c.layout;
    return std::tuple(l.tp, l.cp, l.cp_kind, l.ep, l.etp, c.micro_batch);
}

/// Choices that differ in their recomputation alone.
auto but_recomputation(const Choice& c) {
    const graph::Layout& l = c.layout;
    return std::tuple(l.tp, l.cp, l.cp_kind, l.ep, l.etp, c.micro_batch, l.pp, l.chunks, l.dp);
}

/// Rates the choices of a section.
class Rating {
public:
    Rating(const Subject& subject, int section, int ranks, Balance& balance)
        : subject_(subject),
          section_(section),
          ranks_(ranks),
          choices_(choices_of(subject.scenario, section, ranks, subject.is_fixed)),
          work_(subject, section, balance) {
        std::sort(choices_.begin(), choices_.end(),
                  [](const Choice& a, const Choice& b) { return key_of(a) < key_of(b); });
        least_recompute_ = Recompute::layer;
        for (const Choice& choice : choices_) least_recompute_ = std::min(least_recompute_, choice.recompute);
        smallest_.bytes = kNone;
    }

    /// Rates the choices with the least recomputation, which takes the least time.
    void rate_fastest() {
        for (const Choice& choice : choices_)
            if (choice.recompute == least_recompute_ && !is_hopeless(choice)) rate(choice);
    }
    /// Rates the others, but for those that take longer than `limit_s` without recomputation, and those that
    /// need little memory without it.
    void rate_others(double limit_s) {
        for (const Choice& choice : choices_) {
            if (choice.recompute == least_recompute_) continue;
            const auto fastest = fastest_.find(but_recomputation(choice));
            if (fastest == fastest_.end()) continue;
            const Fastest& least = fastest->second;
            if (least.busiest_s > limit_s || (ranks_ > kFewRanks && least.is_small))
                left_out_.push_back(least);
            else
                rate(choice);
        }
    }
    /// The least work of all ranks of any choice together.
    double rank_s() const {
        double least_s = kNone;
        for (const auto& [shape, seconds] : rank_s_) least_s = std::min(least_s, seconds);
        return least_s;
    }
    /// No plan with a choice that was left out has shorter steps. `others_s`: the least work of all ranks of
    /// the other sections.
    double left_out_s(double others_s) const {
        double least_s = kNone;
        for (const Fastest& choice : left_out_)
            least_s = std::min(least_s, std::max(choice.busiest_s, (choice.rank_s + others_s) / ranks_));
        return least_s;
    }
    /// The least likely time of a choice that fits so far. Infinite where none does.
    double likely_s() const { return least_likely_s_; }
    std::vector<Rated> take() {
        std::stable_sort(rated_.begin(), rated_.end(), [](const Rated& a, const Rated& b) {
            return std::pair(a.busiest_s, key_of(a.choice)) < std::pair(b.busiest_s, key_of(b.choice));
        });
        return std::move(rated_);
    }
    const Rated& smallest() const { return smallest_; }

private:
    static constexpr int kFewRanks = 32;  // on which all choices are rated in little time

    /// What a choice takes with the least recomputation.
    struct Fastest {
        double busiest_s = 0, rank_s = 0;  ///< as of Rated
        bool is_small = false;             ///< as many sections as there are fit on one rank so
    };
    /// Whether the choice shares sequences among so many ranks that it takes far more than others: a sequence
    /// takes twice as many ranks no less work together.
    bool is_hopeless(const Choice& choice) {
        constexpr double kHopeless = 4;
        if (ranks_ <= kFewRanks || choice.layout.cp == 1 || least_likely_s_ == kNone) return false;
        Choice half = choice;
        half.layout.cp /= 2;
        if (half.layout.cp == 1) half.layout.cp_kind = ContextKind::ring;
        const auto known = rank_s_.find(shape_of(half));
        if (known == rank_s_.end()) return false;
        const double least_s = known->second / ranks_;
        if (least_s <= kHopeless * least_likely_s_) return false;
        rank_s_.try_emplace(shape_of(choice), known->second);
        left_out_.push_back({.rank_s = known->second});
        return true;
    }

    double small_bytes() const {
        return most_memory(subject_.device) / static_cast<double>(subject_.scenario.graph.sections.size());
    }

    void rate(const Choice& choice) {
        Choice pipeline = choice;
        pipeline.layout.dp = 1;
        if (!(pipeline == last_)) {
            last_ = pipeline;
            bounds_.reset();
            if (const std::vector<StageTimes> stages = work_.of(choice); !stages.empty())
                bounds_.emplace(subject_, section_, choice, work_.mesh(), stages);
        }
        if (!bounds_) return;
        Rated rated = bounds_->with(choice);
        const auto [work, is_first] = rank_s_.try_emplace(shape_of(choice), rated.rank_s);
        work->second = std::min(work->second, rated.rank_s);
        if (choice.recompute == least_recompute_)
            fastest_[but_recomputation(choice)] = {.busiest_s = rated.busiest_s,
                                                   .rank_s = rated.rank_s,
                                                   .is_small = rated.likely_bytes <= small_bytes()};
        if (rated.bytes < smallest_.bytes) smallest_ = rated;
        if (rated.bytes > most_memory(subject_.device)) return;
        least_likely_s_ = std::min(least_likely_s_, rated.likely_s);
        rated_.push_back(std::move(rated));
    }

    const Subject& subject_;
    int section_, ranks_;
    std::vector<Choice> choices_;
    Recompute least_recompute_ = Recompute::none;
    SectionWork work_;
    std::map<decltype(shape_of(Choice())), double> rank_s_;
    std::map<decltype(but_recomputation(Choice())), Fastest> fastest_;
    std::vector<Fastest> left_out_;
    double least_likely_s_ = kNone;
    std::vector<Rated> rated_;
    Rated smallest_ = {};
    Choice last_ = {.layout = {.dp = 0}};
    std::optional<SectionBounds> bounds_;
};

}  // namespace

Ratings rate(const Subject& subject, int ranks, bool all) {
    // Plans are seldom slower than this multiple of what all sections take together, one after another.
    constexpr double kSlow = 1.5;
    Balance balance(subject);
    std::vector<std::unique_ptr<Rating>> sections;
    double limit_s = 0;
    for (int s = 0; s < static_cast<int>(subject.scenario.graph.sections.size()); ++s) {
        sections.push_back(std::make_unique<Rating>(subject, s, ranks, balance));
        sections.back()->rate_fastest();
        limit_s += kSlow * sections.back()->likely_s();
    }
    Ratings ratings;
    double rank_s = 0;
    for (const std::unique_ptr<Rating>& section : sections) rank_s += section->rank_s();
    for (const std::unique_ptr<Rating>& section : sections) {
        section->rate_others(all ? kNone : limit_s);
        ratings.left_out_s = std::min(ratings.left_out_s, section->left_out_s(rank_s - section->rank_s()));
        ratings.smallest.push_back(section->smallest());
        ratings.sections.push_back(section->take());
    }
    return ratings;
}

}  // namespace maestro::plan
