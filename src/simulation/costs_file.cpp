#include "simulation/costs_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/error.hpp"
#include "base/text_file.hpp"

namespace maestro::simulation {

namespace {

constexpr std::string_view kHeader = "sample,section,forward_s,backward_s";
constexpr std::string_view kStageHeader = "sample,section,forward_s,backward_s,stage";
constexpr std::size_t kMaxProblems = 10;
constexpr double kMaxSeconds = 1e9;  ///< seconds

std::string_view trimmed(std::string_view text) {
    const auto first = text.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

class CostsReader {
public:
    CostsReader(const std::string& path, const graph::SectionGraph& graph) : path_(path), graph_(graph) {
        for (std::size_t s = 0; s < graph.sections.size(); ++s)
            colour_.emplace(graph.sections[s].name, static_cast<int>(s));
    }

    std::vector<schedule::SampleCost> read(std::string_view text) {
        bool header = false;
        for (line_ = 1; !text.empty() && problems_.size() < kMaxProblems; ++line_) {
            const auto end = text.find('\n');
            const std::string_view line = trimmed(text.substr(0, end));
            text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
            if (!header) {
                by_stage_ = line == kStageHeader;
                header = by_stage_ || line == kHeader;
                if (header) continue;
                fail(fmt::format("the first line must be '{}', or that with ',stage'", kHeader));
                break;
            } else if (!line.empty()) {
                row(line);
            }
        }
        if (problems_.empty() && samples_.empty())
            fail("holds no times; give a line for every sample and section");
        std::sort(samples_.begin(), samples_.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
        if (problems_.empty()) check_stages();
        if (problems_.empty()) check_loss();
        if (!problems_.empty())
            throw Error(ExitCode::bad_data, fmt::format("{}", fmt::join(problems_, "\n")), Scope::all_ranks);
        return std::move(samples_);
    }

private:
    void fail(const std::string& what) { problems_.push_back(fmt::format("{}:{}: {}", path_, line_, what)); }

    bool number(std::string_view text, const char* column, double& value) {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= kMaxSeconds)
            return true;
        fail(fmt::format("{}: '{}' is not a valid number of seconds; allowed: 0 to {:g}", column, text,
                         kMaxSeconds));
        return false;
    }

    void row(std::string_view line) {
        std::array<std::string_view, 5> field;
        const std::size_t fields = by_stage_ ? 5 : 4;
        std::size_t count = 0;
        for (std::string_view rest = line;; ++count) {
            const auto comma = rest.find(',');
            if (count < field.size()) field[count] = trimmed(rest.substr(0, comma));
            if (comma == std::string_view::npos) break;
            rest = rest.substr(comma + 1);
        }
        if (++count != fields) {
            fail(
                fmt::format("{} fields; allowed: {}, {}", count, fields, by_stage_ ? kStageHeader : kHeader));
            return;
        }
        std::int64_t id = 0;
        const auto [end, error] = std::from_chars(field[0].data(), field[0].data() + field[0].size(), id);
        if (error != std::errc() || end != field[0].data() + field[0].size() || id < 0) {
            fail(fmt::format("sample: '{}' is not a valid sample; allowed: a whole number from 0", field[0]));
            return;
        }
        const auto section = colour_.find(field[1]);
        if (section == colour_.end()) {
            std::vector<std::string> names;
            for (const auto& s : graph_.sections) names.push_back(s.name);
            fail(fmt::format("section: '{}' is not in the deck; allowed: {}", field[1],
                             fmt::join(names, ", ")));
            return;
        }
        schedule::TaskCost cost{.active = true};
        if (!number(field[2], "forward_s", cost.forward_s)) return;
        if (!field[3].empty() && !number(field[3], "backward_s", cost.backward_s)) return;
        const graph::Section& shape = graph_.sections[section->second];
        if (cost.backward_s > 0 && !shape.backward) {
            fail(
                fmt::format("backward_s: {} for section '{}', which runs forward only (mode = \"forward\"); "
                            "allowed: empty or 0",
                            field[3], shape.name));
            return;
        }
        const int stages = shape.layout.stage_count();
        int stage = -1;  // all
        if (by_stage_ && !stage_number(field[4], stages, stage)) return;
        const auto [index, added] = index_.emplace(id, samples_.size());
        if (added) samples_.push_back({id, std::vector<schedule::TaskCost>(graph_.stages.size())});
        std::vector<schedule::TaskCost>& places = samples_[index->second].stages;
        if (!by_stage_) {
            cost.forward_s /= stages;
            cost.backward_s /= stages;
        }
        for (int k = by_stage_ ? stage : 0; k < (by_stage_ ? stage + 1 : stages); ++k) {
            schedule::TaskCost& place = places[static_cast<std::size_t>(shape.first_stage + k)];
            if (place.active) {
                fail(fmt::format("sample {} has times for section '{}' already", id,
                                 by_stage_ ? graph_.stage_name(shape.first_stage + k) : shape.name));
                return;
            }
            place = cost;
        }
    }

    bool stage_number(std::string_view text, int stages, int& stage) {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), stage);
        if (error == std::errc() && end == text.data() + text.size() && stage >= 0 && stage < stages)
            return true;
        fail(fmt::format("stage: '{}' is not a stage of the section; allowed: 0 to {}", text, stages - 1));
        return false;
    }

