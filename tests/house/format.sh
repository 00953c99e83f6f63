#!/usr/bin/env bash
# format.sh SOURCE: checks that every C++ file, new ones that git does not track yet included, is formatted by .clang-format. Versions of
# clang-format differ in what they make of it; ours is that of Debian 12.
set -euo pipefail
cd "$1"
for tool in clang-format-14 clang-format none; do
    if [[ $tool == none ]]; then
        echo "skipped: there is no clang-format 14 (Debian: apt-get install clang-format-14)"
        exit 77
    fi
    [[ $("$tool" --version 2>/dev/null) == *"version 14."* ]] && break
done
if ! files=$(git -c safe.directory='*' ls-files --cached --others --exclude-standard -- '*.cpp' '*.hpp' '*.cu' '*.cuh'); then
    echo "skipped: $1 is no checkout of git"
    exit 77
fi
[[ -n $files ]]
mapfile -t files <<<"$files"
if ! "$tool" --dry-run --Werror "${files[@]}"; then
    echo "to correct it: $tool -i FILE ..."
    exit 1
fi
echo "${#files[@]} files are as $tool makes them"
