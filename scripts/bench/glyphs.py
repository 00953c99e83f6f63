#!/usr/bin/env python3
"""Measures how many held-out glyphs a trained glyph deck names exactly, with and without exchanged pictures, and its speed."""

import argparse
import time
import tomllib

import numpy as np
from runs import ROOT, evaluate, train


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deck", default="inputs/vlm_glyphs.toml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--output", default="runs/bench-glyphs")
    options = parser.parse_args()
    batch = tomllib.loads((ROOT / options.deck).read_text())["data"]["global_batch"]
    print("seed  named exactly  exchanged  samples/s  training", flush=True)
    for seed in options.seeds:
        start = time.monotonic()
        steps = train(4, options.deck, options.output, [f"run.seed={seed}"])["steps"]
        elapsed_s = time.monotonic() - start
        plain, exchanged = (evaluate(options.deck, options.output, *words)["exact_match"] for words in ((), ("--exchange-images",)))
        rate = batch / np.median(steps["time_s"])
        print(f"{seed:4}  {plain:13.1%}  {exchanged:9.1%}  {rate:9.0f}  {elapsed_s:6.0f} s", flush=True)


if __name__ == "__main__":
    main()
