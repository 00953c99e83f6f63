#include "streams.hpp"

#include <algorithm>
#include <cstdlib>

#include "stop.hpp"

namespace hosted {
namespace {

// One push in kSome runs queued operations, at most kSome of them.
constexpr std::uint64_t kSome = 8;
constexpr std::chrono::microseconds kPause{50};

std::size_t queues_of_a_device() {
    for (const char* name : {"MAESTRO_HOSTED_QUEUES", "CUDA_DEVICE_MAX_CONNECTIONS"})
        if (const char* const text = std::getenv(name)) return std::clamp(std::atoi(text), 1, 32);
    return 8;
}

std::size_t most_operations() {
    const char* const text = std::getenv("MAESTRO_HOSTED_LAUNCHES");
    return text ? static_cast<std::size_t>(std::max(std::atoi(text), 1)) : 1024;
}

bool reached(const std::vector<std::shared_ptr<Mark>>& marks) {
    return std::all_of(marks.begin(), marks.end(), [](const auto& mark) { return mark->reached; });
}

}  // namespace

cudaStream_t Streams::create(int device, bool blocking) {
    streams_.push_back(std::make_unique<CUstream_st>());
    streams_.back()->device = device;
    streams_.back()->blocking = blocking;
    streams_.back()->rank = random_.next();
    std::vector<Queue>& queues = queues_[device];
    if (queues.empty()) queues.resize(queues_of_a_device());
    streams_.back()->queue = created_[device]++ % queues.size();
    return streams_.back().get();
}

bool Streams::alive(cudaStream_t stream) const {
    return std::any_of(streams_.begin(), streams_.end(),
                       [&](const auto& s) { return s.get() == stream && !s->destroyed; });
}

void Streams::destroy(cudaStream_t stream) {
    stream->destroyed = true;
    std::erase_if(streams_, [](const auto& s) { return s->destroyed && s->operations.empty(); });
}

void Streams::push(cudaStream_t stream, Operation operation) {
    if (random_.one_in(kSome)) run_some();
    make_room();
    ++queued_;
    stream->operations.push_back(std::move(operation));
    queues_.at(stream->device)[stream->queue].push_back(stream);
}

void Streams::make_room() {
    static const std::size_t most = most_operations();
    while (queued_ >= most && !running_) {
        running_ = true;
        while (queued_ >= most && step()) continue;
        close();
        running_ = false;
        if (queued_ >= most) lock_.changed.wait_for(lock_.mutex, kPause);
    }
}

std::shared_ptr<Mark> Streams::push_mark(cudaStream_t stream) {
    auto mark = std::make_shared<Mark>();
    const auto reach = [mark] {
        mark->when = std::chrono::steady_clock::now();
        return mark->reached = true;
    };
    push(stream, {reach, "a mark", false});
    return mark;
}

std::vector<std::shared_ptr<Mark>> Streams::push_marks(int device, bool only_blocking) {
    std::vector<std::shared_ptr<Mark>> marks;
    for (const auto& stream : streams_) {
        if (stream->device != device || (only_blocking && !stream->blocking)) continue;
        if (!stream->operations.empty()) marks.push_back(push_mark(stream.get()));
    }
    return marks;
}

bool Streams::idle() const {
    return std::all_of(streams_.begin(), streams_.end(), [](const auto& s) { return s->operations.empty(); });
}

void Streams::run_some() {
    if (running_) return;
    running_ = true;
    shuffle_ranks();
    for (std::uint64_t left = 1 + random_.below(kSome); left != 0 && step(); --left) continue;
    close();
    running_ = false;
}

void Streams::run_until(const std::vector<std::shared_ptr<Mark>>& marks) {
    if (running_) stop("queued work waits for a stream");
    shuffle_ranks();
    while (!reached(marks)) {
        running_ = true;
        while (!reached(marks) && step()) continue;
        close();
        running_ = false;
        // The remaining operations wait for a host function, for another rank or for another host thread.
        // These need the lock.
        if (!reached(marks)) lock_.changed.wait_for(lock_.mutex, kPause);
    }
    std::erase_if(streams_, [](const auto& s) { return s->destroyed && s->operations.empty(); });
}

/// In half of all runs the order of streams is fixed, so that one runs far ahead of the others. In the other
/// half each operation draws a new order.
void Streams::shuffle_ranks() {
    steady_ = random_.one_in(2);
    for (const auto& stream : streams_) stream->rank = random_.next();
}

/// Lets those operations leave the queue that can. Returns whether a wait has ended.
bool Streams::leave(Queue& queue) {
    bool ended = false;
    while (!queue.empty()) {
        std::deque<Operation>& operations = queue.front()->operations;
        Operation& oldest = operations.front();
        if (oldest.left_queue) break;  // it runs, and the next one of its stream has to wait
        if (!oldest.holds_queue) {
            oldest.left_queue = true;
        } else if (oldest.attempt()) {
            operations.pop_front();
            --queued_;
            ended = true;
        } else {
            break;
        }
        queue.pop_front();
    }
    return ended;
}

bool Streams::leave_queues() {
    bool ended = false;
    for (auto& [device, queues] : queues_)
        for (Queue& queue : queues) ended = leave(queue) || ended;
    return ended;
}

/// Runs one operation. Returns false if none can run.
bool Streams::step() {
    if (leave_queues()) return true;
    std::vector<CUstream_st*> waiting;
    for (const auto& stream : streams_) {
        if (!steady_) stream->rank = random_.next();
        if (!stream->operations.empty() && stream->operations.front().left_queue)
            waiting.push_back(stream.get());
    }
    std::sort(waiting.begin(), waiting.end(), [](const auto* a, const auto* b) { return a->rank < b->rank; });
    return std::any_of(waiting.begin(), waiting.end(), [&](CUstream_st* s) { return attempt(*s); });
}

bool Streams::attempt(CUstream_st& stream) {
    const Operation& operation = stream.operations.front();
    if (operation.touches_device) {
        open();
        memory_.set_running(operation.what);
    }
    const bool done = operation.attempt();
    memory_.set_running(nullptr);
    if (done) {
        stream.operations.pop_front();
        --queued_;
    }
    return done;
}

void Streams::open() {
    if (!open_) memory_.open();
    open_ = true;
}

void Streams::close() {
    if (open_) memory_.close();
    open_ = false;
}

}  // namespace hosted
