#!/usr/bin/env bash
# plain_build.sh begin|end SOURCE FOLDER: the program without CUDA compiles from scratch and starts. Not optimized: other builds compile the
# same files with optimization. `begin` starts the build with low priority beside other tests, `end` waits for it. The build stays in the
# tests' session: where the kernel divides processors among sessions (autogroup), a session of low priority and ranks that wait by yielding
# slow each other down to a standstill.
set -euo pipefail
case $1 in
    begin)
        rm -rf "$3"
        mkdir -p "$3"
        nice -n 19 "$0" make "$2" "$3" >"$3/log" 2>&1 </dev/null &
        echo $! >"$3/process"
        ;;
    make)
        cd "$2"
        cmake --preset cpu-debug -B "$3/build" -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DMAESTRO_TESTS=OFF -DMAESTRO_BENCH=OFF -DMAESTRO_CUDA=OFF -DMAESTRO_PCH=ON
        cmake --build "$3/build" --parallel "$(nproc)" --target maestro
        "$3/build/maestro" --help | grep "maestro train"
        touch "$3/made"
        ;;
    end)
        while kill -0 "$(<"$3/process")" 2>/dev/null; do sleep 0.5; done
        if [[ ! -e $3/made ]]; then
            tail -n 100 "$3/log"
            exit 1
        fi
        rm -rf "$3"
        ;;
esac
