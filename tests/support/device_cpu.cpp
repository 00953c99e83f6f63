// The CPU as the device of a test program.
#include "support/device.hpp"

namespace maestro::testing_support {

const bool kOnGpu = false;

std::unique_ptr<backend::Backend> make_device(int threads, int) {
    return backend::make_cpu(threads);
}

}  // namespace maestro::testing_support
