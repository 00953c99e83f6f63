#include "collective/operation.hpp"

#include "collective/process_group.hpp"

namespace maestro::collective {

bool Operation::advance() {
    while (!ended()) {
        if (!awaited().group->test(awaited().request)) return false;
        resume();
    }
    rethrow_error();
    return true;
}

void Operation::wait() {
    while (!ended()) {
        awaited().group->wait(awaited().request);
        resume();
    }
    rethrow_error();
}

std::string Operation::describe() const {
    return ended() ? "" : awaited().group->describe(awaited().request);
}

const AwaitedExchange& Operation::awaited() const {
    const promise_type& promise = coroutine_.promise();
    return promise.nested ? promise.nested->awaited() : promise.awaited;
}

void Operation::resume() {
    promise_type& promise = coroutine_.promise();
    if (promise.nested) {
        promise.nested->resume();
        if (!promise.nested->ended()) return;
        promise.nested = nullptr;
    }
    coroutine_.resume();
}

void Operation::rethrow_error() const {
    if (coroutine_ && coroutine_.promise().error) std::rethrow_exception(coroutine_.promise().error);
}

}  // namespace maestro::collective
