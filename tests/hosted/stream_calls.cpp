// The CUDA runtime's calls for streams and events. The legacy default stream is rejected: its implicit
// synchronization would hide missing events.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "counts.hpp"
#include "runtime.hpp"

using hosted::call;
using hosted::Runtime;

namespace {

constexpr int kHighest = -5;  ///< priority of a stream

/// Calls body(runtime) if `stream` exists.
template <class Body>
cudaError_t with_stream(cudaStream_t stream, Body&& body) {
    return call(
        [&](Runtime& r) { return r.streams.alive(stream) ? body(r) : cudaErrorInvalidResourceHandle; });
}

template <class Body>
cudaError_t with_event(cudaEvent_t event, Body&& body) {
    return call(
        [&](Runtime& r) { return r.events.contains(event) ? body(r) : cudaErrorInvalidResourceHandle; });
}

}  // namespace

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    return call([&](Runtime& r) {
        if (stream == nullptr || (flags != cudaStreamDefault && flags != cudaStreamNonBlocking))
            return cudaErrorInvalidValue;
        *stream = r.streams.create(hosted::current_device(), flags == cudaStreamDefault);
        (*stream)->priority = std::clamp(priority, kHighest, 0);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return call([&](Runtime&) {
        if (least != nullptr) *least = 0;
        if (greatest != nullptr) *greatest = kHighest;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    return with_stream(stream, [&](Runtime&) {
        if (priority == nullptr) return cudaErrorInvalidValue;
        *priority = stream->priority;
        return cudaSuccess;
    });
}

/// Queued work still runs.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return with_stream(stream, [&](Runtime& r) {
        r.streams.destroy(stream);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return with_stream(stream, [&](Runtime& r) {
        hosted::count("cudaStreamSynchronize");
        r.streams.run_until({r.streams.push_mark(stream)});
        return cudaSuccess;
    });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return with_stream(stream, [&](Runtime& r) {
        if (r.random.one_in(2)) r.streams.run_some();
        return r.streams.idle(stream) ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaDeviceSynchronize() {
    return call([&](Runtime& r) {
        hosted::count("cudaDeviceSynchronize");
        r.streams.run_until(r.streams.push_marks(hosted::current_device(), false));
        return cudaSuccess;
    });
}

/// Waits for the event's last recording before this call, even if it is recorded again later.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    return with_stream(stream, [&](Runtime& r) {
        if (!r.events.contains(event)) return cudaErrorInvalidResourceHandle;
        if (flags != cudaEventWaitDefault) return cudaErrorInvalidValue;
        if (event->mark == nullptr) return cudaSuccess;
        hosted::count("cudaStreamWaitEvent");
        r.streams.push(stream,
                       {[mark = event->mark] { return mark->reached; }, "a wait for an event", false, true});
        return cudaSuccess;
    });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    return with_stream(stream, [&](Runtime& r) {
        if (function == nullptr) return cudaErrorInvalidValue;
        const auto attempt = [&r, function, data, mark = std::shared_ptr<hosted::Mark>()]() mutable {
            if (mark == nullptr) mark = r.host_thread.post([function, data] { function(data); });
            return mark->reached;
        };
        r.streams.push(stream, {attempt, "a host function", false});
        r.host_thread.keep_going();
        return cudaSuccess;
    });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    return call([&](Runtime& r) {
        constexpr unsigned kKnown = cudaEventBlockingSync | cudaEventDisableTiming;
        if (event == nullptr || (flags & ~kKnown) != 0) return cudaErrorInvalidValue;
        auto made = std::make_unique<CUevent_st>();
        made->device = hosted::current_device();
        made->timed = (flags & cudaEventDisableTiming) == 0;
        *event = made.get();
        r.events.emplace(*event, std::move(made));
        return cudaSuccess;
    });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return with_event(event, [&](Runtime& r) {
        r.events.erase(event);
        return cudaSuccess;
    });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return with_event(event, [&](Runtime& r) {
        if (!r.streams.alive(stream) || stream->device != event->device)
            return cudaErrorInvalidResourceHandle;
        hosted::count("cudaEventRecord");
        event->mark = r.streams.push_mark(stream);
        return cudaSuccess;
    });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return with_event(event, [&](Runtime& r) {
        if (r.random.one_in(2)) r.streams.run_some();
        if (event->mark == nullptr) return cudaSuccess;
        if (!event->mark->reached) return cudaErrorNotReady;
        if (!std::exchange(event->mark->seen, true)) hosted::count("an event that the host polls");
        return cudaSuccess;
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return with_event(event, [&](Runtime& r) {
        hosted::count("cudaEventSynchronize");
        if (event->mark != nullptr) r.streams.run_until({event->mark});
        return cudaSuccess;
    });
}

/// The time between the execution of both marks; at least 0.5 us, as events on a GPU are never simultaneous.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    return with_event(start, [&](Runtime& r) {
        if (milliseconds == nullptr) return cudaErrorInvalidValue;
        if (!r.events.contains(end) || !start->timed || !end->timed || start->mark == nullptr ||
            end->mark == nullptr)
            return cudaErrorInvalidResourceHandle;
        if (!start->mark->reached || !end->mark->reached) return cudaErrorNotReady;
        const std::chrono::duration<float, std::milli> passed = end->mark->when - start->mark->when;
        *milliseconds = std::max(passed.count(), 0.0005f);
        return cudaSuccess;
    });
}
