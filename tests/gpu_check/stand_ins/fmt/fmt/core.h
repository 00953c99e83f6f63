// In the place of fmt on machines without it, for the check of a GPU alone: format() with fields {} and
// {:.Nf}, and join().
#pragma once

#include <cstdlib>
#include <ios>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>

namespace fmt {

template <class...>
using format_string = std::string_view;

namespace detail {
/// Writes `text` up to its first field, and leaves what follows that. Returns the digits that the field
/// wants; -1: as many as there are.
inline int up_to_field(std::ostream& out, std::string_view& text) {
    const std::size_t at = text.find('{'), end = text.find('}', at);
    out << text.substr(0, at);
    if (end == std::string_view::npos) {
        text = {};
        return -1;
    }
    const std::string field(text.substr(at + 1, end - at - 1));
    text = text.substr(end + 1);
    return field.rfind(":.", 0) == 0 ? std::atoi(field.c_str() + 2) : -1;
}

template <class T>
void write(std::ostream& out, int digits, const T& value) {
    if (digits < 0) {
        out << value;
        return;
    }
    out.setf(std::ios_base::fixed, std::ios_base::floatfield);
    const std::streamsize before = out.precision(digits);
    out << value;
    out.precision(before);
    out.unsetf(std::ios_base::floatfield);
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
template <class Range>
std::string join(const Range& range, std::string_view between) {
    return join(std::begin(range), std::end(range), between);
}

template <class... Args>
std::string format(std::string_view text, const Args&... args) {
    std::ostringstream out;
    out << std::boolalpha;
    (detail::write(out, detail::up_to_field(out, text), args), ...);
    detail::up_to_field(out, text);
    return out.str();
}

}  // namespace fmt
