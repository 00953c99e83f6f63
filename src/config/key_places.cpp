#include "config/key_places.hpp"

#include <fmt/format.h>

namespace maestro::config {

std::string KeyPlaces::message(const std::string& key, const std::string& what) const {
    if (overridden_.contains(key)) return fmt::format("--set {}: {}", key, what);
    if (const auto at = lines_.find(key); at != lines_.end())
        return fmt::format("{}:{}:{}: {}: {}", path_, at->second.first, at->second.second, key, what);
    return fmt::format("{}: {}: {}", path_, key, what);
}

}  // namespace maestro::config
