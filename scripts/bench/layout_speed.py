#!/usr/bin/env python3
"""Compares steps of a language model of width 512 on two cores with tp 2, cp 2 and dp 2 with one rank with one thread, and with the
prediction of the calibrated machine. Ratios are within one round. Messages between CPU ranks do not overlap with computation."""

import argparse
import pathlib
import statistics

import numpy as np
from runs import ROOT, mpirun, simulate, train

DECK = "inputs/teacher.toml"
MODEL = "model.text-teacher."
COMMON = [*(f"{MODEL}{k}={v}" for k, v in (("width", 512), ("layers", 4), ("heads", 8), ("kv_heads", 8), ("head_dim", 64), ("mlp", 1536))),
          "checkpoint.every=0", "data.global_batch=16", "section.teacher.micro_batch=8"]
LAYOUTS = {"tp 2": ["tp=2"], "cp 2, ring": ["cp=2"], "cp 2, all-to-all": ["cp=2", "cp_kind=all-to-all"], "dp 2": ["dp=2"]}


def values_of(layout):
    return [*COMMON, "section.teacher.layout.dp=1", *(f"section.teacher.layout.{v}" for v in layout)]


def step(ranks, layout, options, before=()):
    rows = train(ranks, DECK, options.output, [*values_of(layout), f"train.steps={options.steps}"], before=before)
    return float(np.median(rows["steps"]["time_s"][1:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", default="runs/bench-layout-speed")
    options = parser.parse_args()
    cluster = f"{options.output}-cluster.toml"
    pathlib.Path(ROOT / cluster).parent.mkdir(parents=True, exist_ok=True)
    mpirun(2, "calibrate", "--out", cluster)
    predict = lambda layout: simulate(DECK, values_of(layout), "--cluster", cluster, "--step", 2)["step_s"]  # noqa: E731
    ratios = {name: [] for name in LAYOUTS}
    for _ in range(options.rounds):
        one = step(1, [], options, before=("taskset", "-c", "0"))
        for name, layout in LAYOUTS.items():
            ratios[name].append(step(2, layout, options) / one)
    alone = predict([])
    print(f"one rank: {one:.3f} s, predicted {alone:.3f}\n{'layout':20}{'over one rank':>14}{'lowest':>8}{'highest':>8}{'predicted':>11}")
    for name, layout in LAYOUTS.items():
        r = ratios[name]
        print(f"{name:20}{statistics.median(r):14.3f}{min(r):8.3f}{max(r):8.3f}{predict(layout) / alone:11.3f}")


if __name__ == "__main__":
    main()
