#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include "backend/profiler_range.hpp"

namespace maestro::backend {

namespace {

/// NVTX destroys the domain when the process ends.
nvtxDomainHandle_t domain() {
    static const nvtxDomainHandle_t made = nvtxDomainCreateA("maestro");
    return made;
}

}  // namespace

void ProfilerRange::open(const std::string& section, const char* phase, int micro_batch) {
    push(section.c_str());
    push(phase);
    if (micro_batch >= 0) push(fmt::format("micro-batch {}", micro_batch).c_str());
}

void ProfilerRange::push(const char* name) {
    nvtxEventAttributes_t range{};
    range.version = NVTX_VERSION;
    range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    range.messageType = NVTX_MESSAGE_TYPE_ASCII;
    range.message.ascii = name;
    nvtxDomainRangePushEx(domain(), &range);
    ++depth_;
}

void ProfilerRange::close() {
    for (; depth_ > 0; --depth_) nvtxDomainRangePop(domain());
}

}  // namespace maestro::backend
