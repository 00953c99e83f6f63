// Verbs of a group that are under way, and their messages in pieces.
#pragma once

#include <algorithm>
#include <deque>
#include <string>

#include "base/check.hpp"
#include "collective/group.hpp"

namespace maestro::collective {

/// By ticket. An Exchange has a member `open`; one that has ended is used again, as it was left.
template <class Exchange>
class Exchanges {
public:
    Group::Ticket begin() {
        const auto free = std::find_if(all_.begin(), all_.end(), [](const Exchange& e) { return !e.open; });
        const auto ticket = static_cast<Group::Ticket>(free - all_.begin());
        Exchange& exchange = free == all_.end() ? all_.emplace_back() : *free;
        exchange.open = true;
        return ticket;
    }
    Exchange& operator[](Group::Ticket ticket) { return all_[ticket]; }
    /// `group` is for the message where the ticket is not open.
    Exchange& open(Group::Ticket ticket, const std::string& group) {
        MAESTRO_CHECK(ticket < all_.size() && all_[ticket].open, "{}: a ticket that is not open", group);
        return all_[ticket];
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
