#include "transport/cuda/pinned_mappings.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace maestro::transport {

namespace {

using Span = std::pair<std::uintptr_t, std::uintptr_t>;

/// Rounds the spans to whole pages and joins those that touch, because no page can be registered twice.
std::vector<Span> joined_pages(std::vector<Span> spans) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    for (auto& [begin, end] : spans) {
        begin = begin / page * page;
        end = (end + page - 1) / page * page;
    }
    std::sort(spans.begin(), spans.end());
    std::vector<Span> joined;
    for (const Span& span : spans)
        if (!joined.empty() && span.first <= joined.back().second)
            joined.back().second = std::max(joined.back().second, span.second);
        else
            joined.push_back(span);
    return joined;
}

Span span_of(const std::byte* data, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    return {begin, begin + bytes};
}

}  // namespace

PinnedMappings::PinnedMappings(Transport& transport, std::size_t bytes, const std::vector<std::size_t>& peers,
                               std::string& refused)
    : reached_(peers.size(), nullptr) {
    std::vector<Span> spans = {span_of(transport.memory(), bytes)};
    for (std::size_t peer = 0; peer < peers.size(); ++peer) {
        reached_[peer] = transport.peer_memory(static_cast<int>(peer));
        if (reached_[peer]) spans.push_back(span_of(reached_[peer], peers[peer]));
    }
    for (const auto& [begin, end] : joined_pages(std::move(spans))) {
        auto* const pages = reinterpret_cast<void*>(begin);
        const cudaError_t found = cudaHostRegister(pages, end - begin, cudaHostRegisterDefault);
        if (found == cudaSuccess) {
            registered_.push_back(pages);
            continue;
        }
        cudaGetLastError();  // clears the error, which the check of the next launch would report otherwise
        refused = fmt::format("cudaHostRegister: {}", cudaGetErrorString(found));
        // All or nothing, so that a failure leaves one case to describe and to test: everything is staged.
        release();
        reached_.assign(peers.size(), nullptr);
        return;
    }
}

void PinnedMappings::release() {
    for (void* const pages : registered_) cudaHostUnregister(pages);
    registered_.clear();
}

bool PinnedMappings::reaches_all() const {
    return std::none_of(reached_.begin(), reached_.end(), [](const std::byte* to) { return to == nullptr; });
}

}  // namespace maestro::transport
