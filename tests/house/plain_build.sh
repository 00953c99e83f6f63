#!/usr/bin/env bash
# plain_build.sh SOURCE FOLDER: the program for CPUs alone compiles from nothing, and starts. Not optimized: the same files are
# elsewhere.
set -euo pipefail
rm -rf "$2"
(cd "$1" && cmake --preset cpu-debug -B "$2" -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DMAESTRO_TESTS=OFF -DMAESTRO_BENCH=OFF -DMAESTRO_CUDA=OFF -DMAESTRO_PCH=ON)
cmake --build "$2" --parallel "$(nproc)" --target maestro
"$2/maestro" --help | grep -q "maestro train"
rm -rf "$2"
