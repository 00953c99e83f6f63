// Losses over vocabularies of any size and alignment, whole or split over ranks, against plain sums.
#include <array>

#include "ops/cross_entropy.hpp"
#include "ops/distillation.hpp"
#include "support/views.hpp"

namespace maestro::ops {
namespace {

struct Expected {
    double loss = 0, size = 0;  ///< size: the sum of the absolute values of its terms
    /// Of cross entropy and of the divergence: their parts of the loss and of the size.
    std::array<double, 2> terms{}, sizes{};
    std::vector<double> gradient;
};

/// Returns the log softmax of a row.
std::vector<long double> logs(const double* row, std::int64_t columns, long double temperature) {
    std::vector<long double> list(row, row + columns);
    const long double top = *std::max_element(list.begin(), list.end());
    long double sum = 0;
    for (long double& x : list) sum += std::exp(x = (x - top) / temperature);
    for (long double& x : list) x -= std::log(sum);
    return list;
}

class Vocabulary : public testing_support::Views {
protected:
    static constexpr double kScale = 0.3, kAlpha = 0.6;
    double temperature_ = 2;

    /// Returns rows of normally distributed logits with targets and weights. The second row has weight 0, and
    /// the fourth has no target.
    struct Rows {
        std::int64_t rows, columns;
        std::vector<double> student, teacher;
        std::vector<std::int32_t> targets;
        std::vector<float> weights;
    };
    Rows make(std::int64_t rows, std::int64_t columns, double size = 3) {
        const Random numbers(5, "vocabulary/" + std::to_string(rows) + "x" + std::to_string(columns));
        Rows r{rows, columns, {}, {}, {}, {}};
        std::uint64_t at = 0;
        for (std::int64_t i = 0; i < rows; ++i) {
            for (std::int64_t c = 0; c < columns; ++c) {
                r.student.push_back(static_cast<float>(size * numbers.normal(at++)));
                r.teacher.push_back(static_cast<float>(size * numbers.normal(at++)));
            }
            const auto target =
                static_cast<std::int32_t>(numbers.uniform(at++) * static_cast<double>(columns));
            r.targets.push_back(i % 5 == 3 ? -1 : i == 0 ? static_cast<std::int32_t>(columns - 1) : target);
            r.weights.push_back(i % 5 == 1 ? 0.0f : 0.5f + static_cast<float>(i % 3));
        }
        return r;
    }
    /// Returns the rows with logits that are rounded to the type.
    static Rows rounded(DType type, Rows r) {
        for (auto* logits : {&r.student, &r.teacher})
            for (double& value : *logits) value = testing_support::rounded(type, value);
        return r;
    }
    Expected expected(const Rows& r, bool distilled) {
        Expected e;
        e.gradient.resize(r.student.size());
        for (std::int64_t i = 0; i < r.rows; ++i) {
            const std::int64_t row = i * r.columns, target = r.targets[static_cast<std::size_t>(i)];
            const long double weight = kScale * static_cast<double>(r.weights[static_cast<std::size_t>(i)]);
            if (weight == 0 || target < 0) continue;
            const auto hard = logs(r.student.data() + row, r.columns, 1);
            const auto soft = logs(r.student.data() + row, r.columns, temperature_),
                       wanted = logs(r.teacher.data() + row, r.columns, temperature_);
            const long double share = distilled ? kAlpha : 0.0L, square = temperature_ * temperature_;
            std::vector<long double> terms{-(1 - share) * hard[static_cast<std::size_t>(target)]};
            for (std::int64_t c = 0; c < r.columns; ++c) {
                const auto k = static_cast<std::size_t>(c);
                long double slope = (1 - share) * (std::exp(hard[k]) - (c == target ? 1.0L : 0.0L));
                if (distilled) {
                    slope += share * temperature_ * (std::exp(soft[k]) - std::exp(wanted[k]));
                    terms.push_back(share * square * std::exp(wanted[k]) * (wanted[k] - soft[k]));
                }
                e.gradient[static_cast<std::size_t>(row) + k] = static_cast<double>(weight * slope);
            }
            for (std::size_t j = 0; j < terms.size(); ++j) {
                const auto part = static_cast<double>(weight * terms[j]);
                e.loss += part;
                e.size += std::abs(part);
                e.terms[j > 0] += part;
                e.sizes[j > 0] += std::abs(part);
            }
        }
        return e;
    }

