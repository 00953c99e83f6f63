// How the stand-in for NCCL reaches other ranks: sockets between processes of one host. Nothing here waits.
#pragma once

#include <array>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace hosted {

/// What ranks tell each other first.
struct Hello {
    int rank = 0, size = 0;
    std::array<char, 32> bus{};  ///< of its GPU
};

/// The other end was closed.
struct Gone : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Of one rank, to all others that know `name`. Not thread-safe.
class Links {
public:
    Links(std::string name, const Hello& own);
    ~Links();
    Links(const Links&) = delete;
    Links& operator=(const Links&) = delete;

    /// Goes on with it; true once every rank has said hello.
    bool connect();
    const Hello& hello(int rank) const { return ends_[static_cast<std::size_t>(rank)].hello; }
    /// How many of the bytes went or came, maybe none. Throws Gone.
    std::size_t send(int rank, const char* data, std::size_t bytes);
    std::size_t receive(int rank, char* data, std::size_t bytes);

private:
    struct End {
        int socket = -1;
        bool greeted = false;
        Hello hello;
    };
    void reach(int rank);
    void accept_others();

    std::string name_;
    Hello own_;
    int listening_ = -1;
    std::vector<End> ends_;  ///< by rank
};

}  // namespace hosted
