#!/usr/bin/env bash
# From a bare Debian 12 to a trained model: installs missing packages (as root), builds, makes the data, trains
# inputs/vlm_glyphs.toml on 4 ranks, evaluates it and draws plots. When it is run again, training continues where it stopped.
set -euo pipefail

fresh=no
case "$*" in
    "") ;;
    --fresh) fresh=yes ;;
    *)
        echo "usage: scripts/quickstart.sh [--fresh]   (--fresh: move an earlier run aside and train from scratch)" >&2
        exit 64
        ;;
esac
source "$(dirname "${BASH_SOURCE[0]}")/phases.sh"

deck=inputs/vlm_glyphs.toml
run=runs/vlm_glyphs

# maestro RANKS ARGUMENT...: runs the program under mpirun, with a time limit so that a hang cannot block the script.
maestro() {
    local ranks=$1 options=(--oversubscribe --bind-to none) # the ranks bind themselves
    shift
    if ((EUID == 0)); then options+=(--allow-run-as-root); fi
    timeout --kill-after=30 3600 mpirun "${options[@]}" -n "$ranks" build/cpu-release/maestro "$@" </dev/null
}

postproc() {
    PYTHONPATH=postproc python3 -m maestro_postproc "$@"
}

phase "packages"
need_packages build

phase "build"
build -DMAESTRO_TESTS=OFF -DMAESTRO_BENCH=OFF

phase "data"
python3 scripts/data/make_all.py --large # all files that the decks of inputs/ name

phase "train $deck on 4 ranks"
if [[ $fresh == yes && -e $run ]]; then
    aside="$run.abandoned"
    for ((number = 2; ; number++)); do
        [[ -e $aside || -L $aside ]] || break
        aside="$run.abandoned-$number"
    done
    mv "$run" "$aside"
    echo "the earlier run is now $aside"
fi
if [[ -e $run/metrics.h5 ]]; then echo "continuing the run in $run (use --fresh to train from scratch)"; fi
maestro 4 train "$deck" --resume auto

phase "evaluate on held-out pictures"
ranks=$((cores < 4 ? cores : 4))
maestro "$ranks" evaluate "$deck" --checkpoint "$run" | tee "$run/evaluation.txt"
echo "control: the same with the pictures exchanged among the samples"
maestro "$ranks" evaluate "$deck" --checkpoint "$run" --exchange-images | tee "$run/evaluation-exchanged.txt"

phase "plots"
postproc loss "$run" --evaluation "$run/evaluation.txt"
postproc timeline "$run"
postproc waiting "$run" --out "$run/plots/waiting.png"
echo
postproc summary "$run"

phase "done"
PYTHONPATH=postproc python3 - "$run" <<'PYTHON'
import json, pathlib, sys

from maestro_postproc.run import load_run

run = load_run(sys.argv[1])
plain, exchanged = (json.loads((run.path / f"evaluation{which}.txt").read_text().splitlines()[-1]) for which in ("", "-exchanged"))
print(f"loss: {run.steps.loss[-20:].mean():.3f} in training (mean of the last 20 steps), {plain['loss']:.3f} on held-out samples")
print(f"held-out glyphs named exactly: {plain['exact_match']:.1%}; with the pictures exchanged: {exchanged['exact_match']:.1%}")
PYTHON
echo "plots: $run/plots; log: $run/log.txt; numbers: $run/metrics.h5"
