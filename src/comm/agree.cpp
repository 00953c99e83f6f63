#include "comm/agree.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"

namespace maestro::comm {

namespace {

// A rank that hangs in `action` is reported by its own watchdog, which knows what it was doing. The watchdog
// fires up to a heartbeat and a margin later than the deadline of the others, so they wait a little longer
// and report only if it stays silent too.
constexpr double kPatienceS = 4;

class Patience {
public:
    explicit Patience(Waiter& waiter) : waiter_(waiter), timeout_s_(waiter.timeout_s()) {
        waiter.set_timeout(timeout_s_ + kPatienceS);
    }
    ~Patience() { waiter_.set_timeout(timeout_s_); }
    Patience(const Patience&) = delete;
    Patience& operator=(const Patience&) = delete;

private:
    Waiter& waiter_;
    double timeout_s_;
};

}  // namespace

void agree(const Communicator& world, const std::function<void()>& action) {
    int code = 0;
    std::string message;
    try {
        action();
    } catch (const Error& error) {
        code = static_cast<int>(error.code());
        message = error.what();
    } catch (const std::exception& error) {
        code = static_cast<int>(ExitCode::broken_invariant);
        message = error.what();
    }
    const Patience patience(world.waiter());
    const std::vector<int> codes = world.allgather(code);
    const auto failed = std::find_if(codes.begin(), codes.end(), [](int c) { return c != 0; });
    if (failed == codes.end()) return;
    const int first = static_cast<int>(failed - codes.begin());
    world.broadcast(message, first);
    throw Error(static_cast<ExitCode>(*failed), message, Scope::all_ranks);
}

}  // namespace maestro::comm
