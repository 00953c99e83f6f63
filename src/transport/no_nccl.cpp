// What stands for NCCL in a program that was built without it.
#include "base/check.hpp"
#include "transport/choice.hpp"
#include "transport/link.hpp"

namespace maestro::transport {

std::string nccl_version() {
    return {};
}

NcclConnectionBytes nccl_connection_bytes() {
    return {};
}

Links open_nccl_links(const comm::Communicator& edge, const DirectEnd&) {
    MAESTRO_FAIL("{}: NCCL was chosen in a program that was built without it", edge.name());
}

}  // namespace maestro::transport
