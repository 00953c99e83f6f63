#include "nccl_calls.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "hosted.hpp"
#include "stop.hpp"

namespace hosted {
namespace {

enum Kind : int { kMessage, kReduce, kReduceScatter, kAllGather, kAllReduce };

float from_bf16(std::uint16_t bits) {
    const std::uint32_t wide = std::uint32_t{bits} << 16;
    float value = 0;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}
std::uint16_t to_bf16(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // NaN
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <class T>
void add(T* sum, const T* term, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) sum[i] += term[i];
}

/// sum += term. In bf16 each addition rounds, as on the links of a ring.
void add(void* sum, const void* term, std::size_t count, ncclDataType_t type) {
    if (type == ncclFloat32) return add(static_cast<float*>(sum), static_cast<const float*>(term), count);
    if (type == ncclFloat64) return add(static_cast<double*>(sum), static_cast<const double*>(term), count);
    auto* const s = static_cast<std::uint16_t*>(sum);
    const auto* const t = static_cast<const std::uint16_t*>(term);
    for (std::size_t i = 0; i < count; ++i) s[i] = to_bf16(from_bf16(s[i]) + from_bf16(t[i]));
}

/// Elements [begin, end) of a tensor that belong to a rank.
struct Block {
    std::size_t begin, end;
    std::size_t count() const { return end - begin; }
};

/// Every rank sums its block, which may be empty.
Phase sum_of_blocks(const char* whole, char* result, const std::vector<Block>& blocks, Kind kind,
                    ncclDataType_t type, int rank) {
    const std::size_t element = size_of(type);
    const Block local = blocks[static_cast<std::size_t>(rank)];
    const int size = static_cast<int>(blocks.size());
    const auto received = std::make_shared<std::vector<std::vector<char>>>(blocks.size());
    Phase phase;
    for (int peer = 0; peer < size; ++peer) {
        const auto p = static_cast<std::size_t>(peer);
        if (peer == rank) continue;
        if (blocks[p].count() > 0)
            phase.transfers.push_back({.is_send = true,
                                       .peer = peer,
                                       .data = const_cast<char*>(whole) + blocks[p].begin * element,
                                       .head = {blocks[p].count() * element, type, kind}});
        if (local.count() == 0) continue;
        (*received)[p].resize(local.count() * element);
        phase.transfers.push_back({.is_send = false,
                                   .peer = peer,
                                   .data = (*received)[p].data(),
                                   .head = {local.count() * element, type, kind},
                                   .in_host_memory = true});
    }
    if (local.count() == 0) return phase;
    phase.finish = [=] {
        (*received)[static_cast<std::size_t>(rank)].assign(whole + local.begin * element,
                                                           whole + local.end * element);
        std::vector<char> sum = (*received)[static_cast<std::size_t>((rank + 1) % size)];
        for (int i = 2; i <= size; ++i)
            add(sum.data(), (*received)[static_cast<std::size_t>((rank + i) % size)].data(), local.count(),
                type);
        std::copy(sum.begin(), sum.end(), result);
    };
    return phase;
}

/// Every rank sends its block, which is in its place, to all others.
Phase gather_blocks(char* whole, const std::vector<Block>& blocks, Kind kind, ncclDataType_t type, int rank) {
    const std::size_t element = size_of(type);
    Phase phase;
    for (std::size_t p = 0; p < blocks.size(); ++p) {
        if (static_cast<int>(p) == rank) continue;
        for (const bool is_send : {true, false}) {
            const Block& block = blocks[is_send ? static_cast<std::size_t>(rank) : p];
            phase.transfers.push_back({.is_send = is_send,
                                       .peer = static_cast<int>(p),
                                       .data = whole + block.begin * element,
                                       .head = {block.count() * element, type, kind}});
        }
    }
    return phase;
}

std::vector<Block> equal_blocks(std::size_t count, int size) {
    std::vector<Block> blocks;
    for (std::size_t r = 0; r < static_cast<std::size_t>(size); ++r)
        blocks.push_back({r * count, (r + 1) * count});
    return blocks;
}

/// Transfers the bytes that can be transferred now.
void advance(Links& links, Transfer& t, int rank) {
    char* const head = reinterpret_cast<char*>(t.is_send ? &t.head : &t.received_head);
    const auto transfer_some = [&](char* data, std::size_t bytes) {
        return t.is_send ? links.send(t.peer, data, bytes) : links.receive(t.peer, data, bytes);
    };
    if (t.head_bytes < sizeof t.head) {
        t.head_bytes += transfer_some(head + t.head_bytes, sizeof t.head - t.head_bytes);
        if (t.head_bytes < sizeof t.head) return;
        if (!t.is_send && t.received_head != t.head)
            stop(
                fmt::format("NCCL: rank {} receives {} bytes of type {} in call {} where rank {} sends {} of "
                            "type {} in {}",
                            rank, t.head.bytes, t.head.type, t.head.call, t.peer, t.received_head.bytes,
                            t.received_head.type, t.received_head.call));
    }
    if (t.done_bytes < t.head.bytes)
        t.done_bytes += transfer_some(t.data + t.done_bytes, t.head.bytes - t.done_bytes);
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
    switch (type) {
        case ncclInt8:
        case ncclUint8:
            return 1;
        case ncclFloat16:
        case ncclBfloat16:
            return 2;
        case ncclInt32:
        case ncclUint32:
        case ncclFloat32:
            return 4;
        case ncclInt64:
        case ncclUint64:
        case ncclFloat64:
            return 8;
        default:
            return 0;
    }
}

void join(Phase& phase, const Phase& other) {
    phase.transfers.insert(phase.transfers.end(), other.transfers.begin(), other.transfers.end());
    if (!phase.finish) {
        phase.finish = other.finish;
    } else if (other.finish) {
        phase.finish = [first = std::move(phase.finish), second = other.finish] {
            first();
            second();
        };
    }
}

bool Call::advance(Links& links, int rank) {
    for (; at < phases.size(); ++at) {
        Phase& phase = phases[at];
        std::vector<std::pair<int, bool>> busy;  // peer and direction: transfers of one direction go in order
        for (Transfer& t : phase.transfers) {
            const std::pair direction(t.peer, t.is_send);
            if (t.done() || std::find(busy.begin(), busy.end(), direction) != busy.end()) continue;
            if (!t.in_host_memory && !is_device(t.data, t.head.bytes))
                stop("memory was freed before NCCL accessed it");
            hosted::advance(links, t, rank);
            if (!t.done()) busy.push_back(direction);
        }
        if (!busy.empty()) return false;
        if (phase.finish) phase.finish();
    }
    return true;
}

Call message(bool is_send, void* data, std::size_t bytes, ncclDataType_t type, int peer) {
    return {{{{{.is_send = is_send,
                .peer = peer,
                .data = static_cast<char*>(data),
                .head = {bytes, type, kMessage}}}}}};
}

Call reduce_scatter(const void* whole, void* block, std::size_t count, ncclDataType_t type, int rank,
                    int size) {
    return {{sum_of_blocks(static_cast<const char*>(whole), static_cast<char*>(block),
                           equal_blocks(count, size), kReduceScatter, type, rank)}};
}

Call reduce(const void* values, void* result, std::size_t count, ncclDataType_t type, int root, int rank,
            int size) {
    std::vector<Block> blocks(static_cast<std::size_t>(size), Block{0, 0});
    blocks[static_cast<std::size_t>(root)].end = count;
    return {{sum_of_blocks(static_cast<const char*>(values), static_cast<char*>(result), blocks, kReduce,
                           type, rank)}};
}

Call all_gather(const void* block, void* whole, std::size_t count, ncclDataType_t type, int rank, int size) {
    auto* const target = static_cast<char*>(whole);
    char* const local = target + static_cast<std::size_t>(rank) * count * size_of(type);
    // Its place is written when the stream has come to the call.
    Phase placed{{}, [=] { std::memmove(local, block, count * size_of(type)); }};
    return {{placed, gather_blocks(target, equal_blocks(count, size), kAllGather, type, rank)}};
}

Call all_reduce(const void* values, void* result, std::size_t count, ncclDataType_t type, int rank,
                int size) {
    std::vector<Block> blocks;
    for (std::size_t r = 0, n = static_cast<std::size_t>(size); r < n; ++r)
        blocks.push_back({count * r / n, count * (r + 1) / n});
    auto* const target = static_cast<char*>(result);
    char* const local = target + blocks[static_cast<std::size_t>(rank)].begin * size_of(type);
    return {{sum_of_blocks(static_cast<const char*>(values), local, blocks, kAllReduce, type, rank),
             gather_blocks(target, blocks, kAllReduce, type, rank)}};
}

}  // namespace hosted
