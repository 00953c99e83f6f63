// Connections of the simulated NCCL: non-blocking sockets between processes of one host.
#pragma once

#include <array>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace hosted {

/// The first message of a rank to each peer.
struct Hello {
    int rank = 0, size = 0;
    std::array<char, 32> bus{};  ///< PCI bus id of its GPU
};

/// A peer has closed its connection.
struct PeerGone : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// The connections of one rank to all other ranks that use `name`. Not thread-safe.
class Links {
public:
    Links(std::string name, const Hello& local);
    ~Links();
    Links(const Links&) = delete;
    Links& operator=(const Links&) = delete;

    /// Makes progress with connecting. Returns true once all ranks are connected.
    bool connect();
    const Hello& hello(int rank) const { return peers_[static_cast<std::size_t>(rank)].hello; }
    /// Returns how many bytes were transferred, possibly 0. Throws PeerGone.
    std::size_t send(int rank, const char* data, std::size_t bytes);
    std::size_t receive(int rank, char* data, std::size_t bytes);

private:
    struct Peer {
        int socket = -1;
        bool connected = false;
        Hello hello;
    };
    void connect_to(int rank);
    void accept_others();

    std::string name_;
    Hello local_;
    int listening_ = -1;
    std::vector<Peer> peers_;  ///< by rank
};

}  // namespace hosted
