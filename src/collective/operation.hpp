// A collective operation that has been started and advances in steps while the rank does other work. Its
// algorithm is a coroutine: it begins exchanges, or other operations, and is suspended until they have ended.
#pragma once

#include <coroutine>
#include <cstddef>
#include <exception>
#include <string>
#include <utility>

namespace maestro::collective {

class ProcessGroup;

/// An exchange that an operation waits for, by co_await.
struct AwaitedExchange {
    ProcessGroup* group = nullptr;
    std::size_t request = 0;
};

/// Owns a started operation. The tensors, the scratch memory and the group that it was given must outlive it,
/// and are not used by others until it has ended. All ranks of the group start the same operations in the
/// same order; of a group, one operation is under way at a time.
class Operation {
public:
    struct promise_type;
    /// Within an operation, `co_await other` runs another one to its end and throws its error.
    struct Nested {
        Operation& operation;
        bool await_ready() const noexcept { return operation.ended(); }
        void await_suspend(std::coroutine_handle<promise_type> outer) const noexcept {
            outer.promise().nested = &operation;
        }
        void await_resume() const { operation.rethrow_error(); }
    };
    struct promise_type {
        AwaitedExchange awaited;
        Operation* nested = nullptr;  ///< if not null, what it awaits counts and not `awaited`
        std::exception_ptr error;

        Operation get_return_object() {
            return Operation(std::coroutine_handle<promise_type>::from_promise(*this));
        }
        std::suspend_never initial_suspend() noexcept { return {}; }  // begins its first exchange at once
        std::suspend_always final_suspend() noexcept { return {}; }   // its owner frees it
        void return_void() {}
        void unhandled_exception() { error = std::current_exception(); }
        std::suspend_always await_transform(AwaitedExchange exchange) {
            awaited = exchange;
            return {};
        }
        Nested await_transform(Operation&& operation) { return {operation}; }
    };

    Operation() = default;  ///< has ended
    Operation(Operation&& other) noexcept : coroutine_(std::exchange(other.coroutine_, nullptr)) {}
    Operation& operator=(Operation&& other) noexcept {
        std::swap(coroutine_, other.coroutine_);
        return *this;
    }
    /// Of an operation that has not ended, only while an error ends the program: its messages are abandoned.
    ~Operation() {
        if (coroutine_) coroutine_.destroy();
    }

    bool ended() const { return !coroutine_ || coroutine_.done(); }
    /// The ranks that it waits for, for messages about a long wait; "" if it has ended.
    std::string describe() const;
    /// Does what can be done without waiting for another rank. Returns whether the operation has ended.
    /// Rethrows its error.
    bool advance();
    /// Waits until the operation has ended. Rethrows its error.
    void wait();

private:
    explicit Operation(std::coroutine_handle<promise_type> coroutine) : coroutine_(coroutine) {}
    /// The exchange that it waits for now. Only while it has not ended.
    const AwaitedExchange& awaited() const;
    /// Goes on after that exchange, which has ended, until it waits for the next one.
    void resume();
    void rethrow_error() const;

    std::coroutine_handle<promise_type> coroutine_;
};

}  // namespace maestro::collective
