#!/usr/bin/env bash
# quickstart_build.sh SOURCE FOLDER: the build that scripts/quickstart.sh makes, from nothing, and that its program starts.
set -euo pipefail
options=$(sed -n 's/^build \(-D.*ON\).*/\1/p' "$1/scripts/quickstart.sh")
[[ $options == *MAESTRO_PCH=ON* ]] || { echo "quickstart.sh builds in another way now: '$options'" >&2; exit 1; }
rm -rf "$2"
# shellcheck disable=SC2086  # several options
(cd "$1" && cmake --preset cpu-release -B "$2" $options)
cmake --build "$2" --parallel "$(nproc)" --target maestro
"$2/maestro" --help | grep -q "maestro train"
rm -rf "$2"
