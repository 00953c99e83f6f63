// Transports on their own: what happens to an edge when one rank gets no window, and the memory of messages.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "base/check.hpp"
#include "channel/open.hpp"
#include "mpi/expect.hpp"
#include "mpi/mpi_main.hpp"
#include "transport/message_endpoint.hpp"
#include "transport/transport.hpp"

namespace {

int rank_without_model = -1;  ///< of MPI_COMM_WORLD: there MPI does not say which memory model a window has

}  // namespace

/// MPI's profiling interface: the program's function comes before the library's.
extern "C" int MPI_Win_get_attr(MPI_Win window, int key, void* value, int* found) {
    const int result = PMPI_Win_get_attr(window, key, value, found);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == rank_without_model && key == MPI_WIN_MODEL) *found = 0;
    return result;
}

namespace {

using namespace maestro;

/// All ranks learn of it at once, instead of waiting for the one that has given up.
void a_window_that_fails_on_one_rank_fails_on_all(const comm::Communicator& world) {
    rank_without_model = 1;
    try {
        transport::make_mpi_window(world.split(0, world.rank(), "an edge"), 4096);
        MAESTRO_FAIL("rank {} has a window", world.rank());
    } catch (const Error& error) {
        MAESTRO_CHECK(error.scope() == Scope::all_ranks && error.code() != ExitCode::peer_lost, "{}",
                      error.what());
    }
    channel::ChannelSpec spec;
    spec.name = "a-b";
    spec.producers = {{0}};
    spec.consumers = {{1}};
    spec.width = 4;
    spec.max_sent = spec.max_received = 4;
    spec.max_samples = 1;
    const auto open = channel::open_channels(world, std::span(&spec, 1));
    MAESTRO_CHECK(open.description[0] == "edge a-b: by messages, because MPI offers no window to its ranks",
                  "{}", open.description[0]);
    rank_without_model = -1;
}

/// Messages of many sizes, several at a time: their memory is exact, reused, and given back above the limit.
void memory_of_messages_is_bounded(const comm::Communicator& world) {
    constexpr std::size_t kSpare = 1 << 20, kLargest = 300'000, kAtOnce = 3;
    std::atomic<std::size_t> received = 0, bytes = 0;
    transport::MessageEndpoint endpoint(world.split(0, world.rank(), "messages"), kSpare,
                                        [&](int, const transport::Bytes& message) {
                                            bytes += message.size();
                                            ++received;
                                        });
    const int to = (world.rank() + 1) % world.size();
    std::size_t sent = 0, sent_bytes = 0, most = 0;
    for (int round = 0; round < 40; ++round) {
        for (std::size_t i = 0; i < kAtOnce; ++i) {
            const std::size_t size = 1 + (sent * 7919 * 31) % kLargest;
            transport::Bytes message = endpoint.new_message(size);
            message.resize(size);
            MAESTRO_CHECK(message.capacity() <= std::max<std::size_t>(4096, 2 * size), "{} bytes for {}",
                          message.capacity(), size);
            endpoint.send(to, std::move(message));
            ++sent;
            sent_bytes += size;
        }
        world.waiter().wait_until([&] { return received == sent; }, [] { return "messages"; });
        world.barrier();
        most = std::max(most, endpoint.held_bytes());
    }
    MAESTRO_CHECK(bytes == sent_bytes, "{} bytes of {}", bytes.load(), sent_bytes);
    MAESTRO_CHECK(most <= kSpare + 2 * kAtOnce * kLargest, "{} bytes for messages", most);
    world.barrier();
    // Far more than the limit at once, and nothing afterwards.
    for (int i = 0; i < 20; ++i) {
        transport::Bytes message = endpoint.new_message(kLargest);
        message.resize(kLargest);
        endpoint.send(to, std::move(message));
        ++sent;
    }
    world.waiter().wait_until([&] { return received == sent; }, [] { return "more messages"; });
    world.barrier();
    world.waiter().wait_until([&] { return endpoint.held_bytes() <= kSpare; },
                              [&] { return "the memory of messages"; });
}

/// A put reads its source when it is pushed, and arrives whole and before the word.
void rows_arrive_before_their_word(const comm::Communicator& world) {
    constexpr std::size_t kRows = 5'000'000;
    const auto transport =
        transport::make_messages(world.split(0, world.rank(), "rows"), 8 + kRows + 8, 2 * kRows);
    const int to = (world.rank() + 1) % world.size();
    std::vector<std::byte> rows(kRows);
    for (std::uint64_t round = 1; round <= 3; ++round) {
        std::fill(rows.begin(), rows.end(), static_cast<std::byte>(round));
        transport->put(to, 8, rows.data(), kRows / 3);
        transport->put(to, 8 + kRows / 3, rows.data() + kRows / 3, kRows - kRows / 3);
        transport->signal(to, 0, round);
        transport->flush(to);
        std::fill(rows.begin(), rows.end(), std::byte{77});  // the source is free again
        world.waiter().wait_until([&] { return transport->load(0) == round; }, [] { return "a word"; });
        const std::byte* const got = transport->memory() + 8;
        MAESTRO_CHECK(
            std::all_of(got, got + kRows, [&](std::byte b) { return b == static_cast<std::byte>(round); }),
            "rows of round {}", round);
        world.barrier();
    }
}

}  // namespace

int main(int argc, char** argv) {
    return test::run(argc, argv, [](const comm::Communicator& world) {
        a_window_that_fails_on_one_rank_fails_on_all(world);
        memory_of_messages_is_bounded(world);
        rows_arrive_before_their_word(world);
    });
}
