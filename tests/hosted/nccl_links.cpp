#include "nccl_links.hpp"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "stop.hpp"

namespace hosted {
namespace {

int open_socket() {
    const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (made < 0) stop(fmt::format("no socket for NCCL: {}", std::strerror(errno)));
    return made;
}

/// An abstract name: no file is left behind.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name, int rank) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string text = fmt::format("{}-{}", name, rank);
    if (text.size() + 1 > sizeof address.sun_path) stop("a name too long for a socket");
    std::copy(text.begin(), text.end(), address.sun_path + 1);
    return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size())};
}

const sockaddr* plain(const sockaddr_un& address) {
    return reinterpret_cast<const sockaddr*>(&address);
}

bool later() {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

}  // namespace

Links::Links(std::string name, const Hello& own)
    : name_(std::move(name)),
      own_(own),
      listening_(open_socket()),
      ends_(static_cast<std::size_t>(own.size)) {
    const auto [address, length] = address_of(name_, own.rank);
    if (bind(listening_, plain(address), length) != 0 || listen(listening_, own.size) != 0)
        stop(fmt::format("rank {} of {} is there twice, or: {}", own.rank, name_, std::strerror(errno)));
    ends_[static_cast<std::size_t>(own.rank)] = {-1, true, own};
}

Links::~Links() {
    for (const End& end : ends_)
        if (end.socket >= 0) close(end.socket);
    close(listening_);
}

/// Ranks below are called, ranks above call; either says hello first.
bool Links::connect() {
    for (int rank = 0; rank < own_.rank; ++rank)
        if (ends_[static_cast<std::size_t>(rank)].socket < 0) reach(rank);
    accept_others();
    for (End& end : ends_) {
        if (end.socket < 0 || end.greeted) continue;
        const ssize_t got = recv(end.socket, &end.hello, sizeof end.hello, 0);
        end.greeted = got == static_cast<ssize_t>(sizeof end.hello);
    }
    return std::all_of(ends_.begin(), ends_.end(), [](const End& end) { return end.greeted; });
}

void Links::reach(int rank) {
    const int made = open_socket();
    const auto [address, length] = address_of(name_, rank);
    if (::connect(made, plain(address), length) != 0) {  // not there yet
        close(made);
        return;
    }
    if (::send(made, &own_, sizeof own_, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof own_))
        stop("a socket that does not take a few bytes");
    ends_[static_cast<std::size_t>(rank)].socket = made;
}

void Links::accept_others() {
    for (int made; (made = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
        Hello hello;  // was sent before this end could be accepted, or is about to be
        if (recv(made, &hello, sizeof hello, MSG_WAITALL) != static_cast<ssize_t>(sizeof hello) ||
            hello.size != own_.size || hello.rank <= own_.rank || hello.rank >= own_.size)
            stop(fmt::format("{}: ranks that do not mean the same communicator", name_));
        if (::send(made, &own_, sizeof own_, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof own_))
            stop("a socket that does not take a few bytes");
        ends_[static_cast<std::size_t>(hello.rank)] = {made, true, hello};
    }
}

std::size_t Links::send(int rank, const char* data, std::size_t bytes) {
    const ssize_t sent =
        ::send(ends_[static_cast<std::size_t>(rank)].socket, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (later()) return 0;
    throw Gone(fmt::format("rank {} is gone: {}", rank, std::strerror(errno)));
}

std::size_t Links::receive(int rank, char* data, std::size_t bytes) {
    const ssize_t got = recv(ends_[static_cast<std::size_t>(rank)].socket, data, bytes, MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got < 0 && later()) return 0;
    throw Gone(fmt::format("rank {} is gone: {}", rank, got == 0 ? "closed" : std::strerror(errno)));
}

}  // namespace hosted
