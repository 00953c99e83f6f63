#!/usr/bin/env python3
"""Compares simulated and emulated steps of inputs/emulated_vlm.toml in several layouts under each policy. Prints ratios of step
times, without the first step, and which share of a step follows its last task."""

import argparse
import pathlib

import numpy as np
from runs import ROOT, call, simulate, train

DECK = "inputs/emulated_vlm.toml"
CLUSTER = "inputs/clusters/h100.toml"
SIZES = [  # edge, ranks, layout, layers of the encoder that give a load near 0.9
    ("fanout 4", 20, ["section.vision.layout.dp=4", "section.language.layout.dp=16", "data.global_batch=256"], 22),
    ("fanout 7", 64, ["section.vision.layout.dp=8", "section.language.layout.dp=56", "data.global_batch=896"], 13),
    ("shared", 8, ["section.vision.layout.dp=8", "section.language.layout.dp=2", "section.language.layout.tp=4",
                   "section.language.colocate_with=vision", "data.global_batch=128"], 44),
    ("fan-in 4", 10, ["section.vision.layout.dp=8", "section.language.layout.dp=2", "model.llm.layers=4", "data.global_batch=128"], 88),
]


def samples(path, count, share=1 / 3, seed=1, *options):
    """Makes the sample file if it is missing; `options` go to make_mixed.py. Returns the setting that selects it."""
    if not (ROOT / path).exists():
        call(["/usr/bin/python3", "scripts/data/make_mixed.py", path, "--samples", str(count), "--share", str(share), "--seed", str(seed), *options])
    return f"data.train={path}"


def simulated(values, *options):
    return simulate(DECK, values, "--cluster", CLUSTER, *options)


def emulate(ranks, values, output, scale, steps):
    """Returns per step, in seconds of the cluster, the step time and the time from the start of the first task to the end of the last."""
    rows = train(ranks, DECK, output, [*values, f"train.steps={steps}", f"emulated.time_scale={scale}", f"emulated.cluster={CLUSTER}"])
    tasks = rows["timeline"]
    spans = [(tasks["end_s"][tasks["step"] == s].max() - tasks["start_s"][tasks["step"] == s].min()) / scale for s in rows["steps"]["step"]]
    return rows["steps"]["time_s"] / scale, np.array(spans)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--scale", type=float, default=4, help="seconds of this machine per second of the cluster")
    parser.add_argument("--edge", choices=[edge for edge, *_ in SIZES], help="only this one")
    parser.add_argument("--output", default="runs/bench-emulated")
    options = parser.parse_args()
    pathlib.Path(ROOT / options.output).mkdir(parents=True, exist_ok=True)
    data = samples(f"{options.output}/samples.h5", 1024)
    print(f"{'ranks':>5}  {'edge':10}{'policy':10}{'emulated step s':>16}{'simulated':>11}{'ratio':>8}{'worst step':>12}   {'ratio of tasks alone':>20}   {'after the last task, emulated, simulated':>40}")
    for edge, ranks, layout, layers in SIZES:
        if options.edge not in (None, edge):
            continue
        for policy in ("fifo", "lpt", "wavefront"):
            values = [*layout, data, f"schedule.policy={policy}", f"model.vit.layers={layers}"]
            measured, spans = emulate(ranks, values, f"{options.output}/run", options.scale, options.steps)
            predictions = [simulated(values, "--step", step) for step in range(1, options.steps + 1)]
            step_s, makespans = (np.array([p[key] for p in predictions]) for key in ("step_s", "makespan_s"))
            ratios = (measured / step_s)[1:]
            after = [(1 - tasks[1:].sum() / steps[1:].sum()) for tasks, steps in ((spans, measured), (makespans, step_s))]
            print(f"{ranks:5}  {edge:10}{policy:10}{measured[1:].mean():16.4f}{step_s[1:].mean():11.4f}{measured[1:].sum() / step_s[1:].sum():8.3f}"
                  f"{ratios[np.abs(ratios - 1).argmax()]:12.3f}   {spans[1:].sum() / makespans[1:].sum():20.3f}"
                  f"   {after[0]:32.1%}{after[1]:8.1%}", flush=True)


if __name__ == "__main__":
    main()
