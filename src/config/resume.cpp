// Which keys of a deck may differ when a run is resumed.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "config/deck.hpp"

namespace maestro::config {

namespace {

/// These keys change where, how long or how fast a run computes, but not the result, or only its rounding
/// (run.sums, run.tp_overlap). The samples are compared by their checksums, so their path may change, and the
/// weights come from the checkpoint.
constexpr std::array<std::string_view, 13> kFreeKeys = {
    "run.name",          "run.output",      "run.device",    "run.timeout_s",   "run.transport",
    "data.train",        "data.validation", "train.steps",   "train.log_every", "train.recompute",
    "run.gemm_autotune", "run.sums",        "run.tp_overlap"};
constexpr std::array<std::string_view, 5> kFreeTables = {"checkpoint.", "data.lengths.", "emulated.",
                                                         "metrics.", "schedule."};
constexpr std::array<std::string_view, 6> kFreeOfSections = {
    ".weights", ".micro_batch", ".window", ".colocate_with", ".recompute", ".recompute_layers"};

bool is_free(std::string_view key) {
    const auto any = [](const auto& list, auto&& fits) {
        return std::any_of(list.begin(), list.end(), fits);
    };
    if (any(kFreeKeys, [&](auto name) { return key == name; })) return true;
    if (any(kFreeTables, [&](auto table) { return key.starts_with(table); })) return true;
    return key.starts_with("section.") &&
           (key.find(".layout.") != std::string_view::npos ||
            any(kFreeOfSections, [&](auto end) { return key.ends_with(end); }));
}

}  // namespace

std::vector<std::string> resume_conflicts(const Deck& deck, const std::map<std::string, std::string>& stored,
                                          const std::map<std::string, std::string>& stored_defaults) {
    const auto is = [](const std::map<std::string, std::string>& map, const std::string& key,
                       const std::string& value) {
        const auto at = map.find(key);
        return at != map.end() && at->second == value;
    };
    std::vector<std::string> conflicts;
    const auto device = stored.find("run.device");
    if (device != stored.end() && (device->second == "emulated" || deck.run.device == "emulated"))
        conflicts.push_back(
            fmt::format("run.device: {} in the checkpoint, {} now; an emulated run has no weights",
                        device->second, deck.run.device));
    for (const auto& [key, value] : deck.settings) {
        const auto at = stored.find(key);
        if (is_free(key) || is(at == stored.end() ? deck.defaults : stored, key, value)) continue;
        conflicts.push_back(at == stored.end()
                                ? fmt::format("{}: {} now, not there in the checkpoint", key, value)
                                : fmt::format("{}: {} in the checkpoint, {} now", key, at->second, value));
    }
    for (const auto& [key, value] : stored)
        if (!is_free(key) && !deck.settings.contains(key) && !is(stored_defaults, key, value))
            conflicts.push_back(fmt::format("{}: {} in the checkpoint, not there now", key, value));
    return conflicts;
}

}  // namespace maestro::config
