#include "io/exit_report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace maestro::io {

namespace {

/// Has a rank told of a failure already?
bool tells_of_failure(const std::filesystem::path& path) {
    std::ifstream file(path);
    const auto json = nlohmann::json::parse(file, nullptr, false);
    return json.is_object() && json.value("code", 0) != 0 && json.value("ended", true);
}

}  // namespace

bool write_exit_report(const std::filesystem::path& directory, const ExitReport& report) noexcept {
    try {
        if (!std::filesystem::is_directory(directory)) return false;
        nlohmann::ordered_json json{{"code", report.code},
                                    {"reason", report.reason},
                                    {"rank", report.rank},
                                    {"host", report.host},
                                    {"step", report.step}};
        if (!report.ended) json["ended"] = false;
        const auto partial =
            directory / fmt::format("exit.json.{}.{}.partial", report.rank, ::gettid());  // of this thread
        std::ofstream file(partial);
        file << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
        file.close();
        if (!file) {
            std::filesystem::remove(partial);
            return false;
        }
        const auto path = directory / "exit.json";
        std::error_code there;
        // A link takes a name only where it is free: of ranks that fail together the first has the word.
        std::filesystem::create_hard_link(partial, path, there);
        if (there && report.ended && !tells_of_failure(path))
            std::filesystem::rename(partial, path);
        else
            std::filesystem::remove(partial);
        return true;
    } catch (...) {
        return false;
    }
}

}  // namespace maestro::io
