// Long work of the main thread says what it does and that it goes on, so that it is not taken for a hang.
#pragma once

#include <string>

namespace maestro {

/// This one tells nobody; comm::Heartbeat tells the watchdog and the other ranks. Called below C libraries,
/// hence noexcept.
class Pulse {
public:
    virtual ~Pulse() = default;
    /// What begins now, with its file: "writing runs/a/checkpoints/step-000004.partial/language.h5".
    virtual void doing(const std::string& what) noexcept { static_cast<void>(what); }
    /// Still at it. Call it about once a MiB: it costs little.
    virtual void beat() noexcept {}
};

}  // namespace maestro
