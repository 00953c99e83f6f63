#include "collective/operation.hpp"

#include "collective/process_group.hpp"

namespace maestro::collective {

bool Operation::advance() {
    while (!ended()) {
        const AwaitedExchange awaited = coroutine_.promise().awaited;
        if (!awaited.group->test(awaited.request)) return false;
        coroutine_.resume();
    }
    rethrow_error();
    return true;
}

void Operation::wait() {
    while (!ended()) {
        const AwaitedExchange awaited = coroutine_.promise().awaited;
        awaited.group->wait(awaited.request);
        coroutine_.resume();
    }
    rethrow_error();
}

void Operation::rethrow_error() const {
    if (coroutine_ && coroutine_.promise().error) std::rethrow_exception(coroutine_.promise().error);
}

}  // namespace maestro::collective
