#include "safetensors/index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "safetensors/json_events.hpp"
#include "safetensors/message.hpp"

namespace maestro::safetensors {

namespace {

class IndexReader : public JsonEvents<IndexReader> {
public:
    explicit IndexReader(const std::filesystem::path& file) : JsonEvents(file) {}

    void on_key(std::string& name) {
        if (depth() == 1) {
            in_map_ = name == "weight_map";
            if (in_map_ && std::exchange(seen_map_, true))
                refuse(file(), fmt::format("weight_map stands twice; {}", kMakeAgain));
        } else if (in_map_) {
            tensor_ = std::move(name);
        }
    }
    void on_value(const JsonValue& value) {
        if (!in_map_) return;
        if (depth() == 1) bad_map();
        if (value.kind != JsonValue::Kind::text)
            refuse(file(), tensor_, fmt::format("weight_map does not give a file for it; {}", kMakeAgain));
        check_name(*value.text);
        const auto found = numbers_.emplace(std::move(*value.text), numbers_.size()).first;
        entries_.push_back({std::move(tensor_), found->second});
    }
    void on_begin(bool is_object) {
        if (in_map_ && (depth() != 2 || !is_object)) bad_map();
    }
    void on_end() {}

    FolderIndex take() {
        if (entries_.empty())
            refuse(file(), fmt::format("its weight_map is missing or empty; {}", kMakeAgain));
        std::sort(entries_.begin(), entries_.end(),
                  [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
        for (std::size_t i = 1; i < entries_.size(); ++i)
            if (entries_[i].tensor == entries_[i - 1].tensor)
                refuse(file(), entries_[i].tensor,
                       fmt::format("it stands twice in weight_map; {}", kMakeAgain));
        FolderIndex index{.entries = std::move(entries_)};
        std::vector<std::size_t> sorted(numbers_.size());
        for (const auto& [name, number] : numbers_) {
            sorted[number] = index.files.size();
            index.files.push_back(name);
        }
        for (auto& entry : index.entries) entry.file = sorted[entry.file];
        return index;
    }

private:
    [[noreturn]] void bad_map() const {
        refuse(file(), fmt::format("its weight_map is not an object of texts; {}", kMakeAgain));
    }

    void check_name(std::string_view name) const {
        constexpr std::string_view kEnding = ".safetensors";
        constexpr std::size_t kLongest = 255;
        const bool plain = std::none_of(name.begin(), name.end(), [](char c) {
            return c == '/' || c == '\\' || static_cast<unsigned char>(c) < ' ';
        });
        if (!plain || name.find("..") != std::string_view::npos)
            refuse(file(), tensor_,
                   fmt::format("weight_map gives {}, which is no file of this folder; put all files into the "
                               "folder of the index and name them there without a path",
                               in_quotes(name)));
        if (!name.ends_with(kEnding) || name.size() > kLongest)
            refuse(file(), tensor_,
                   fmt::format("weight_map gives {}, which is no *{} file; convert the model",
                               in_quotes(name), kEnding));
    }

    std::vector<FolderIndex::Entry> entries_;
    std::map<std::string, std::size_t> numbers_;  ///< of files, in the order of their first entries
    std::string tensor_;
    bool in_map_ = false, seen_map_ = false;
};

}  // namespace

FolderIndex parse_index(std::string_view text, const std::filesystem::path& index) {
    IndexReader reader(index);
    reader.parse(text, 0);
    return reader.take();
}

}  // namespace maestro::safetensors
