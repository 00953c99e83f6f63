#include "comm/roll_call.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "comm/environment.hpp"

namespace maestro::comm {

namespace {
constexpr int kAsk = 1;  // tags of the messages
constexpr int kPresent = 2;
constexpr double kPollEveryS = 5e-3;
constexpr std::size_t kMaxListed = 8;
constexpr std::size_t kMaxHost = 64;  // the longest name that Linux allows

std::vector<std::string> gather_hosts(const Communicator& world, const std::string& host) {
    std::array<char, kMaxHost> letters{};
    host.copy(letters.data(), kMaxHost);
    std::vector<std::string> hosts;
    for (const auto& each : world.allgather(letters))
        hosts.emplace_back(each.data(), strnlen(each.data(), kMaxHost));
    return hosts;
}
}  // namespace

RollCall::RollCall(const Communicator& world, const std::string& host)
    : world_(world.split(0, world.rank(), "roll call")),
      hosts_(gather_hosts(world_, host)),
      heard_s_(hosts_.size(), 0.0) {
    if (world_.size() > 1) world_.waiter().set_roll_call([this] { return ask(); }, [this] { answer(); });
}

RollCall::~RollCall() {
    world_.waiter().set_roll_call({}, {});
}

Waiter::Missing RollCall::ask() {
    receive();  // what has arrived until now is no answer to this
    const double asked_s = now_s();
    for (int rank = 0; rank < world_.size(); ++rank) {
        if (rank == world_.rank()) continue;
        try {
            world_.notify(rank, kAsk);
        } catch (...) {  // then it cannot answer, and is named
        }
    }
    return [this, asked_s] {
        receive();
        return missing_since(asked_s);
    };
}

/// Does nothing if it was called just now.
void RollCall::answer() noexcept {
    const double now = now_s();
    if (now - polled_s_ < kPollEveryS) return;
    polled_s_ = now;
    receive();
}

void RollCall::receive() noexcept {
    try {
        while (const std::optional<Communicator::Notice> notice = world_.next_notice(MPI_ANY_TAG)) {
            heard_s_[static_cast<std::size_t>(notice->rank)] = now_s();
            if (notice->tag == kAsk) world_.notify(notice->rank, kPresent);
        }
    } catch (...) {  // over a broken network nobody answers, which is what the error then says
    }
}

std::string RollCall::missing_since(double time_s) const {
    std::vector<int> missing;
    for (int rank = 0; rank < world_.size(); ++rank)
        if (rank != world_.rank() && heard_s_[static_cast<std::size_t>(rank)] <= time_s)
            missing.push_back(rank);
    return list_ranks(missing, hosts_);
}

std::string list_ranks(std::span<const int> ranks, std::span<const std::string> hosts) {
    if (ranks.empty()) return "";
    std::string text = ranks.size() == 1 ? "rank" : "ranks";
    const std::size_t listed = std::min(ranks.size(), kMaxListed);
    for (std::size_t i = 0; i < listed; ++i)
        text +=
            fmt::format("{} {} ({})", i == 0 ? "" : ",", ranks[i], hosts[static_cast<std::size_t>(ranks[i])]);
    const std::size_t others = ranks.size() - listed;
    if (others > 0) text += fmt::format(" and {} other{}", others, others == 1 ? "" : "s");
    return text;
}

}  // namespace maestro::comm
