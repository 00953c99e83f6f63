#include "base/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>

#include "base/error.hpp"

namespace maestro::log {

namespace {
struct State {
    bool prints = true;
    std::shared_ptr<spdlog::logger> file;
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
        state().file = std::make_shared<spdlog::logger>("file", sink);
        state().file->set_pattern("%Y-%m-%d %H:%M:%S  %v");
        state().file->flush_on(spdlog::level::info);
    } catch (const spdlog::spdlog_ex& e) {
        throw Error(ExitCode::cannot_create,
                    fmt::format("{}: cannot open the log: {}", path.string(), e.what()));
    }
}

void write(std::string_view line) {
    if (!state().prints) return;
    std::fwrite(line.data(), 1, line.size(), stdout);
    std::fputc('\n', stdout);
    std::fflush(stdout);
    if (state().file) state().file->info("{}", line);
}

void write_error(std::string_view line) {
    std::fwrite(line.data(), 1, line.size(), stderr);
    std::fputc('\n', stderr);
    std::fflush(stderr);
    if (state().file) state().file->info("{}", line);
}

void write_file(std::string_view text) {
    if (state().file) state().file->info("{}", text);
}

void flush() {
    std::fflush(stdout);
    if (state().file) state().file->flush();
}

}  // namespace maestro::log
