#!/usr/bin/env bash
# side_by_side.sh PYTHON FILE...: runs pytest on each file or folder, three at a time in this order, and prints the output of each when it
# has ended.
set -euo pipefail
python=$1
shift
run='output=$("$0" -m pytest -q -x -p no:cacheprovider "$1" 2>&1) && code=0 || code=$?; printf "%s\n%s\n" "$1" "$output"; exit "$code"'
printf '%s\n' "$@" | xargs -P 3 -I{} bash -c "$run" "$python" {}
