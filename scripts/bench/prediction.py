#!/usr/bin/env python3
"""Compares predicted with real steps of inputs/vlm_glyphs.toml on two cores. The machine is calibrated, one run under `wavefront`
measures task times, and then steps under each policy and layout are simulated and run. "Replayed" simulates the tasks of that one run,
step by step, under the other policy."""

import argparse
import pathlib

import numpy as np
from runs import mpirun, simulate, train

DECK = "inputs/vlm_glyphs.toml"
TWO = ["section.language.layout.dp=1"]
LAYOUTS = {
    "2 ranks, wavefront": (2, [*TWO]),
    "2 ranks, fifo": (2, [*TWO, "schedule.policy=fifo"]),
    "2 ranks, lpt": (2, [*TWO, "schedule.policy=lpt"]),
    "2 ranks, two layers more in vision": None,  # another model, corrected by the same run
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--skip", type=int, default=10, help="leave the first N steps out", metavar="N")
    parser.add_argument("--output", default="runs/bench-prediction")
    options = parser.parse_args()
    cluster = f"{options.output}/cluster.toml"
    pathlib.Path(options.output).mkdir(parents=True, exist_ok=True)
    mpirun(2, "calibrate", "--out", cluster)
    print(f"{'layout':36}{'step s, real':>14}{'predicted':>11}{'error':>8}   {'replayed':>9}{'error':>8}   {'from models alone':>18}{'error':>8}")
    base = None
    for name, case in LAYOUTS.items():
        ranks, values = case or (2, [*TWO, "model.glyph-vision.layers=5"])
        run = f"{options.output}/{name.replace(' ', '-').replace(',', '')}"
        rows = train(ranks, DECK, run, [*values, f"train.steps={options.steps}", "checkpoint.every=0"])
        base = base or run
        steps = range(options.skip + 1, options.steps + 1)
        real = np.median(rows["steps"]["time_s"][options.skip:])

        def predicted(*more):
            return np.median([simulate(DECK, values, *more, "--step", step)["step_s"] for step in steps[::5]])

        corrected, alone = predicted("--cluster", cluster, "--measured", base), predicted("--cluster", cluster)
        replayed = predicted("--replay", base) if case else None  # there is no run of the other model to replay
        replay = f"{replayed:9.4f}{replayed / real - 1:8.1%}" if replayed else f"{'-':>9}{'':8}"
        print(f"{name:36}{real:14.4f}{corrected:11.4f}{corrected / real - 1:8.1%}   {replay}   {alone:18.4f}{alone / real - 1:8.1%}", flush=True)


if __name__ == "__main__":
    main()
