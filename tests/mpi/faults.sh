#!/usr/bin/env bash
# faults.sh PROGRAM HOW CODE SECONDS TEXT: expects that mpirun ends with CODE ("any": not 0) within SECONDS of the program's start, and that
# stderr contains TEXT. The start of MPI itself does not count: it takes long where a machine cannot resolve its host name.
set -u
program=$1 how=$2 code=$3 seconds=$4 text=$5
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
run=(timeout --kill-after=5 60 mpirun --allow-run-as-root --oversubscribe)
export MAESTRO_STARTED=$folder/started
# Seldom mpirun fails at once, before the program starts, where other tests run beside this one: then it is started again.
for try in 1 2 3; do
    if [ "$how" = build ]; then
        cp "$program" "$folder/other" && echo >> "$folder/other"
        "${run[@]}" -n 1 "$program" build : -n 1 "$folder/other" build 2> "$folder/log"
    else
        "${run[@]}" -n 3 "$program" "$how" 2> "$folder/log"
    fi
    result=$?
    [ ! -e "$MAESTRO_STARTED" ] || break
    echo "try $try: the program did not start"
    cat "$folder/log"
done
elapsed=$(($(date +%s) - $(stat -c %Y "$MAESTRO_STARTED")))
echo "$how: exit code $result after $elapsed s"
cat "$folder/log"
if [ "$code" = any ]; then [ "$result" -ne 0 ] || exit 1; else [ "$result" -eq "$code" ] || exit 1; fi
[ "$elapsed" -le "$seconds" ] || exit 1
grep -q -- "$text" "$folder/log" || { echo "not printed: $text"; exit 1; }
! pgrep -f "^$program $how" || { echo "ranks are left"; exit 1; }
