#!/usr/bin/env python3
"""Compares steps per second and losses of this build with those of another, in alternating runs: rate.py OTHER_PROGRAM"""

import argparse
import statistics

import numpy as np
import runs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", help="path of the other maestro")
    parser.add_argument("--deck", default="inputs/vlm_glyphs.toml")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE of the deck; an older build needs data.train in its format")
    parser.add_argument("--output", default="runs/bench-rate")
    options = parser.parse_args()
    this, ratios = runs.BINARY, []
    for _ in range(options.rounds):
        steps = {}
        for program in (options.other, this):
            runs.BINARY = program
            steps[program] = runs.train(options.ranks, options.deck, options.output,
                                        [f"train.steps={options.steps}", "checkpoint.every=100000", *options.set])["steps"]
        ratios.append(np.median(steps[options.other]["time_s"]) / np.median(steps[this]["time_s"]))
        same = np.array_equal(steps[options.other]["loss"], steps[this]["loss"])
        print(f"steps per second over those of the other build: {ratios[-1]:.3f}; losses {'equal bit for bit' if same else 'differ'}", flush=True)
    print(f"median {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
