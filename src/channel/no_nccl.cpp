// The links of NCCL, in a program that was built without it.
#include "base/check.hpp"
#include "channel/link.hpp"

namespace maestro::channel {

Links open_nccl_links(const comm::Communicator& edge, const DirectEnd&) {
    MAESTRO_FAIL("{}: NCCL was chosen where there is none", edge.name());
}

}  // namespace maestro::channel