    /// A sample that a section works on passes through all of its stages, and comes back through all of them
    /// if through one.
    void check_stages() {
        for (const schedule::SampleCost& sample : samples_)
            for (const graph::Section& s : graph_.sections) {
                int active = 0, backward = 0;
                const int stages = s.layout.stage_count();
                for (int k = 0; k < stages; ++k) {
                    const schedule::TaskCost& cost =
                        sample.stages[static_cast<std::size_t>(s.first_stage + k)];
                    active += cost.active ? 1 : 0;
                    backward += cost.backward_s > 0 ? 1 : 0;
                }
                const bool all = active == 0 || active == stages;
                if (all && (backward == 0 || backward == stages)) continue;
                problems_.push_back(
                    fmt::format("{}: sample {} has {} for {} of the {} stages of section '{}'; give {}",
                                path_, sample.id, all ? "a backward" : "times", all ? backward : active,
                                stages, s.name, all ? "one for each, or for none" : "a line for each"));
                if (problems_.size() == kMaxProblems) return;
            }
    }

    /// Every sample ends in the sections with a loss.
    void check_loss() {
        for (const schedule::SampleCost& sample : samples_)
            for (const graph::Section& s : graph_.sections)
                if (s.loss && !sample.stages[static_cast<std::size_t>(s.first_stage)].active) {
                    problems_.push_back(fmt::format(
                        "{}: sample {} has no times for section '{}', in which every sample ends; add a line",
                        path_, sample.id, s.name));
                    if (problems_.size() == kMaxProblems) return;
                }
    }

    const std::string& path_;
    const graph::SectionGraph& graph_;
    std::map<std::string, int, std::less<>> colour_;
    std::vector<schedule::SampleCost> samples_;            ///< in the order of their first lines
    std::unordered_map<std::int64_t, std::size_t> index_;  ///< of a sample's number in samples_
    std::vector<std::string> problems_;
    bool by_stage_ = false;  ///< every line is of one stage
    int line_ = 0;
};

}  // namespace

std::vector<schedule::SampleCost> parse_costs(std::string_view text, const std::string& path,
                                              const graph::SectionGraph& graph) {
    return CostsReader(path, graph).read(text);
}

std::vector<schedule::SampleCost> read_costs(const std::string& path, const graph::SectionGraph& graph) {
    const std::optional<std::string> text = read_text_file(path);
    if (!text)
        throw Error(ExitCode::input_missing,
                    fmt::format("{}: cannot read the costs; give the path of a CSV file", path),
                    Scope::all_ranks);
    return parse_costs(*text, path, graph);
}

}  // namespace maestro::simulation
