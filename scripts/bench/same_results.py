#!/usr/bin/env python3
"""Checks that another build of the program computes the same: same_results.py OTHER_PROGRAM

Runs every deck of inputs/ with both programs, several of them also in other layouts, types and policies. Compares losses and gradient
norms bit for bit, the plans (which samples form which micro-batches, and the order of every rank's tasks) and the results of `maestro
simulate`. The exit code is 1 if anything differs."""

import argparse
import pathlib
import shutil
import sys
import tempfile

import h5py
import numpy as np
import runs

LAYOUTS = {
    "tp 2, language tp 2 cp 2": (6, ["section.vision.layout.tp=2", "section.language.layout.cp=2"]),
    "vision cp 3, language tp 3": (6, ["section.vision.layout.cp=3", "section.language.layout.tp=3"]),
    "all-to-all, dp 2": (5, ["section.language.layout.tp=1", "section.language.layout.cp=2", "section.language.layout.cp_kind=all-to-all",
                             "section.language.layout.dp=2"]),
    "colocated": (2, ["section.vision.layout.tp=2", "section.vision.colocate_with=language"]),
    "recompute, lpt": (3, ["train.recompute=layer", "schedule.policy=lpt"]),
    "bf16, fifo": (3, ["run.precision=bf16", "schedule.policy=fifo"]),
}  # fmt: skip


def cases(steps):
    """Yields (name, ranks, deck, settings) of each case."""
    few = [f"train.steps={steps}"]
    yield "vlm_glyphs", 4, "inputs/vlm_glyphs.toml", few
    yield "vlm_glyphs, bf16", 4, "inputs/vlm_glyphs.toml", [*few, "run.precision=bf16"]
    yield "vlm_glyphs, moves", 4, "inputs/vlm_glyphs.toml", [*few, "schedule.moves=200"]
    yield "glyphs_large", 4, "inputs/glyphs_large.toml", few
    yield "teacher", 2, "inputs/teacher.toml", few
    yield "distill", 3, "inputs/distill.toml", [*few, "section.teacher.weights=random"]
    yield "emulated_vlm", 20, "inputs/emulated_vlm.toml", ["train.steps=2"]
    for name, (ranks, settings) in LAYOUTS.items():
        yield f"layouts, {name}", ranks, "inputs/layouts.toml", [*few, *settings]


def results(program, ranks, deck, settings, output):
    """Returns losses and gradient norms of the steps, the samples of every micro-batch, and the tasks of every rank in order."""
    runs.BINARY = program
    runs.train(ranks, deck, output, ["checkpoint.every=0", *settings])
    with h5py.File(output / "metrics.h5") as file:
        steps = {name: file["steps"][name][:] for name in ("loss", "grad_norm", "tokens", "learning_rate")}
        plan = np.array([file["assignment"][name][:] for name in ("step", "section", "replica", "micro_batch", "sample")]).T
        tasks = file["timeline"]
        start = np.lexsort((tasks["start_s"][:], tasks["rank"][:], tasks["step"][:]))
        order = np.array([tasks[name][:][start] for name in ("step", "rank", "section", "replica", "stage", "micro_batch", "phase")])
    return {**steps, "plan": plan, "order": order}


def simulations(program, folder):
    runs.BINARY = program
    found = {}
    costs = folder / "costs.csv"
    runs.call([sys.executable, "scripts/data/make_costs.py", "inputs/paper_vlm.toml", str(costs)])
    for policy in ("wavefront", "fifo", "lpt", "one-size"):
        for name, deck, options in (
            ("paper_vlm", "inputs/paper_vlm.toml", ["--costs", costs]),
            ("vlm_glyphs", "inputs/vlm_glyphs.toml", ["--cluster", "inputs/clusters/h100.toml"]),
            ("emulated_vlm", "inputs/emulated_vlm.toml", ["--cluster", "inputs/clusters/h200.toml"]),
        ):
            timeline = folder / "timeline.csv"
            report = runs.simulate(deck, [], *options, "--policy", policy, "--timeline", timeline)
            report.pop("schedule_ms", None)
            found[f"simulate {name}, {policy}"] = (report, timeline.read_text())
    return found


def common(old, new):
    """Returns both without the keys that only one of them has, because builds may use different names."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return old, new
    pairs = {key: common(old[key], new[key]) for key in old.keys() & new.keys()}
    return {key: pair[0] for key, pair in pairs.items()}, {key: pair[1] for key, pair in pairs.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", help="path of the other maestro")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only", default="", help="run only cases whose names contain this")
    options = parser.parse_args()
    this, differ = runs.BINARY, 0
    folder = pathlib.Path(tempfile.mkdtemp(prefix="same-results-"))
    for name, ranks, deck, settings in cases(options.steps):
        if options.only not in name:
            continue
        old, new = (results(program, ranks, deck, settings, folder / which) for program, which in ((options.other, "other"), (this, "this")))
        wrong = [what for what in old if not np.array_equal(old[what], new[what])]
        loss = f"loss {old['loss'][0]:.6f} to {old['loss'][-1]:.6f} in {len(old['loss'])} steps"
        print(f"{name:40} {loss}: {'equal' if not wrong else 'DIFFER: ' + ', '.join(wrong)}", flush=True)
        differ += len(wrong)
    if options.only in "simulate":
        old, new = simulations(options.other, folder), simulations(this, folder)
        for name, (report, timeline) in old.items():
            left, right = common(report, new[name][0])
            same = left == right and timeline == new[name][1]
            print(f"{name:40} makespan {report['makespan_s']:.6g} s: {'equal' if same else f'DIFFER: {left} {right}'}", flush=True)
            differ += not same
    shutil.rmtree(folder)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
