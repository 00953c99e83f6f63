// Pulse: how long work of the main thread reports progress, so that it does not count as a hang.
#pragma once

#include <string>

namespace maestro {

/// This class reports to nobody; comm::Heartbeat reports to the watchdog and to the other ranks. It is called
/// by callbacks of C libraries, and must not throw.
class Pulse {
public:
    virtual ~Pulse() = default;
    /// Names the work that begins: "writing runs/a/checkpoints/step-000004.partial/language.h5".
    virtual void doing(const std::string& what) noexcept { static_cast<void>(what); }
    /// Reports progress. It is cheap: call it about once per MiB.
    virtual void beat() noexcept {}
    /// Whether the work is no longer wanted. Long work looks now and then, and ends with an error.
    virtual bool cancelled() const noexcept { return false; }
};

}  // namespace maestro
