#!/usr/bin/env bash
# side_by_side.sh PYTHON FILE...: files or folders of tests, two at a time, in this order. What one says comes whole, at its end.
set -euo pipefail
python=$1
shift
run='output=$("$0" -m pytest -q -x -p no:cacheprovider "$1" 2>&1) && code=0 || code=$?; printf "%s\n%s\n" "$1" "$output"; exit "$code"'
printf '%s\n' "$@" | xargs -P 2 -I{} bash -c "$run" "$python" {}
