// The log of gpu_check's programs: what the backend has to say goes to stderr.
#include <cstdio>

#include "base/log.hpp"

namespace maestro::log {

void write(std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}
void write_error(std::string_view line) {
    write(line);
}

}  // namespace maestro::log
