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
    const int created = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (created < 0) stop(fmt::format("cannot create a socket for NCCL: {}", std::strerror(errno)));
    return created;
}

/// An address in the abstract namespace, which leaves no file behind.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name, int rank) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string text = fmt::format("{}-{}", name, rank);
    if (text.size() + 1 > sizeof address.sun_path) stop("a name too long for a socket");
    std::copy(text.begin(), text.end(), address.sun_path + 1);
    return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size())};
}

const sockaddr* generic(const sockaddr_un& address) {
    return reinterpret_cast<const sockaddr*>(&address);
}

bool would_block() {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

}  // namespace

Links::Links(std::string name, const Hello& local)
    : name_(std::move(name)),
      local_(local),
      listening_(open_socket()),
      peers_(static_cast<std::size_t>(local.size)) {
    const auto [address, length] = address_of(name_, local.rank);
    if (bind(listening_, generic(address), length) != 0 || listen(listening_, local.size) != 0)
        stop(fmt::format("cannot listen as rank {} of {} (started twice?): {}", local.rank, name_,
                         std::strerror(errno)));
    peers_[static_cast<std::size_t>(local.rank)] = {-1, true, local};
}

Links::~Links() {
    for (const Peer& peer : peers_)
        if (peer.socket >= 0) close(peer.socket);
    close(listening_);
}

/// Connects to lower ranks and accepts connections of higher ranks. Both sides send a Hello first.
bool Links::connect() {
    for (int rank = 0; rank < local_.rank; ++rank)
        if (peers_[static_cast<std::size_t>(rank)].socket < 0) connect_to(rank);
    accept_others();
    for (Peer& peer : peers_) {
        if (peer.socket < 0 || peer.connected) continue;
        const ssize_t got = recv(peer.socket, &peer.hello, sizeof peer.hello, 0);
        peer.connected = got == static_cast<ssize_t>(sizeof peer.hello);
    }
    return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.connected; });
}

void Links::connect_to(int rank) {
    const int created = open_socket();
    const auto [address, length] = address_of(name_, rank);
    if (::connect(created, generic(address), length) != 0) {  // the peer does not listen yet
        close(created);
        return;
    }
    if (::send(created, &local_, sizeof local_, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof local_))
        stop("cannot send a Hello");
    peers_[static_cast<std::size_t>(rank)].socket = created;
}

void Links::accept_others() {
    for (int created; (created = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
        Hello hello;  // the peer sends it immediately after connecting
        if (recv(created, &hello, sizeof hello, MSG_WAITALL) != static_cast<ssize_t>(sizeof hello) ||
            hello.size != local_.size || hello.rank <= local_.rank || hello.rank >= local_.size)
            stop(fmt::format("{}: ranks of different communicators", name_));
        if (::send(created, &local_, sizeof local_, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof local_))
            stop("cannot send a Hello");
        peers_[static_cast<std::size_t>(hello.rank)] = {created, true, hello};
    }
}

std::size_t Links::send(int rank, const char* data, std::size_t bytes) {
    const ssize_t sent =
        ::send(peers_[static_cast<std::size_t>(rank)].socket, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (would_block()) return 0;
    throw PeerGone(fmt::format("rank {} is gone: {}", rank, std::strerror(errno)));
}

std::size_t Links::receive(int rank, char* data, std::size_t bytes) {
    const ssize_t got = recv(peers_[static_cast<std::size_t>(rank)].socket, data, bytes, MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got < 0 && would_block()) return 0;
    throw PeerGone(fmt::format("rank {} is gone: {}", rank, got == 0 ? "closed" : std::strerror(errno)));
}

}  // namespace hosted
