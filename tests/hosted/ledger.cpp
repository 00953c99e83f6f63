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
    if (file < 0 || ftruncate(file, kBytes) != 0) stop(fmt::format("cannot use {} as the ledger", path));
    void* const mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return mapped;
}

}  // namespace

Ledger::Ledger() : shared_(static_cast<std::atomic<std::uint64_t>*>(map_ledger())) {
    if (static_cast<void*>(shared_) == MAP_FAILED) stop("no memory for the ledger");
}

Ledger::~Ledger() {
    for (int gpu = 0; gpu < kGpus; ++gpu) subtract(gpu, process_[static_cast<std::size_t>(gpu)]);
    munmap(static_cast<void*>(shared_), kBytes);
}

void Ledger::add(int gpu, std::uint64_t bytes) {
    process_[static_cast<std::size_t>(gpu)] += bytes;
    shared_[gpu] += bytes;
}

void Ledger::subtract(int gpu, std::uint64_t bytes) {
    process_[static_cast<std::size_t>(gpu)] -= bytes;
    shared_[gpu] -= bytes;
}

std::uint64_t Ledger::used(int gpu) const {
    return shared_[gpu];
}

}  // namespace hosted
