#include "io/exit_report.hpp"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace maestro::io {

bool write_exit_report(const std::filesystem::path& directory, const ExitReport& report) noexcept {
    try {
        if (!std::filesystem::is_directory(directory)) return false;
        const nlohmann::ordered_json json{{"code", report.code},
                                          {"reason", report.reason},
                                          {"rank", report.rank},
                                          {"host", report.host},
                                          {"step", report.step}};
        const auto partial = directory / fmt::format("exit.json.{}.partial", report.rank);
        std::ofstream file(partial);
        file << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
        file.close();
        if (!file) return false;
        std::filesystem::rename(partial, directory / "exit.json");
        return true;
    } catch (...) {
        return false;
    }
}

}  // namespace maestro::io
