#include "ledger.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "stop.hpp"

namespace hosted {
namespace {

constexpr std::size_t kBytes = Ledger::kGpus * sizeof(std::atomic<std::uint64_t>);

void* map_ledger() {
    const char* const path = std::getenv("MAESTRO_HOSTED_LEDGER");
    if (path == nullptr)
        return mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, kBytes) != 0) stop(fmt::format("{} cannot be a ledger", path));
    void* const mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return mapped;
}

}  // namespace

Ledger::Ledger() : all_(static_cast<std::atomic<std::uint64_t>*>(map_ledger())) {
    if (static_cast<void*>(all_) == MAP_FAILED) stop("no memory for the ledger");
}

Ledger::~Ledger() {
    for (int gpu = 0; gpu < kGpus; ++gpu) give_back(gpu, own_[static_cast<std::size_t>(gpu)]);
    munmap(static_cast<void*>(all_), kBytes);
}

void Ledger::take(int gpu, std::uint64_t bytes) {
    own_[static_cast<std::size_t>(gpu)] += bytes;
    all_[gpu] += bytes;
}

void Ledger::give_back(int gpu, std::uint64_t bytes) {
    own_[static_cast<std::size_t>(gpu)] -= bytes;
    all_[gpu] -= bytes;
}

std::uint64_t Ledger::taken(int gpu) const {
    return all_[gpu];
}

}  // namespace hosted
