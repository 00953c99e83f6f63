// In the place of fmt on machines without it, for the check of a GPU alone: format() with plain {} fields,
// and join().
#pragma once

#include <sstream>
#include <string>
#include <string_view>

namespace fmt {

namespace detail {
/// Writes `text` up to its first field, and leaves what follows that.
inline void up_to_field(std::ostream& out, std::string_view& text) {
    const std::size_t at = text.find("{}");
    out << text.substr(0, at);
    text = at == std::string_view::npos ? std::string_view{} : text.substr(at + 2);
}
}  // namespace detail

/// [begin, end) with `between` between them, as an argument of format().
template <class It>
std::string join(It begin, It end, std::string_view between) {
    std::ostringstream out;
    for (It at = begin; at != end; ++at) {
        if (at != begin) out << between;
        out << *at;
    }
    return out.str();
}

template <class... Args>
std::string format(std::string_view text, const Args&... args) {
    std::ostringstream out;
    out << std::boolalpha;
    ((detail::up_to_field(out, text), out << args), ...);
    detail::up_to_field(out, text);
    return out.str();
}

}  // namespace fmt
