#include "config/sample_source.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace maestro::config {

namespace {

void check_pictures(const SampleDistribution& drawn, TableReader& tables) {
    constexpr std::int64_t kMost = 1'000'000'000;
    if (drawn.samples * drawn.pictures > kMost)
        tables.fail_at("data.lengths.pictures",
                       fmt::format("up to {} for each of {} samples are too many; allowed: "
                                   "up to {} in all",
                                   drawn.pictures, drawn.samples, kMost));
    const std::int64_t unit = drawn.picture_unit;
    for (const auto& [name, sides] : {std::pair{"picture_height", &drawn.picture_height},
                                      std::pair{"picture_width", &drawn.picture_width}})
        if (sides->empty())
            tables.fail_at(fmt::format("data.lengths.{}", name),
                           "missing; required where samples have pictures");
        else if (sides->size() > 2 || sides->front() > sides->back())
            tables.fail_at(fmt::format("data.lengths.{}", name),
                           fmt::format("[{}] is neither one number of pixels nor the least and the most",
                                       fmt::join(*sides, ", ")));
        else if ((sides->front() + unit - 1) / unit > sides->back() / unit)
            tables.fail_at(
                fmt::format("data.lengths.{}", name),
                fmt::format("[{}] holds no multiple of picture_unit, {}", fmt::join(*sides, ", "), unit));
}

/// Keys of the numbers of tokens, each of the distributions that have it.
void check_distribution(const SampleDistribution& drawn, TableReader& tables) {
    const auto check_key = [&](const std::string& name, bool applies, bool required) {
        const bool set = tables.places().contains("data.lengths." + name);
        if (set && !applies)
            tables.fail_at("data.lengths." + name,
                           fmt::format("a {} distribution does not have it; remove it", drawn.shape));
        if (!set && required)
            tables.fail_at("data.lengths." + name,
                           fmt::format("missing; required for a {} distribution", drawn.shape));
    };
    const bool fixed = drawn.shape == "fixed", uniform = drawn.shape == "uniform",
               lognormal = drawn.shape == "lognormal";
    check_key("tokens", !uniform, !uniform);
    check_key("spread", lognormal, lognormal);
    check_key("least_tokens", !fixed, false);
    check_key("most_tokens", !fixed, false);
    if (!fixed && drawn.least_tokens > drawn.most_tokens)
        tables.fail_at("data.lengths.least_tokens",
                       fmt::format("{} is more than most_tokens, {}", drawn.least_tokens, drawn.most_tokens));
    if (drawn.picture_share > 0) check_pictures(drawn, tables);
}

}  // namespace

void check_source(const Data& data, bool needs_samples, TableReader& tables) {
    const Lengths& lengths = data.lengths;
    std::vector<std::string> set;  // of the keys of [data.lengths]
    for (const auto& [name, key] : tables.slots())
        if (name.starts_with("data.lengths.") && tables.places().contains(name)) set.push_back(name);
    const bool has_table = tables.places().contains("data.lengths") || !set.empty();
    if (needs_samples && data.train.empty() && !has_table)
        tables.fail_at(
            "data.train",
            "missing; it must be a sample file. Where the contents of samples are not needed (plan, "
            "simulate, dry runs, run.device = \"emulated\") a table [data.lengths] may take its place");
    if (!data.train.empty() && has_table)
        tables.fail_at(
            "data.lengths",
            fmt::format("samples come from it or from data.train, which is {}; remove one", data.train));
    if (has_table && !lengths.requested())
        tables.fail_at(
            "data.lengths.samples",
            "missing; it must be how many samples are drawn, or data.lengths.file a CSV file of lengths");
    if (lengths.file.empty()) return;
    for (const std::string& name : set)
        if (name != "data.lengths.file")
            tables.fail_at(name, fmt::format("is a key of a distribution, but the lengths are those of {} "
                                             "(data.lengths.file); remove one",
                                             lengths.file));
}

void finish_distribution(Data& data, TableReader& tables) {
    SampleDistribution& drawn = data.lengths.drawn;
    if (drawn.samples == 0) return;
    if (drawn.most_tokens == 0) drawn.most_tokens = data.sequence_length;
    check_distribution(drawn, tables);
}

}  // namespace maestro::config
