// A stack to run on, and how to change to another. A fiber owns its stack; the one of the thread that runs a
// grid owns none. Fibers may move from thread to thread, never while they run.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

namespace hosted {

class Fiber {
public:
    /// The stack that the caller is on.
    Fiber() = default;
    /// A new stack, on which `work(argument)` begins when it is first switched to. It must not return.
    /// `number` sets fibers apart in the cache.
    Fiber(void (*work)(void*), void* argument, std::size_t number);
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    /// Leaves `from`, which the caller is on, for `to`; returns when something switches to `from`.
    static void switch_to(Fiber& from, Fiber& to);

private:
    static void enter(boost::context::detail::transfer_t arrival);
    void arrive(boost::context::detail::transfer_t arrival);

    boost::context::detail::fcontext_t context_ = nullptr;
    Fiber* next_ = nullptr;  // that this one left for
    void (*work_)(void*) = nullptr;
    void* argument_ = nullptr;
    void* mapping_ = nullptr;
    const void* bottom_ = nullptr;  // of the stack, and its size: the address sanitizer asks
    std::size_t size_ = 0;
    void* fake_stack_ = nullptr;
};

}  // namespace hosted
