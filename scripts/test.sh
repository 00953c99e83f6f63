#!/usr/bin/env bash
# Builds everything and runs every test. Arguments go to ctest: `scripts/test.sh -LE slow` leaves the long ones out,
# `scripts/test.sh -L unit` runs those of the units only; the Python tests run in any case.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/phases.sh"

phase "packages"
need_packages build test
want_packages slurm "the tests of the Slurm jobs"

phase "build"
build -DMAESTRO_TESTS=ON -DMAESTRO_BENCH=ON

# Both kinds run even if one fails: a report should be whole.
failed=0
phase "tests of the program (ctest)"
ctest --test-dir build/cpu-release -j2 --output-on-failure --no-tests=error "$@" || failed=1

phase "tests of the Python tools (pytest)"
# ctest runs those of tests/system and tests/slurm
folders=$(find scripts tests -name 'test_*.py' -not -path 'tests/system/*' -not -path 'tests/slurm/*' -printf '%h\n' | sort -u)
for folder in $folders; do
    echo "$folder"
    python3 -m pytest -q -p no:cacheprovider "$folder" || failed=1
done

if ((failed)); then
    phase_name="the tests above"
    exit 1
fi
phase "all tests passed"
