#!/usr/bin/env python3
"""Measures how planning and simulation scale: `maestro simulate` for steps of about 920, 9,200 and 92,160 ranks, of 16 samples per
replica of the language section. Prints, for each policy and dispatch, the seconds that the plan takes, those of the whole command
with reading the costs and writing the timeline, its processor seconds, and the peak memory. `MAESTRO` names another program to measure."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import tomllib

from runs import BINARY, ROOT, settings

sys.path.insert(0, str(ROOT / "scripts/data"))
import make_costs

DECK = "inputs/paper_vlm.toml"
GROUPS, FANOUT = 10240, 8  # replicas of the vision section, and language replicas that each of them serves


def write_costs(path, groups):
    deck = tomllib.loads((ROOT / DECK).read_text())
    for section, replicas in zip(deck["section"], (groups, groups * FANOUT), strict=True):
        section["layout"]["dp"] = replicas
    make_costs.write(path, make_costs.draw(deck, per_replica=16, share=1 / 3, load=0.9, sigma=0.6, seed=1))


def measure(command):
    """Returns the output of the command, its seconds, its processor seconds and its peak memory in GB; ends the program if the command
    fails."""
    begin = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)} failed")
    return output, time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=["wavefront", "fifo", "lpt", "one-size"])
    parser.add_argument("--parts", nargs="+", type=int, default=[100, 10, 1], help="sizes, as divisors of the full size")
    parser.add_argument("--costs", help="folder to keep the costs in; files that are there are used again")
    options = parser.parse_args()
    print(f"{'ranks':>7}{'samples':>10}  {'policy':10}{'dispatch':10}{'plan, s':>9}{'in all, s':>10}{'CPU, s':>8}{'GB':>7}{'gap':>9}")
    with tempfile.TemporaryDirectory() as scratch:
        for part in options.parts:
            groups = GROUPS // part
            costs = pathlib.Path(options.costs or scratch) / f"costs_{groups}.csv"
            if not costs.exists():
                write_costs(costs, groups)
            for policy in options.policies:
                for dispatch in ("planned", "ready")[: 1 if policy == "one-size" else 2]:
                    values = [f"section.vision.layout.dp={groups}", f"section.language.layout.dp={groups * FANOUT}",
                              f"schedule.dispatch={dispatch}"]
                    command = [BINARY, "simulate", DECK, "--costs", str(costs), "--policy", policy, "--timeline", f"{scratch}/timeline.csv",
                               *settings(values)]
                    output, seconds, processor, peak = measure(command)
                    result = json.loads(output.splitlines()[-1])
                    print(f"{result['ranks']:7}{result['samples']:10}  {policy:10}{dispatch:10}{result['schedule_ms'] / 1e3:9.2f}{seconds:10.2f}"
                          f"{processor:8.2f}{peak:7.2f}{result['gap']:9.2%}", flush=True)


if __name__ == "__main__":
    main()
