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

void Operation::resume() {
    coroutine_.resume();
    rethrow_error();
}

void Operation::rethrow_error() const {
    if (coroutine_ && coroutine_.promise().error) std::rethrow_exception(coroutine_.promise().error);
}

}  // namespace maestro::collective
