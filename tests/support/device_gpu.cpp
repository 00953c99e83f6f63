// A GPU as the device of a test program.
#include "backend/gpus.hpp"
#include "support/device.hpp"

namespace maestro::testing_support {

const bool kOnGpu = true;

std::unique_ptr<backend::Backend> make_device(int, int index) {
    return backend::make_cuda(index % backend::find_gpus().count);
}

}  // namespace maestro::testing_support
