#!/usr/bin/env bash
# Builds the program and its tests, and runs them.
#   scripts/test.sh                    every capability once, in about three times what scripts/quickstart.sh takes
#   scripts/test.sh --all              also the tests labelled `nightly`, and a quarter of the mutants (another for each commit)
#   scripts/test.sh --all --mutants    all mutants
# Other arguments go to ctest: `scripts/test.sh -L unit` runs the unit tests alone. The Python tests run in any case.
set -euo pipefail

nightly=OFF
mutant_shares=4
arguments=()
for argument in "$@"; do
    case $argument in
        --all) nightly=ON ;;
        --mutants) mutant_shares=1 ;;
        *) arguments+=("$argument") ;;
    esac
done
if [[ $mutant_shares == 1 && $nightly == OFF ]]; then
    echo "usage: scripts/test.sh [--all [--mutants]] [ARGUMENT OF CTEST ...]" >&2
    exit 64
fi
source "$(dirname "${BASH_SOURCE[0]}")/phases.sh"

phase "packages"
need_packages build test
want_packages slurm "the tests of the Slurm jobs"
want_python_packages build/test/python "tests of conversations and of model folders" tokenizers==0.23.3 jinja2==3.1.6 markupsafe==3.0.4

gpus=()
if cuda=$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p') && read -r major minor <<<"$cuda" &&
    ((major > 12 || (major == 12 && minor >= 4))); then
    gpus=(-DMAESTRO_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90) # one architecture is enough where no GPU runs the kernels
    phase "the headers of cuDNN's front end"
    # The front end is a library of headers; the Python packages that it depends on are not needed.
    want_python_packages build/cudnn/python "cuDNN's attention and its tests" nvidia-cudnn-frontend==1.32.0
fi
phase "build"
build -DMAESTRO_TESTS=ON -DMAESTRO_NIGHTLY=$nightly -DMAESTRO_BENCH=$nightly -DMAESTRO_MUTANT_SHARES=$mutant_shares \
    -DMAESTRO_PCH=ON "${gpus[@]}"

# The tests start MPI about a thousand times, always on one host. Open MPI's `cm` looks for networks that match messages
# in hardware (PSM, OFI), which takes half of a start.
export OMPI_MCA_pml=${OMPI_MCA_pml:-^cm}
# mpirun makes a directory for all runs of the user on this host and removes it when it is empty. One of two that make it
# at the same moment fails ("File exists"), so it is kept.
mkdir -p "${TMPDIR:-/tmp}/ompi.$(uname -n | cut -d. -f1).$(id -u)/kept"

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
