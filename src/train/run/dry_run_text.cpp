#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "graph/grid.hpp"
#include "train/run/dry_run_facts.hpp"
#include "train/setup/placement.hpp"

namespace maestro::train {

namespace {

using workload::RankMemory;

/// "3.20 GB", "812.0 MB"
std::string gb(double bytes) {
    return bytes >= 1e9 ? fmt::format("{:.2f} GB", bytes / 1e9) : fmt::format("{:.1f} MB", bytes / 1e6);
}

/// "44 min", "3 h 20 min", "12 days 3 h"
std::string duration(double seconds) {
    if (seconds < 120) return fmt::format("{:.3g} s", seconds);
    const auto minutes = static_cast<std::int64_t>(std::llround(seconds / 60));
    if (minutes < 120) return fmt::format("{} min", minutes);
    if (minutes < 48 * 60) return fmt::format("{} h {} min", minutes / 60, minutes % 60);
    return fmt::format("{} days {} h", minutes / (24 * 60), minutes / 60 % 24);
}

/// "0, 3-7"
std::string ranges(const std::set<int>& numbers) {
    std::string text;
    for (auto at = numbers.begin(); at != numbers.end();) {
        const int first = *at;
        int last = first;
        while (++at != numbers.end() && *at == last + 1) ++last;
        text += fmt::format("{}{}", text.empty() ? "" : ", ", first);
        if (last > first) text += fmt::format("-{}", last);
    }
    return text.empty() ? "-" : text;
}

std::string layout_text(const graph::Layout& l) {
    std::string text;
    for (const auto& [name, degree] :
         {std::pair{"dp", l.dp}, std::pair{"pp", l.pp}, std::pair{"cp", l.cp}, std::pair{"tp", l.tp},
          std::pair{"chunks", l.chunks}, std::pair{"ep", l.ep}, std::pair{"etp", l.etp}})
        if (degree > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " ", name, degree);
    return text.empty() ? "1 rank" : text;
}

std::string device_text(const DryRunFacts& facts) {
    const workload::RankDevice& d = facts.device;
    std::string text = fmt::format("{} ranks", facts.graph().world);
    if (d.ranks_per_node > 0)
        text +=
            fmt::format(" on {} nodes of {} ranks",
                        (facts.graph().world + d.ranks_per_node - 1) / d.ranks_per_node, d.ranks_per_node);
    text += fmt::format(", {}: each has {} of memory free", d.name, gb(d.memory));
    if (d.gpu)
        text += fmt::format(" on its GPU ({} less {} for the CUDA context)", gb(d.memory + d.context_memory),
                            gb(d.context_memory));
    return text + fmt::format("; windows that the deck leaves open (0) fill at most {:.0f}% of it",
                              100 * d.window_share);
}

std::string memory_table(const DryRunFacts& facts) {
    double most = 0;
    for (const RankMemory& memory : facts.ranks) most = std::max(most, memory.needed());
    const bool large = most >= 1e10;
    const auto number = [&](double bytes) {
        return large ? fmt::format("{:.2f}", bytes / 1e9) : fmt::format("{:.1f}", bytes / 1e6);
    };
    std::vector<std::vector<std::string>> rows{{"section"}};
    const auto add = [&](const std::string& words, const auto& cell) {
        std::vector<std::string> row{words};
        for (std::size_t s = 0; s < facts.sections.size(); ++s) row.push_back(cell(s));
        rows.push_back(std::move(row));
    };
    const graph::SectionGraph& graph = facts.graph();
    const auto bytes = [&](const std::string& words, const auto& what) {
        const bool any = std::any_of(facts.sections.begin(), facts.sections.end(),
                                     [&](const SectionFacts& s) { return what(s.memory) > 0; });
        if (any) add(words, [&](std::size_t s) { return number(what(facts.sections[s].memory)); });
    };
    for (const graph::Section& s : graph.sections) rows.front().push_back(s.name);
    add("layout", [&](std::size_t s) { return layout_text(graph.sections[s].layout); });
    add("ranks", [&](std::size_t s) {
        const graph::Section& section = graph.sections[s];
        const int last = section.first_rank + section.layout.ranks() - 1;
        return last > section.first_rank ? fmt::format("{}-{}", section.first_rank, last)
                                         : fmt::format("{}", last);
    });
    if (facts.device.ranks_per_node > 0)
        add("nodes", [&](std::size_t s) { return ranges(facts.sections[s].nodes); });
    add("samples of a micro-batch",
        [&](std::size_t s) { return fmt::format("{}", graph.sections[s].micro_batch); });
    add("window: micro-batches in flight", [&](std::size_t s) {
        return facts.sections[s].at_once ? std::string("-") : fmt::format("{}", facts.sections[s].window);
    });
    add("rank that needs most", [&](std::size_t s) { return fmt::format("{}", facts.sections[s].fullest); });
    if (std::any_of(facts.sections.begin(), facts.sections.end(),
                    [](const SectionFacts& s) { return !s.shares_with.empty(); }))
        add("it also holds", [&](std::size_t s) {
            const auto& with = facts.sections[s].shares_with;
            return with.empty() ? std::string("-") : fmt::format("{}", fmt::join(with, ", "));
        });
    const std::size_t head = rows.size();
    for (const MemoryPart& part : kDeviceParts) bytes(std::string("  ") + part.words, part.bytes);
    if (!facts.device.gpu)
        for (const MemoryPart& part : kHostParts) bytes(std::string("  ") + part.words, part.bytes);
    add("in all", [&](std::size_t s) { return number(facts.sections[s].memory.needed()); });
    add("free on its device", [&](std::size_t) { return number(facts.device.memory); });
    if (facts.device.gpu) {
        bytes("memory of its host", [](const RankMemory& m) { return m.on_host(); });
        for (const MemoryPart& part : kHostParts) bytes(std::string("  ") + part.words, part.bytes);
    }
    std::vector<std::string> title(rows.front().size());
    title.front() = fmt::format("memory of that rank, {}", large ? "GB" : "MB");
    rows.insert(rows.begin() + static_cast<std::ptrdiff_t>(head), std::move(title));
    return aligned(rows, 0, 1);
}

std::string disk_text(const DryRunFacts& facts) {
    if (facts.disk.checkpoint == 0) return {};
    std::vector<std::string> sections;
    for (std::size_t s = 0; s < facts.disk.sections.size(); ++s)
        sections.push_back(fmt::format("{} {}", facts.graph().sections[s].name,
                                       gb(static_cast<double>(facts.disk.sections[s]))));
    std::string text = fmt::format("a checkpoint has {} ({})", gb(static_cast<double>(facts.disk.checkpoint)),
                                   fmt::join(sections, ", "));
    if (facts.disk.at_once > 1)
        text += fmt::format("; up to {} at a time need {} of disk, the one being written included",
                            facts.disk.at_once, gb(static_cast<double>(facts.disk.bytes())));
    if (facts.disk.most > facts.disk.at_once)
        text += fmt::format("; each early stop adds one, up to {} in all", facts.disk.most);
    if (facts.free_disk)
        text += fmt::format("; {} are free at {} here", gb(static_cast<double>(*facts.free_disk)),
                            facts.context.deck.run.output);
    return text;
}

std::string time_text(const DryRunFacts& facts) {
    if (facts.step_s <= 0) return {};
    return fmt::format(
        "a step takes {:.6g} s there: step 1, as `maestro simulate` predicts it; {:.6g} tokens, {:.4g} "
        "tokens "
        "per rank-hour\n{} steps take {}, checkpoints and waiting for data not counted",
        facts.step_s, facts.tokens, 3600 * facts.tokens / facts.step_s / facts.graph().world, facts.steps(),
        duration(facts.step_s * static_cast<double>(facts.steps())));
}

}  // namespace

std::vector<std::string> to_texts(const DryRunFacts& facts) {
    std::vector<std::string> texts{device_text(facts) + "\n" + memory_table(facts)};
    for (std::string text : {disk_text(facts), time_text(facts)})
        if (!text.empty()) texts.push_back(std::move(text));
    return texts;
}

}  // namespace maestro::train
