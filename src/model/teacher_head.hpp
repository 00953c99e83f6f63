// The names of a student's copies of its teachers' output heads, by which checkpoints know them.
#pragma once

#include <string>
#include <string_view>

namespace maestro::model {

namespace detail {
inline constexpr std::string_view kTeacherHead = "teacher_head.";
}

/// The name of the head of a section's teacher number `teacher`: the hidden edges into the section are
/// counted in their order, from 0.
inline std::string teacher_head_name(int teacher) {
    return std::string(detail::kTeacherHead) +
           (teacher == 0 ? "weight" : std::to_string(teacher) + ".weight");
}

/// Whether a parameter of a section is the head of one of its teachers.
inline bool is_teacher_head(std::string_view parameter) {
    return parameter.starts_with(detail::kTeacherHead);
}

}  // namespace maestro::model
