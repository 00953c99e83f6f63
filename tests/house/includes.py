"""Checks that each file includes, itself or through our headers, what it uses of the precompiled headers: with these a build does not
notice a missing include. For every header that cmake/library.cmake and tests/CMakeLists.txt list there is a pattern of names here."""

import re
import sys
from pathlib import Path

# {header: (pattern of the names that it declares, other headers that declare them too)}
NAMES = {
    "algorithm": (r"std::(ranges::)?(sort|stable_sort|min|max|minmax|clamp|copy|copy_n|fill|fill_n|find|find_if|any_of|all_of|none_of|count|count_if|"
                  r"transform|reverse|unique|lower_bound|upper_bound|max_element|min_element|equal|remove_if|partition|binary_search|shuffle|rotate|"
                  r"for_each|is_sorted|nth_element)\(", ()),
    "cstdint": (r"std::u?int(8|16|32|64)_t\b", ()),
    "filesystem": (r"std::filesystem\b", ()),
    "functional": (r"std::(function|hash|less|greater|plus|ref|cref)\b", ("map",)),
    "map": (r"std::(multi)?map\b", ()),
    "memory": (r"std::(unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared)\b", ()),
    "span": (r"std::span\b", ()),
    "string": (r"std::(string|to_string)\b", ()),
    "string_view": (r"std::string_view\b", ("string",)),
    "thread": (r"std::(thread|jthread|this_thread)\b", ()),
    "unordered_map": (r"std::unordered_map\b", ()),
    "vector": (r"std::vector\b", ()),
    "random": (r"std::(mt19937|mt19937_64|uniform_\w+_distribution|normal_distribution|minstd_rand)\b", ()),
    "fmt/format.h": (r"\bfmt::\w", ("fmt/core.h", "fmt/chrono.h", "fmt/ranges.h", "fmt/os.h", "spdlog/spdlog.h", "spdlog/fmt/fmt.h")),
    "gtest/gtest.h": (r"\bTEST(_P|_F)?\(", ("gmock/gmock.h",)),
    "gmock/gmock.h": (r"\bEXPECT_THAT\(|testing::(HasSubstr|ElementsAre)\b", ()),
}  # fmt: skip


def precompiled(source):
    """The headers of both lists; the second list contains the first."""
    first = re.search(r"set\(MAESTRO_COMMON_HEADERS ([^)]*)\)", (source / "cmake/library.cmake").read_text())[1]
    second = re.search(r"\$\{MAESTRO_COMMON_HEADERS\} ([^)]*)\)", (source / "tests/CMakeLists.txt").read_text())[1]
    return set(re.findall(r"<([^>]+)>", first + second))


def main(source):
    wrong = [f"{name}: listed here or in CMake's files, not in both" for name in sorted(precompiled(source) ^ set(NAMES))]
    roots = [source / "src", source / "tests"]
    texts = {path: re.sub(r"//.*", "", path.read_text()) for root in roots for path in root.rglob("*") if path.suffix in (".cpp", ".hpp")}
    included = {path: re.findall(r'#include [<"]([^>"]+)[>"]', text) for path, text in texts.items()}

    def reach(path, seen):
        for name in included[path]:
            if name not in seen:
                seen.add(name)
                for place in (path.parent / name, *(root / name for root in roots)):
                    if place in included:
                        reach(place, seen)
                        break
        return seen

    for path, text in sorted(texts.items()):
        reached = reach(path, set())
        for name, (pattern, others) in NAMES.items():
            if not reached & {name, *others} and (use := re.search(pattern, text)):
                wrong.append(f"{path.relative_to(source)}: {use[0].rstrip('(')} without <{name}>")
    print("\n".join(wrong) or f"{len(texts)} files include what they use of {len(NAMES)} headers")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
