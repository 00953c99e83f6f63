#include "train/setup/device.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "backend/gpus.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"

namespace maestro::train {

namespace {

/// What "auto" came to, for the screen; collective.
std::string describe_choice(const comm::Communicator& world, const backend::Device& device) {
    std::string mine = device.reason;
    if (device.gpu) mine = backend::describe_gpu(device.number);
    const std::vector<int> gpus = world.allgather(device.gpu ? 1 : 0);
    const auto count = std::count(gpus.begin(), gpus.end(), 1);
    const auto words_of = [&](int which) {  // those of the first rank that chose so
        std::string words = mine;
        world.broadcast(words, static_cast<int>(std::find(gpus.begin(), gpus.end(), which) - gpus.begin()));
        return words;
    };
    std::string text = "run.device = \"auto\": ";
    if (count > 0) text += fmt::format("{} of {} ranks on {}", count, world.size(), words_of(1));
    if (count < world.size())
        text += fmt::format("{}{} on the CPU, {}", count > 0 ? "; " : "", world.size() - count, words_of(0));
    return text;
}

}  // namespace

backend::Device choose_device(const comm::Communicator& world, const comm::Topology& topology,
                              const config::Deck& deck) {
    backend::Device device;
    comm::agree(world, [&] {
        // An emulated device is the host's memory and a clock.
        const std::string wanted = deck.run.device == "emulated" ? "cpu" : deck.run.device;
        device = backend::choose_device(
            wanted, topology.rank_on_node, topology.ranks_on_node,
            {.tf32 = deck.run.matmul_precision == "tf32", .autotune = deck.run.gemm_autotune == "benchmark"});
    });
    if (backend::kCuda && deck.run.device == "auto") log::info("{}", describe_choice(world, device));
    return device;
}

std::unique_ptr<backend::Backend> open_device(const RunContext& context) {
    auto opened = backend::open_device(context.device, context.topology.threads);
    // On a GPU one thread of the rank computes, or rather waits.
    if (!opened->shares_memory() && context.topology.threads > 1)
        context.world.waiter().progress().sleep_briefly();
    opened->set_wait([&waiter = context.world.waiter()](const auto& ready, const std::string& what) {
        waiter.wait_until(ready, [&] { return what; });
    });
    return opened;
}

}  // namespace maestro::train
