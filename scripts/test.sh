#!/usr/bin/env bash
# Builds the program and its tests, and runs them.
#   scripts/test.sh                   every capability on CPUs once, in at most 15 minutes on two cores, or 2.5 times what
#                                     scripts/quickstart.sh takes, if that is more
#   scripts/test.sh --share [K]       also the CUDA backend, and a fifth of the tests labelled `nightly` and of the mutants: share K,
#                                     from 1 to 5, or the one that the checked-out commit chooses
#   scripts/test.sh --all             also all nightly tests, and a fifth of the mutants
#   scripts/test.sh --all --mutants   also all mutants
# Other arguments go to ctest: `scripts/test.sh -L unit` runs the unit tests alone. The Python tests run in any case.
set -euo pipefail

usage() {
    echo "usage: scripts/test.sh [--share [1-5] | --all [--mutants]] [ARGUMENT OF CTEST ...]" >&2
    exit 64
}

shares=5
kind=quick
share=""
mutants=share
arguments=()
while (($#)); do
    case $1 in
        --all) kind=all ;;
        --share)
            kind=share
            if [[ ${2:-} =~ ^[0-9] ]]; then
                share=$2
                shift
            fi
            ;;
        --mutants) mutants=all ;;
        --[a-z]*)
            # ctest ignores words that it does not know.
            if ! ctest --help | grep -qwe "${1%%=*}"; then usage; fi
            arguments+=("$1")
            ;;
        *) arguments+=("$1") ;;
    esac
    shift
done
if [[ $mutants == all && $kind != all || ! $share =~ ^[1-5]?$ ]]; then usage; fi
if [[ $kind == share && " ${arguments[*]}" == *" -E"* ]]; then usage; fi # --share excludes tests by this option
nightly=$([[ $kind == quick ]] && echo OFF || echo ON)
source "$(dirname "${BASH_SOURCE[0]}")/phases.sh"

phase "packages"
need_packages build test
want_packages slurm "the tests of the Slurm jobs"
want_python_packages build/test/python "tests of conversations and of model folders" tokenizers==0.23.3 jinja2==3.1.6 markupsafe==3.0.4

gpus=(-DMAESTRO_CUDA=OFF)
if [[ $kind != quick ]] && cuda=$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p') && read -r major minor <<<"$cuda" &&
    ((major > 12 || (major == 12 && minor >= 4))); then
    gpus=(-DMAESTRO_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90) # one architecture is enough where no GPU runs the kernels
    phase "the headers of cuDNN's front end"
    # The front end is a library of headers; the Python packages that it depends on are not needed.
    want_python_packages build/cudnn/python "cuDNN's attention and its tests" nvidia-cudnn-frontend==1.32.0
fi
phase "build"
build -DMAESTRO_TESTS=ON -DMAESTRO_NIGHTLY=$nightly -DMAESTRO_BENCH=$nightly "${gpus[@]}"

# The tests start MPI about a thousand times, always on one host. Open MPI's `cm` looks for networks that match messages
# in hardware (PSM, OFI), which takes half of a start.
export OMPI_MCA_pml=${OMPI_MCA_pml:-^cm}
# mpirun makes a directory for all runs of the user on this host and removes it when it is empty. One of two that make it
# at the same moment fails ("File exists"), so it is kept.
mkdir -p "${TMPDIR:-/tmp}/ompi.$(uname -n | cut -d. -f1).$(id -u)/kept"

# The share of this commit, which tests of pytest and of mutants find in the environment.
if [[ -z $share ]]; then share=$((16#$(git rev-parse --short=7 HEAD 2>/dev/null || echo 0) % shares + 1)); fi
if [[ $kind != quick && $mutants == share ]]; then export MAESTRO_MUTANT_SHARE=$share/$shares; fi
if [[ $kind == share ]]; then
    export MAESTRO_NIGHTLY_SHARE=$share/$shares
    left_out=$(tests/support/other_shares.py build/cpu-release "$share" "$shares")
    arguments+=(-E "^(${left_out//$'\n'/|})\$")
    echo "share $share of $shares of the nightly tests"
fi

# If one kind fails, the other still runs: the report should be complete.
failed=0
phase "tests of the program (ctest)"
jobs=$((cores > 4 ? cores / 2 : 2)) # most tests have several ranks or threads
ctest --test-dir build/cpu-release -j$jobs --output-on-failure --no-tests=error "${arguments[@]}" || failed=1

phase "tests of the Python tools (pytest)"
# ctest runs the others, which need the built program.
tests/support/side_by_side.sh python3 scripts/cuda/tests scripts/data/tests tests/postproc || failed=1

if ((failed)); then
    phase_name="the tests above"
    exit 1
fi
phase "all tests passed"
