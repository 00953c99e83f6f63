#include "counts.hpp"

#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stop.hpp"

namespace hosted {
namespace {

constexpr std::string_view kPhases[] = {"forward", "backward", "reduce", "update"};

const char* folder() {
    static const char* const name = std::getenv("MAESTRO_HOSTED_COUNTS");
    return name;
}

thread_local std::vector<std::string> ranges;

/// The ranges are those of ProfilerRange: section, phase and, within a task, micro-batch.
std::string phase() {
    const auto found = std::find_if(ranges.begin(), ranges.end(), [](const std::string& range) {
        return std::find(std::begin(kPhases), std::end(kPhases), range) != std::end(kPhases);
    });
    if (found == ranges.end()) return "elsewhere";
    const bool task = found + 1 != ranges.end() && (found + 1)->starts_with("micro-batch ");
    return task ? *found + " " + *(found + 1) : *found;
}

class Counts {
public:
    ~Counts() {
        if (folder() == nullptr) return;
        const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
        const std::string path = fmt::format("{}/{}.tsv", folder(), rank ? rank : std::to_string(getpid()));
        std::ofstream file(path);
        for (const auto& [key, total] : totals_)
            file << fmt::format("{}\t{}\t{}\t{}\n", key.first, key.second, total.calls, total.bytes);
        if (!file.flush()) stop(path + " cannot be written");
    }
    void add(const char* what, std::size_t bytes) {
        const std::lock_guard guard(mutex_);
        Total& total = totals_[{phase(), what}];
        ++total.calls;
        total.bytes += bytes;
    }

private:
    struct Total {
        std::uint64_t calls = 0, bytes = 0;
    };
    std::mutex mutex_;
    std::map<std::pair<std::string, std::string>, Total> totals_;
};

Counts& counts() {
    static Counts instance;
    return instance;
}

int push(nvtxDomainHandle_t, const nvtxEventAttributes_t* range) {
    ranges.emplace_back(range->message.ascii);
    return 0;
}
int pop(nvtxDomainHandle_t) {
    if (!ranges.empty()) ranges.pop_back();
    return 0;
}

/// Receives NVTX's ranges, unless another tool does (NVTX_INJECTION64_PATH).
int receive_ranges(NvtxGetExportTableFunc_t table_of) {
    if (folder() == nullptr) return 0;
    const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
    NvtxFunctionTable table = nullptr;
    unsigned size = 0;
    if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0)
        return 0;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(&push);
    *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
    return 1;
}

/// NVTX calls what this variable of its headers points to, when it is first used.
[[maybe_unused]] const auto kReceiver = InitializeInjectionNvtx2_fnptr = &receive_ranges;

}  // namespace

void count(const char* what, std::size_t bytes) {
    if (folder() != nullptr) counts().add(what, bytes);
}

}  // namespace hosted
