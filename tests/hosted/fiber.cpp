#include "fiber.hpp"

#include <sys/mman.h>

#include "stop.hpp"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace hosted {
namespace {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr std::size_t kGuard = 4096, kStack = std::size_t{256} << 10;
// Stacks of one size and alignment would map their most used ends to the same few cache sets.
constexpr std::size_t kColourStep = 576, kColours = 4096;

}  // namespace

Fiber::Fiber(void (*work)(void*), void* argument, std::size_t number) : work_(work), argument_(argument) {
    mapping_ = mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED || mprotect(mapping_, kGuard, PROT_NONE) != 0) stop("no memory for a stack");
    bottom_ = static_cast<char*>(mapping_) + kGuard;
    size_ = kStack - number * kColourStep % kColours;
    context_ = make_fcontext(static_cast<char*>(mapping_) + kGuard + size_, size_, enter);
}

Fiber::~Fiber() {
    if (mapping_ != nullptr) munmap(mapping_, kGuard + kStack);
}

void Fiber::switch_to(Fiber& from, Fiber& to) {
    from.next_ = &to;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&from.fake_stack_, to.bottom_, to.size_);
#endif
    from.arrive(jump_fcontext(to.context_, &from));
}

void Fiber::enter(transfer_t arrival) {
    Fiber& self = *static_cast<Fiber*>(arrival.data)->next_;
    self.arrive(arrival);
    self.work_(self.argument_);
    stop("a fiber's work has returned");
}

void Fiber::arrive(transfer_t arrival) {
    Fiber& other = *static_cast<Fiber*>(arrival.data);
    other.context_ = arrival.fctx;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake_stack_, &other.bottom_, &other.size_);
#endif
}

}  // namespace hosted