    /// Returns the columns `tokens` of a matrix.
    static std::vector<double> part_of(const std::vector<double>& all, std::int64_t columns, Range tokens) {
        std::vector<double> part;
        for (std::size_t i = 0; i < all.size(); i += static_cast<std::size_t>(columns))
            part.insert(part.end(), all.begin() + static_cast<std::ptrdiff_t>(i) + tokens.begin,
                        all.begin() + static_cast<std::ptrdiff_t>(i) + tokens.end);
        return part;
    }
    struct Found {
        double loss;
        std::vector<double> terms;  ///< of distillation
        std::vector<double> gradient;
    };
    Found run(DType type, const Rows& r, bool distilled, std::int64_t before, const VocabularyShard& part) {
        const Tensor targets = list(r.targets), weights = list(r.weights),
                     loss = filled(DType::f64, {distilled ? 3 : 1});
        const auto logits = [&](const std::vector<double>& all) {
            return view(type, r.rows, part.tokens.size(), before, part_of(all, r.columns, part.tokens));
        };
        const Tensor student = logits(r.student), teacher = logits(r.teacher);
        poison_scratch();
        if (distilled)
            distillation(b_, student, teacher, targets, weights, {1 - kAlpha, kAlpha, temperature_}, kScale,
                         part, loss, scratch_);
        else
            cross_entropy(b_, student, targets, weights, kScale, part, loss, scratch_);
        std::vector<double> sums = values(loss);
        sums.erase(sums.begin());
        const Found found{get(loss, 0), sums, values(student)};
        expect_kept_around(name(type, r, distilled, before));
        return found;
    }
    void poison_scratch() {
        const backend::ArenaScope scope(scratch_);
        const std::vector<double> poison(1 << 12, std::nan(""));
        b_.upload(poison.data(), scratch_.allocate(DType::f64, {1 << 12}));
    }
    /// Of bf16 only the gradient is rounded, once.
    static void compare(const Found& found, const Expected& e, const std::vector<double>& gradient,
                        double tolerance, const std::string& what, DType type) {
        const double rounding = type == DType::bf16 ? 0x1p-8 : 0;
        EXPECT_NEAR(found.loss, e.loss, tolerance * e.size) << what;
        for (std::size_t i = 0; i < found.terms.size(); ++i)
            EXPECT_NEAR(found.terms[i], e.terms[i], tolerance * e.sizes[i]) << what << ", term " << i;
        ASSERT_EQ(found.gradient.size(), gradient.size()) << what;
        for (std::size_t i = 0; i < gradient.size(); ++i)
            ASSERT_NEAR(found.gradient[i], gradient[i], tolerance + rounding * std::abs(gradient[i]))
                << what << ", element " << i;
    }
    static double tolerance(DType type) { return type == DType::f64 ? 1e-12 : 3e-6; }
    static std::string name(DType type, const Rows& r, bool distilled, std::int64_t before) {
        return std::string(distilled ? "distillation of " : "cross entropy of ") + name_of(type) + " " +
               std::to_string(r.rows) + " x " + std::to_string(r.columns) + " after " +
               std::to_string(before);
    }
};

TEST_F(Vocabulary, LossesWorkForAnySizeAndAlignment) {
    for (const std::int64_t columns : {1, 31, 33, 64, 127, 1000, 4097, 8192})
        for (const std::int64_t rows : {0, 1, 5}) {
            const Rows exact = make(rows, columns);
            for (const bool distilled : {false, true}) {
                for (const DType type : testing_support::kTypes) {
                    const Rows r = rounded(type, exact);
                    const Expected e = expected(r, distilled);
                    for (const std::int64_t before : {0, 1, 4}) {
                        const std::string what = name(type, r, distilled, before);
                        const Found found = run(type, r, distilled, before, {{0, columns}, {}});
                        compare(found, e, e.gradient, tolerance(type), what, type);
                        const Found again = run(type, r, distilled, before, {{0, columns}, {}});
                        EXPECT_EQ(again.loss, found.loss) << what;
                        EXPECT_EQ(again.terms, found.terms) << what;
                        EXPECT_EQ(again.gradient, found.gradient) << what;
                    }
                }
            }
        }
}

TEST_F(Vocabulary, LossesWorkForLargeVocabularies) {
    for (const std::int64_t columns : {262144, 200003}) {
        for (const DType type : {DType::f32, DType::bf16}) {
            const Rows r = rounded(type, make(1, columns));
            for (const bool distilled : {false, true}) {
                const Expected e = expected(r, distilled);
                compare(run(type, r, distilled, 0, {{0, columns}, {}}), e, e.gradient, 5e-6,
                        name(type, r, distilled, 0), type);
            }
        }
    }
}

TEST_F(Vocabulary, DistillationWorksForTemperaturesBelowOne) {
    temperature_ = 0.5;
    for (const std::int64_t columns : {31, 127}) {
        const Rows r = make(5, columns);
        const Expected e = expected(r, true);
        for (const DType type : {DType::f32, DType::f64})
            compare(run(type, r, true, 0, {{0, columns}, {}}), e, e.gradient, 5 * tolerance(type),
                    name(type, r, true, 0), type);
    }
}

TEST_F(Vocabulary, LossesHandleLogitsOfMinusInfinity) {
    constexpr double kNever = -std::numeric_limits<double>::infinity();
    for (const DType type : testing_support::kTypes) {
        Rows r = make(6, 4097);
        for (std::size_t i = 0; i < r.student.size(); ++i)
            if (i / 4097 == 2 ? i % 4097 < 4000 : i % 3 == 0) r.student[i] = kNever;
        r.targets = {1, 1, 4090, 5, 4096, 7};
        for (std::size_t i = 0; i < 6; ++i)
            r.student[i * 4097 + static_cast<std::size_t>(r.targets[i])] = 1e4;
        r.student[4 * 4097 + 11] = 1e4 + 1;
        r.student[5 * 4097 + 8] = 3e38;
        r.student[5 * 4097 + 1000] = -3e38;
        r = rounded(type, r);
        const Expected e = expected(r, false);
        compare(run(type, r, false, 0, {{0, 4097}, {}}), e, e.gradient, tolerance(type),
                name(type, r, false, 0), type);
    }
}

TEST_F(Vocabulary, LossesAreAddedInRowOrder) {
    const Rows r = make(300, 3);
    const Tensor logits = random(DType::f32, {300, 3}, 2), losses = filled(DType::f64, {300}, std::nan("")),
                 loss = filled(DType::f64, {1}, 17);
    cross_entropy_rows(b_, logits, list(r.targets), list(r.weights), kScale, {{0, 3}, {}}, losses, loss,
                       scratch_);
    double sum = 0;
    for (const double value : values(losses)) sum += value;
    EXPECT_EQ(get(loss, 0), 17 + sum);
    EXPECT_GT(sum, 1);
}

class VocabularyShards : public Vocabulary {
protected:
    /// Simulates several ranks one after another: calls run(part, combine) for the part of each, and repeats
    /// all of them until every call of combine() knows the values of all ranks that it has to combine.
    template <class Run>
    void simulate_ranks(std::size_t parts, Run&& run) {
        std::vector<std::vector<double>> known;
        for (bool more = true; more;) {
            more = false;
            std::vector<double> next;
            for (std::size_t part = 0; part < parts; ++part) {
                std::size_t call = 0;
                run(part, [&](const Tensor& found, Reduction op) {
                    if (call < known.size()) {
                        for (std::int64_t i = 0; i < found.size(); ++i)
                            set(found, i, known[call][static_cast<std::size_t>(i)]);
                    } else if (call == known.size()) {
                        more = true;
                        const std::vector<double> rank_values = values(found);
                        if (part == 0) next = rank_values;
                        for (std::size_t i = 0; part > 0 && i < rank_values.size(); ++i)
                            next[i] = op == Reduction::sum ? next[i] + rank_values[i]
                                                           : std::max(next[i], rank_values[i]);
                    }
                    ++call;
                });
            }
            if (more) known.push_back(next);
        }
    }
    void expect_as_whole(DType type, const Rows& exact, bool distilled, const std::vector<Range>& parts) {
        const Rows r = rounded(type, exact);
        const Expected e = expected(r, distilled);
        std::vector<Found> found(parts.size());
        simulate_ranks(parts.size(), [&](std::size_t part, auto&& combine) {
            found[part] = run(type, r, distilled, 0, {parts[part], combine});
        });
        for (std::size_t part = 0; part < parts.size(); ++part) {
            EXPECT_EQ(found[part].loss, found[0].loss) << "ranks differ";
            EXPECT_EQ(found[part].terms, found[0].terms) << "ranks differ";
            compare(found[part], e, part_of(e.gradient, r.columns, parts[part]), tolerance(type),
                    name(type, r, distilled, 0) + ", part " + std::to_string(part), type);
        }
    }
};

TEST_F(VocabularyShards, HaveTheLossOfTheWholeVocabulary) {
    for (const DType type : testing_support::kTypes)
        for (const bool distilled : {false, true}) {
            expect_as_whole(type, make(7, 127), distilled, {{0, 1}, {1, 41}, {41, 127}});
            expect_as_whole(type, make(6, 5000), distilled, {{0, 2500}, {2500, 5000}});
            expect_as_whole(type, make(133, 9), distilled, {{0, 4}, {4, 9}});
        }
}

TEST_F(VocabularyShards, MayHaveNoLikelyTokens) {
    Rows r = make(5, 200);
    for (std::size_t i = 0; i < r.student.size(); ++i)
        if (i % 200 < 100)
            r.student[i] = i / 200 == 0 ? -std::numeric_limits<double>::infinity()
                                        : static_cast<float>(r.student[i] - 1e4);
        else if (i / 200 == 2)
            r.student[i] = static_cast<float>(r.student[i] + 1e4);
    for (const DType type : testing_support::kTypes) expect_as_whole(type, r, false, {{0, 100}, {100, 200}});
    for (const DType type : testing_support::kTypes) {
        Rows shifted = make(5, 200);
        for (std::size_t i = 0; i < shifted.student.size(); ++i)
            (i % 200 < 100 ? shifted.student : shifted.teacher)[i] -= 30;
        expect_as_whole(type, shifted, true, {{0, 100}, {100, 200}});
    }
}

class Argmax : public Vocabulary {
protected:
    std::vector<std::int32_t> argmax(const Tensor& logits) {
        const std::int64_t rows = logits.rows();
        const Tensor all = list(std::vector<std::int32_t>(static_cast<std::size_t>(rows + 2), -9));
        const Tensor largest = filled(logits.dtype, {rows + 2}, -9);
        argmax_rows(b_, logits, all.slice(1, rows + 1), largest.slice(1, rows + 1));
        std::vector<std::int32_t> found(static_cast<std::size_t>(rows + 2));
        b_.download(all, found.data());
        EXPECT_EQ(found.front(), -9);
        EXPECT_EQ(found.back(), -9);
        const std::vector<double> elements = values(logits), kept = values(largest);
        EXPECT_EQ(kept.front(), -9);
        EXPECT_EQ(kept.back(), -9);
        for (std::int64_t r = 0; r < rows; ++r) {
            const auto row = static_cast<std::size_t>(r);
            const double due = elements[row * static_cast<std::size_t>(logits.columns()) + found[row + 1]];
            EXPECT_TRUE(kept[row + 1] == due || (std::isnan(kept[row + 1]) && std::isnan(due)));
        }
        return {found.begin() + 1, found.end() - 1};
    }
};

TEST_F(Argmax, FindsTheFirstLargestLogit) {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const DType type : {DType::f32, DType::f64})
        for (const std::int64_t columns : {1, 31, 33, 128, 1000, 4097, 20000})
            for (const std::int64_t before : {0, 1}) {
                Rows r = make(7, columns);
                const auto at = [&](std::int64_t row, std::int64_t c) -> double& {
                    return r.student[static_cast<std::size_t>(row * columns + c)];
                };
                at(0, columns - 1) = 50;                                                // the last
                for (const std::int64_t c : {columns / 2, columns - 1}) at(1, c) = 60;  // equal ones
                for (std::int64_t c = 0; c < columns; ++c) at(2, c) = -infinity;
                for (std::int64_t c = 0; c < columns; ++c) at(3, c) = -1;
                at(4, columns / 3) = infinity;
                at(5, columns / 2) = std::nan("");
                at(6, 0) = std::nan("");
                std::vector<std::int32_t> expected;
                for (std::int64_t row = 0; row < 7; ++row)
                    expected.push_back(static_cast<std::int32_t>(
                        std::max_element(&at(row, 0), &at(row, 0) + columns) - &at(row, 0)));
                const Tensor logits = view(type, 7, columns, before, r.student);
                const std::string what = fmt::format("{} {} {}", name_of(type), columns, before);
                EXPECT_EQ(argmax(logits), expected) << what;
                expect_kept_around(what);
            }
    EXPECT_TRUE(argmax(view(DType::f32, 0, 5, 0)).empty());
}

}  // namespace
}  // namespace maestro::ops
