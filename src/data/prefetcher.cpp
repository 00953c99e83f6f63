#include "data/prefetcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/check.hpp"
#include "base/error.hpp"

namespace maestro::data {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(50);  ///< between two looks at the reader's progress
/// The same while messages of the main thread are under way, which advance only then.
constexpr auto kBriefLook = std::chrono::microseconds(200);
constexpr auto kLongWait = std::chrono::seconds(1);  ///< after which the pulse is told what is waited for

}  // namespace

/// Requests on their way through the thread. It is the pulse of the reads, whose beats are counted: the main
/// thread passes them on, because its own pulse sends messages and may not be used by another thread.
struct Prefetcher::Queue final : Pulse {
    struct Waiting {
        std::int64_t ticket = 0;
        std::int64_t bytes = 0;
        Request request;
    };
    struct Ready {
        std::int64_t bytes = 0;
        std::exception_ptr error;
        std::vector<Sample> samples;
    };

    Queue(std::shared_ptr<const Samples> source_, std::int64_t bytes_ahead_)
        : source(std::move(source_)), bytes_ahead(bytes_ahead_) {}

    void beat() noexcept override { ++beats; }
    void run();
    bool knows(std::int64_t ticket) const;
    /// The request to read now, or the end of `waiting`.
    std::deque<Waiting>::iterator next();

    const std::shared_ptr<const Samples> source;
    const std::int64_t bytes_ahead;
    std::atomic<std::uint64_t> beats = 0;
    std::atomic<std::int64_t> sample = -1;  ///< the one that is being read
    std::mutex mutex;                       ///< guards what follows
    std::condition_variable changed;        ///< for the thread: something was queued, taken or wanted
    std::condition_variable arrived;  ///< for the main thread: something is ready, or the thread has ended
    std::deque<Waiting> waiting;
    std::unordered_map<std::int64_t, Ready> ready;
    std::int64_t bytes_ready = 0;
    std::int64_t tickets = 0;
    std::int64_t reading = -1;  ///< ticket that the thread is working on
    std::int64_t wanted = -1;   ///< ticket that take() waits for
    bool stop = false;
    bool ended = false;
};

bool Prefetcher::Queue::knows(std::int64_t ticket) const {
    return ticket == reading || ready.contains(ticket) ||
           std::any_of(waiting.begin(), waiting.end(), [&](const Waiting& w) { return w.ticket == ticket; });
}

std::deque<Prefetcher::Queue::Waiting>::iterator Prefetcher::Queue::next() {
    const auto found =
        std::find_if(waiting.begin(), waiting.end(), [&](const Waiting& w) { return w.ticket == wanted; });
    if (found != waiting.end() || waiting.empty()) return found;
    const bool room = bytes_ready == 0 || bytes_ready + waiting.front().bytes <= bytes_ahead;
    return room ? waiting.begin() : waiting.end();
}

void Prefetcher::Queue::run() {
    std::unique_lock lock(mutex);
    while (true) {
        changed.wait(lock, [&] { return stop || next() != waiting.end(); });
        if (stop) break;
        const auto at = next();
        const Waiting job = std::move(*at);
        waiting.erase(at);
        reading = job.ticket;
        Ready result{.bytes = job.bytes, .error = {}, .samples = {}};
        lock.unlock();
        try {
            result.samples.resize(job.request.samples.size());
            for (std::size_t i = 0; i < result.samples.size(); ++i) {
                sample = job.request.samples[i];
                source->read(sample, result.samples[i], job.request.fields, *this);
                beat();
            }
        } catch (...) {
            result.error = std::current_exception();
        }
        lock.lock();
        reading = -1;
        bytes_ready += result.bytes;
        ready.emplace(job.ticket, std::move(result));
        arrived.notify_all();
    }
    ended = true;
    arrived.notify_all();
}

Prefetcher::Prefetcher(std::shared_ptr<const Samples> samples, Settings settings, Pulse& pulse)
    : queue_(std::make_shared<Queue>(std::move(samples), settings.bytes_ahead)),
      settings_(std::move(settings)),
      pulse_(pulse),
      thread_([queue = queue_] { queue->run(); }) {}

Prefetcher::~Prefetcher() {
    std::unique_lock lock(queue_->mutex);
    queue_->stop = true;
    queue_->changed.notify_all();
    const std::chrono::duration<double> patience(hangs_ ? 0 : settings_.timeout_s);
    const bool ended = queue_->arrived.wait_for(lock, patience, [this] { return queue_->ended; });
    lock.unlock();
    if (ended)
        thread_.join();
    else
        thread_.detach();  // it owns a share of all that it uses
}

std::int64_t Prefetcher::start(Request request) {
    std::int64_t bytes = 0, ticket = 0;
    for (const std::int64_t id : request.samples) bytes += queue_->source->bytes(id, request.fields);
    {
        const std::lock_guard lock(queue_->mutex);
        ticket = queue_->tickets++;
        queue_->waiting.push_back({ticket, bytes, std::move(request)});
    }
    queue_->changed.notify_one();
    return ticket;
}

std::vector<Sample> Prefetcher::take(std::int64_t ticket) {
    Queue& queue = *queue_;
    std::unique_lock lock(queue.mutex);
    MAESTRO_CHECK(queue.knows(ticket), "request {} was not started, or taken before", ticket);
    queue.wanted = ticket;
    queue.changed.notify_one();
    const auto begin = Clock::now();
    auto progress = begin;
    std::uint64_t beats = queue.beats;
    std::int64_t named = -1;  // the sample that the pulse was told of
    bool stopped = false;     // the pulse was told that the reader makes no progress
    const auto arrived = [&] { return queue.ready.contains(ticket); };
    std::chrono::microseconds look{0};
    while (!queue.arrived.wait_for(lock, look, arrived)) {
        lock.unlock();  // the reader goes on meanwhile
        look = settings_.advance && settings_.advance() ? kBriefLook : kLook;
        lock.lock();
        const auto now = Clock::now();
        const auto what = [&] {
            return fmt::format("reading sample {} of {}", queue.sample.load(), queue.source->name());
        };
        if (queue.beats != beats) {
            beats = queue.beats;
            progress = now;
            stopped = false;
            pulse_.beat();
        }
        // Told once more when the reader has stopped, because the last beat may not have been sent on. The
        // ranks that wait for this one would then give up before it does, and their errors name no file.
        const bool stops = !stopped && now - progress > kLongWait;
        if (stops || (now - begin > kLongWait && queue.sample != named)) {
            stopped = stopped || stops;
            named = queue.sample;
            pulse_.doing(what());
        }
        if (now - progress > std::chrono::duration<double>(settings_.timeout_s)) {
            hangs_ = true;
            throw Error(
                ExitCode::peer_lost,
                fmt::format("{}: nothing came for {:.0f} s; check the disk or the network file system",
                            what(), settings_.timeout_s));
        }
    }
    queue.wanted = -1;
    Queue::Ready ready = std::move(queue.ready.extract(ticket).mapped());
    queue.bytes_ready -= ready.bytes;
    lock.unlock();
    queue.changed.notify_one();
    if (ready.error) std::rethrow_exception(ready.error);
    return std::move(ready.samples);
}

}  // namespace maestro::data
