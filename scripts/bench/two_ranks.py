#!/usr/bin/env python3
"""Compares the choice of `maestro plan` on two ranks with all layouts of two sections there, each of which is trained for some steps.

The machine is calibrated with the deck. Micro-batches and recomputation stay those of the deck. Either each section has a rank, or both
share two, on which each has one degree of two. Prints the median seconds of a step over those of the fastest layout, and what the
planner expects. Layouts within a quarter of the fastest are trained twice more. `--ranks 4` trains the best plans of four ranks
instead, of which two share a core. Names of decks as arguments compare these alone."""

import argparse
import itertools
import json
import pathlib
import subprocess

import numpy as np
from runs import BINARY, ROOT, mpirun, plan, planned_values, settings, train, words_of_layout

DECKS = {  # settings, and sections with experts
    "vlm_glyphs": ([], ()),
    "distill": (["section.teacher.weights=random"], ()),
    "layouts_moe": ([], ("language",)),
}
DEFAULTS = {"layout.dp": 1, "layout.tp": 1, "layout.cp": 1, "layout.cp_kind": "ring", "layout.pp": 1, "layout.chunks": 1, "layout.ep": 1, "layout.etp": 1, "colocate_with": "", "window": 0}
DEGREES = {
    "dp 2": {"layout.dp": 2},
    "tp 2": {"layout.tp": 2},
    "cp 2": {"layout.cp": 2},
    "cp 2 all-to-all": {"layout.cp": 2, "layout.cp_kind": "all-to-all"},
    "pp 2": {"layout.pp": 2},
    "pp 2x2": {"layout.pp": 2, "layout.chunks": 2},
}
OF_EXPERTS = {
    "dp 2 ep 2": {"layout.dp": 2, "layout.ep": 2},
    "tp 2 ep 2": {"layout.tp": 2, "layout.ep": 2},
    "tp 2 etp 2": {"layout.tp": 2, "layout.etp": 2},
    "cp 2 ep 2": {"layout.cp": 2, "layout.ep": 2},
}


def keys(section, values):
    return [f"section.{section}.{key}={value}" for key, value in {**DEFAULTS, **values}.items()]


def layouts_of(sections, experts):
    """Names and settings of all layouts of two sections on two ranks."""
    yield "apart", [value for name in sections for value in keys(name, {})]
    first, second = ({**DEGREES, **(OF_EXPERTS if name in experts else {})} for name in sections)
    for a, b in itertools.product(first, second):
        yield f"{a}; {b}", keys(sections[0], first[a]) + keys(sections[1], {**second[b], "colocate_with": sections[0]})


def predicted(deck, cluster, values):
    """Seconds of a step, or nothing where the deck cannot run so."""
    done = subprocess.run([BINARY, "simulate", deck, "--cluster", cluster, *settings(values)], cwd=ROOT, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])["step_s"] if done.returncode == 0 else None


class Trained:
    """Steps of a deck with some settings."""

    def __init__(self, deck, ranks, output, values):
        self.run = (ranks, deck, output, [*values, "train.steps=14", "checkpoint.every=0"])
        self.steps = []
        self.again()

    def again(self):
        self.steps.append(np.median(train(*self.run)["steps"]["time_s"][4:]))

    def seconds(self):
        return min(self.steps)


def compare(name, ranks, output):
    more, experts = DECKS[name]
    deck, cluster = f"inputs/{name}.toml", f"{output}/{name}.cluster.toml"
    sections = [line.split('"')[1] for line in (ROOT / deck).read_text().split("[[section]]", 1)[1].splitlines() if line.startswith("name = ")]
    mpirun(ranks, "calibrate", "--deck", deck, *settings(more), "--out", cluster)
    fixed = ["train.recompute", *(f"section.{section}.{key}" for section in sections for key in ("micro_batch", "recompute"))]
    chosen = f"{output}/{name}.toml"
    plans = plan(deck, cluster, ranks, chosen, more, fixed, "--top", "5")["plans"]
    print(f"{deck}, {ranks} ranks; chosen: {words_of_layout(plans[0]['layout'])}, {plans[0]['step_s']:.4f} s", flush=True)
    trained = {"chosen": (Trained(chosen, plans[0]["ranks"], f"{output}/run", []), plans[0]["step_s"])}
    if ranks == 2:
        for layout, values in layouts_of(sections, experts):
            if (seconds := predicted(deck, cluster, [*more, *values])) is not None:
                trained[layout] = (Trained(deck, 2, f"{output}/run", [*more, *values]), seconds)
    else:
        for k, other in enumerate(plans[1:], 2):
            run = Trained(deck, other["ranks"], f"{output}/run", [*more, *planned_values(other["layout"])])
            trained[f"plan {k}"] = (run, other["step_s"])
    fastest = min(run.seconds() for run, _ in trained.values())
    for _ in range(2):
        for run, _ in trained.values():
            if run.seconds() < 1.25 * fastest:
                run.again()
    fastest = min(run.seconds() for run, _ in trained.values())
    for layout, (run, seconds) in sorted(trained.items(), key=lambda item: item[1][0].seconds()):
        print(f"  {layout:34} {run.seconds():8.4f} s, {run.seconds() / fastest:6.3f} of the fastest; expected {seconds:8.4f} s, measured over that {run.seconds() / seconds:6.3f}", flush=True)
    print(f"{name}: of {len(trained) - 1} layouts, the choice takes {trained['chosen'][0].seconds() / fastest:.3f} of the fastest", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("decks", nargs="*", choices=[*DECKS, []], help="default: all")
    parser.add_argument("--ranks", type=int, choices=(2, 4), default=2)
    parser.add_argument("--output", default="runs/bench-two-ranks")
    options = parser.parse_args()
    (ROOT / pathlib.Path(options.output)).mkdir(parents=True, exist_ok=True)
    for name in options.decks or DECKS:
        compare(name, options.ranks, options.output)


if __name__ == "__main__":
    main()
