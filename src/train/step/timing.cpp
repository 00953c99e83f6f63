#include "train/step/timing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace maestro::train {

namespace {

struct Entry {
    int member = 0;
    SectionTimes times;
};

constexpr std::array kColumns = {
    std::pair{"compute", &SectionTimes::compute}, std::pair{"waiting", &SectionTimes::waiting},
    std::pair{"sending", &SectionTimes::sending}, std::pair{"reducing", &SectionTimes::reducing}};

}  // namespace

std::string timing_table(const comm::Communicator& world, std::span<const std::string> sections,
                         std::span<const SectionTimes> mine, const std::vector<bool>& member, double wall_s) {
    std::string table = fmt::format(
        "time per section in {:.1f} s: seconds of its ranks, and the share of their mean\n  {:<16} {:>5}  "
        "{:<9}{:>10}{:>10}{:>10}{:>8}",
        wall_s, "section", "ranks", "", "min", "mean", "max", "share");
    for (std::size_t s = 0; s < sections.size(); ++s) {
        // Every rank of the world calls this for every section, also for those it does not hold.
        const std::vector<Entry> all = world.allgather(Entry{member[s] ? 1 : 0, mine[s]});
        const auto ranks =
            std::count_if(all.begin(), all.end(), [](const Entry& e) { return e.member != 0; });
        std::string name = sections[s], count = fmt::format("{}", ranks);
        for (const auto& [phase, field] : kColumns) {
            double low = 1e300, high = 0, sum = 0;
            for (const Entry& entry : all) {
                if (entry.member == 0) continue;
                low = std::min(low, entry.times.*field);
                high = std::max(high, entry.times.*field);
                sum += entry.times.*field;
            }
            const double mean = ranks == 0 ? 0 : sum / static_cast<double>(ranks);
            table += fmt::format("\n  {:<16} {:>5}  {:<9}{:>10.2f}{:>10.2f}{:>10.2f}{:>7.1f}%", name, count,
                                 phase, low, mean, high, wall_s > 0 ? 100 * mean / wall_s : 0);
            name.clear();
            count.clear();
        }
    }
    return table;
}

}  // namespace maestro::train
