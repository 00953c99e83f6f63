// Verbs of a group that are under way, and their messages in pieces.
#pragma once

#include <algorithm>
#include <deque>
#include <string>

#include "base/check.hpp"
#include "collective/process_group.hpp"

namespace maestro::collective {

/// By request. An Exchange has a member `open`; one that has ended is used again, as it was left.
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
    /// `group` is for the message where the request is not open.
    Exchange& open(ProcessGroup::Request request, const std::string& group) {
        MAESTRO_CHECK(request < all_.size() && all_[request].open, "{}: a request that is not open", group);
        return all_[request];
    }
    template <class Test>
    bool any(Test&& test) const {
        return std::any_of(all_.begin(), all_.end(), test);
    }

private:
    std::deque<Exchange> all_;  ///< whose places stay when more come
};

/// body(data, bytes) for pieces of at most `piece` bytes.
template <class Body>
void in_pieces(void* data, std::size_t bytes, std::size_t piece, Body&& body) {
    for (std::size_t at = 0; at < bytes; at += piece)
        body(static_cast<std::byte*>(data) + at, static_cast<int>(std::min(piece, bytes - at)));
}

}  // namespace maestro::collective
