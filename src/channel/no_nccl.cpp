// The transport by NCCL, in a program that was built without it.
#include "base/check.hpp"
#include "channel/transport.hpp"

namespace maestro::channel {

std::unique_ptr<Transport> make_nccl_transport(comm::Communicator edge, NcclEnd) {
    MAESTRO_CHECK(false, "{}: NCCL was chosen where there is none", edge.name());
}

}  // namespace maestro::channel
