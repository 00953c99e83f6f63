#!/usr/bin/env bash
# keep_ptxas.sh COMPILER ARGUMENT... -o OBJECT ...: compiles, writes what ptxas reports of the kernels to OBJECT.ptxas, and all other
# messages to stderr.
set -uo pipefail
object=
for ((i = 1; i < $#; ++i)); do
    next=$((i + 1))
    [[ ${!i} == -o ]] && object=${!next}
done
messages=$object.ptxas
"$@" 2>"$messages"
status=$?
grep -Ev '^ptxas info|^ +[0-9]+ bytes stack frame' "$messages" >&2
exit $status
