#include "base/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <utility>

#include "base/error.hpp"

namespace maestro::log {

namespace {
struct State {
    bool prints = true;
    std::atomic<std::shared_ptr<spdlog::logger>> file;  ///< any thread may write
};
State& state() {
    static State instance;
    return instance;
}
}  // namespace

void start(bool prints) {
    state().prints = prints;
}

void open_file(const std::filesystem::path& path) {
    try {
        auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
        auto file = std::make_shared<spdlog::logger>("file", sink);
        file->set_pattern("%Y-%m-%d %H:%M:%S  %v");
        file->flush_on(spdlog::level::info);
        state().file = std::move(file);
    } catch (const spdlog::spdlog_ex& e) {
        throw Error(ExitCode::cannot_create,
                    fmt::format("{}: cannot open the log: {}", path.string(), e.what()));
    }
}

void write_file(std::string_view text) {
    if (const auto file = state().file.load()) file->info("{}", text);
}

void write(std::string_view line) {
    if (!state().prints) return;
    std::fwrite(line.data(), 1, line.size(), stdout);
    std::fputc('\n', stdout);
    std::fflush(stdout);
    write_file(line);
}

void write_error(std::string_view line) {
    std::fwrite(line.data(), 1, line.size(), stderr);
    std::fputc('\n', stderr);
    std::fflush(stderr);
    write_file(line);
}

void flush() {
    std::fflush(stdout);
    if (const auto file = state().file.load()) file->flush();
}

}  // namespace maestro::log
