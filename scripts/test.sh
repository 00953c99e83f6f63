#!/usr/bin/env bash
# Builds everything and runs every test. Arguments go to ctest: `scripts/test.sh -LE slow` leaves the long ones out,
# `scripts/test.sh -L unit` runs those of the units only; the Python tests run in any case.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/phases.sh"

phase "packages"
need_packages build test
want_packages slurm "the tests of the Slurm jobs"

gpus=()
if cuda=$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p') && read -r major minor <<<"$cuda" &&
    ((major > 12 || (major == 12 && minor >= 4))); then
    gpus=(-DMAESTRO_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90) # one architecture: no GPU is needed, and a release builds all
    phase "the headers of cuDNN's front end"
    want_python_packages build/cudnn/python "cuDNN's attention and its tests" nvidia-cudnn-frontend==1.32.0 # headers alone: what it depends on is for its Python
fi
phase "build"
build -DMAESTRO_TESTS=ON -DMAESTRO_BENCH=ON -DMAESTRO_PCH=ON "${gpus[@]}"

# Tests start MPI about a thousand times, on one host: not each time is it to look for networks that match messages (Open
# MPI's `cm`: PSM, OFI), which is half of a start.
export OMPI_MCA_pml=${OMPI_MCA_pml:-^cm}

# Both kinds run even if one fails: a report should be whole.
failed=0
phase "tests of the program (ctest)"
ctest --test-dir build/cpu-release -j2 --output-on-failure --no-tests=error "$@" || failed=1

phase "tests of the Python tools (pytest)"
# ctest runs those of tests/system, tests/slurm, tests/cuda and tests/gpu_check
folders=$(find scripts tests -name 'test_*.py' -not -path 'tests/system/*' -not -path 'tests/slurm/*' -not -path 'tests/cuda/*' -not -path 'tests/gpu_check/*' -printf '%h\n' | sort -u)
# shellcheck disable=SC2086
tests/support/side_by_side.sh python3 $folders || failed=1

if ((failed)); then
    phase_name="the tests above"
    exit 1
fi
phase "all tests passed"
