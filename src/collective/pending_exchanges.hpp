// The operations of a process group that have been started and not yet waited for.
#pragma once

#include <algorithm>
#include <deque>
#include <string>

#include "base/check.hpp"
#include "collective/process_group.hpp"

namespace maestro::collective {

/// Exchanges by request number. An Exchange has a member `open`; a finished one is reused, with its memory.
template <class Exchange>
class PendingExchanges {
public:
    ProcessGroup::Request begin() {
        const auto free = std::find_if(all_.begin(), all_.end(), [](const Exchange& e) { return !e.open; });
        const auto request = static_cast<ProcessGroup::Request>(free - all_.begin());
        Exchange& exchange = free == all_.end() ? all_.emplace_back() : *free;
        exchange.open = true;
        return request;
    }
    Exchange& operator[](ProcessGroup::Request request) { return all_[request]; }
    /// The exchange of a request that must be open; `group` names the group in the error.
    Exchange& open(ProcessGroup::Request request, const std::string& group) {
        MAESTRO_CHECK(request < all_.size() && all_[request].open, "{}: a request that is not open", group);
        return all_[request];
    }
    const Exchange& open(ProcessGroup::Request request, const std::string& group) const {
        return const_cast<PendingExchanges&>(*this).open(request, group);
    }
    template <class Test>
    bool any(Test&& test) const {
        return std::any_of(all_.begin(), all_.end(), test);
    }

private:
    std::deque<Exchange> all_;  ///< a deque: references stay valid when it grows
};

/// Calls body(data, bytes) for consecutive segments of at most `max_bytes` bytes.
template <class Body>
void in_segments(void* data, std::size_t bytes, std::size_t max_bytes, Body&& body) {
    for (std::size_t at = 0; at < bytes; at += max_bytes)
        body(static_cast<std::byte*>(data) + at, static_cast<int>(std::min(max_bytes, bytes - at)));
}

}  // namespace maestro::collective
