// Stacks for the threads of a simulated block, and switches between them. A fiber owns its stack, except for
// the fiber that represents the calling thread's stack. A suspended fiber may be resumed by another host
// thread.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

namespace hosted {

class Fiber {
public:
    /// Represents the stack that the caller runs on.
    Fiber() = default;
    /// A new stack. The first switch to it calls work(argument), which must not return. `number` places the
    /// stacks in different cache sets.
    Fiber(void (*work)(void*), void* argument, std::size_t number);
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    /// Switches from `from`, on which the caller runs, to `to`. Returns when something switches back to
    /// `from`.
    static void switch_to(Fiber& from, Fiber& to);

private:
    static void enter(boost::context::detail::transfer_t arrival);
    void arrive(boost::context::detail::transfer_t arrival);

    boost::context::detail::fcontext_t context_ = nullptr;
    Fiber* next_ = nullptr;  // the fiber that this one switched to
    void (*work_)(void*) = nullptr;
    void* argument_ = nullptr;
    void* mapping_ = nullptr;
    const void* bottom_ = nullptr;  // of the stack; the address sanitizer needs it and the size
    std::size_t size_ = 0;
    void* fake_stack_ = nullptr;
};

}  // namespace hosted
