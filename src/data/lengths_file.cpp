// Samples that a CSV file lists.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/text_file.hpp"
#include "data/sample_lengths.hpp"

namespace maestro::data {

namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;
constexpr std::size_t kMostProblems = 10;
constexpr std::int64_t kLinesPerBeat = 1 << 16;
constexpr std::array<std::string_view, 3> kColumns{"tokens", "pictures", "targets"};
enum Column : std::size_t { tokens_column, pictures_column, targets_column };

std::string_view trimmed(std::string_view text) {
    const auto first = text.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

/// Calls visit(part) for what lies between the separators.
template <class Visit>
void for_each_part(std::string_view text, char separator, Visit&& visit) {
    while (true) {
        const auto end = text.find(separator);
        visit(text.substr(0, end));
        if (end == std::string_view::npos) return;
        text.remove_prefix(end + 1);
    }
}

std::optional<std::int64_t> whole_number(std::string_view text, std::int64_t least, std::int64_t most) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) return {};
    return value;
}

class LengthsReader {
public:
    LengthsReader(const std::string& path, Pulse& pulse) : path_(path), pulse_(pulse) {}

    SampleIndex read(std::string_view text) {
        bool header = false;
        while (!text.empty() && problems_.size() < kMostProblems) {
            const auto end = text.find('\n');
            const std::string_view line = text.substr(0, end);
            text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
            if (++line_ % kLinesPerBeat == 0) pulse_.beat();
            if (!header) {
                if (!read_header(line)) break;
                header = true;
            } else if (!trimmed(line).empty()) {
                read_row(line);
            }
        }
        if (problems_.empty() && index_.size() == 0) {
            line_ = std::max<std::int64_t>(line_, 1);
            fail(line_start_, "holds no samples; give a header and a line for each sample");
        }
        if (!problems_.empty())
            throw Error(ExitCode::bad_data, fmt::format("{}", fmt::join(problems_, "\n")), Scope::all_ranks);
        return std::move(index_);
    }

private:
    static constexpr std::size_t line_start_ = 0;

    /// `at`: the byte of the line, from 0.
    void fail(std::size_t at, const std::string& what) {
        problems_.push_back(fmt::format("{}:{}:{}: {}", path_, line_, at + 1, what));
    }

    bool read_header(std::string_view line) {
        constexpr std::string_view kMark = "\xef\xbb\xbf";  // which spreadsheets write before UTF-8
        if (line.starts_with(kMark)) line.remove_prefix(kMark.size());
        bool good = true;
        for_each_part(line, ',', [&](std::string_view part) {
            const std::string_view name = trimmed(part);
            const auto at = std::find(kColumns.begin(), kColumns.end(), name);
            const auto column = static_cast<std::size_t>(at - kColumns.begin());
            if (at == kColumns.end() || std::find(order_.begin(), order_.end(), column) != order_.end()) {
                fail(static_cast<std::size_t>(part.data() - line.data()),
                     fmt::format("'{}' is {}; the first line names the columns {}", name,
                                 at == kColumns.end() ? "no column" : "there twice",
                                 fmt::join(kColumns, ", ")));
                good = false;
            }
            order_.push_back(column);
        });
        if (good && std::find(order_.begin(), order_.end(), tokens_column) == order_.end()) {
            fail(line_start_, "there is no column 'tokens'");
            good = false;
        }
        return good;
    }

    void read_row(std::string_view line) {
        std::array<std::string_view, kColumns.size()> fields{line.substr(0, 0), line.substr(0, 0),
                                                             line.substr(0, 0)};
        std::size_t count = 0;
        for_each_part(line, ',', [&](std::string_view part) {
            if (count < order_.size()) fields[order_[count]] = part;
            ++count;
        });
        if (count != order_.size())
            return fail(line_start_, fmt::format("{} fields; the first line names {}", count, order_.size()));
        const auto problems = problems_.size();
        const auto refuse = [&](Column column, std::string_view part, const std::string& what) {
            fail(static_cast<std::size_t>(part.data() - line.data()),
                 fmt::format("{}: '{}' {}", kColumns[column], trimmed(part), what));
        };
        items_.clear();
        if (!trimmed(fields[pictures_column]).empty())
            for_each_part(fields[pictures_column], ';', [&](std::string_view part) {
                const std::string_view size = trimmed(part);
                const auto cross = size.find('x');
                const auto height = whole_number(size.substr(0, cross), 1, kLargestPicture);
                const auto width = cross == std::string_view::npos
                                       ? std::nullopt
                                       : whole_number(size.substr(cross + 1), 1, kLargestPicture);
                if (height && width)
                    items_.push_back({static_cast<int>(*height), static_cast<int>(*width)});
                else
                    refuse(pictures_column, part,
                           fmt::format("is no size of a picture; allowed: HEIGHTxWIDTH, from 1 to {} pixels, "
                                       "several with ';' between them",
                                       kLargestPicture));
            });
        const auto text = whole_number(trimmed(fields[tokens_column]), 0, kMostTokens);
        if (!text)
            refuse(tokens_column, fields[tokens_column],
                   fmt::format("is not a valid number of tokens; allowed: 0 to {}", kMostTokens));
        else if (*text == 0 && items_.empty())
            refuse(tokens_column, fields[tokens_column], "leaves a sample without text and pictures");
        if (!text || problems_.size() > problems) return;
        // Nothing predicts the first token of a sample. Where it is a picture, all of the text may be learnt.
        const std::int64_t most = items_.empty() ? *text - 1 : *text;
        std::optional<std::int64_t> targets = std::max<std::int64_t>(*text - 1, 0);
        if (!trimmed(fields[targets_column]).empty()) {
            targets = whole_number(trimmed(fields[targets_column]), 0, most);
            if (!targets)
                return refuse(targets_column, fields[targets_column],
                              fmt::format("is not a number of tokens with loss; allowed: 0 to {}, and empty "
                                          "for all tokens of text but the first",
                                          most));
        }
        index_.add(*text, items_, static_cast<double>(*targets));
    }

    const std::string& path_;
    Pulse& pulse_;
    std::vector<std::size_t> order_;  ///< by field of a line: its column
    std::vector<Item> items_;         ///< of the line
    SampleIndex index_;
    std::vector<std::string> problems_;
    std::int64_t line_ = 0;
};

}  // namespace

SampleIndex parse_lengths(std::string_view text, const std::string& path, Pulse& pulse) {
    return LengthsReader(path, pulse).read(text);
}

SampleIndex read_lengths(const std::string& path, Pulse& pulse) {
    const std::optional<std::string> text = read_text_file(path);
    if (!text)
        throw Error(ExitCode::input_missing,
                    fmt::format("{}: cannot read the lengths of samples; give the path of a CSV file", path),
                    Scope::all_ranks);
    return parse_lengths(*text, path, pulse);
}

}  // namespace maestro::data
