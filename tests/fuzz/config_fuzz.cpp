// Any bytes as the config.json of a model folder: read, or refused with an Error(bad_data), nothing else.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "families/family.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    for (const char* kind : {"language", "vision"}) {
        try {
            for (const auto& [key, value] : maestro::families::read_config(text, "config.json", kind))
                if (key.empty() || value.empty() || value.size() > 100'000) std::abort();
        } catch (const maestro::Error& error) {
            const std::string_view what = error.what();
            if (error.code() != maestro::ExitCode::bad_data || what.size() > 1000) std::abort();
            for (const char c : what)
                if (static_cast<unsigned char>(c) < ' ') std::abort();
        }
    }
    return 0;
}
