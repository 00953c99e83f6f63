#!/usr/bin/env python3
"""Compares layouts of one language model on 16 emulated GPUs: steps with real ranks that sleep, simulated steps, and a formula of
sizes and rates in this script. Prints ratios of step times, without the first step."""

import argparse
import pathlib
import tomllib

import numpy as np
from emulated import samples
from runs import ROOT, simulate, train

CLUSTER = "inputs/clusters/h100.toml"
LAYERS, WIDTH, HEADS, KEYS, DIM, MLP, WORDS, BYTES = 24, 2048, 16, 4, 128, 5632, 32000, 2
LAYOUTS = {"dp16": (16, 1, 1), "tp8 dp2": (2, 8, 1), "cp4 dp4": (4, 1, 4), "tp2 cp2 dp4": (4, 2, 2)}  # dp, tp, cp
DECK = f"""
[run]
name = "emulated_layouts"
output = "runs/emulated_layouts"
device = "emulated"
precision = "bf16"
[emulated]
cluster = "{CLUSTER}"
[data]
train = "unset"
global_batch = 64
sequence_length = 8192
[train]
steps = 8
log_every = 1
[optimizer]
learning_rate = 1e-3
[model.llm]
kind = "language"
layers = {LAYERS}
width = {WIDTH}
heads = {HEADS}
kv_heads = {KEYS}
head_dim = {DIM}
mlp = {MLP}
vocabulary = {WORDS}
[[section]]
name = "language"
model = "llm"
micro_batch = 1
[section.layout]
dp = 1
"""


class Formula:
    """GEMMs at the rate of their smallest dimension, everything else at the memory bandwidth, messages at the rates of the links."""

    def __init__(self, dp, tp, cp):
        self.cluster = tomllib.loads((ROOT / CLUSTER).read_text())
        self.dp, self.tp, self.cp = dp, tp, cp
        self.sides = [p["side"] for p in self.cluster["product"]]
        self.rates = [p["bf16_flops"] for p in self.cluster["product"]]

    def gemm(self, m, n, k):
        side = min(m, n, k)
        rate = self.rates[0] * side / self.sides[0] if side < self.sides[0] else np.interp(np.log(side), np.log(self.sides), self.rates)
        return 2.0 * m * n * k / rate + self.cluster["device"]["operation_s"]

    def memory(self, elements, operations, width=BYTES):
        device = self.cluster["device"]
        return elements * width / device["memory_bandwidth"] + operations * device["operation_s"]

    def link(self, ranks):
        return self.cluster["node" if ranks <= self.cluster["cluster"]["ranks_per_node"] else "network"]

    def sent(self, elements, times, ranks, width=BYTES):
        link = self.link(ranks)
        return times * (elements * width / link["bandwidth"] + link["latency_s"])

    def task(self, tokens):
        """Returns the seconds of forward and backward of a sample of this many tokens."""
        t, c = self.tp, self.cp
        rows, heads, keys = tokens / c, HEADS / t, max(KEYS / t, 1)
        layer = 0
        for m, n in (((heads + 2 * keys) * DIM, WIDTH), (WIDTH, heads * DIM), (2 * MLP / t, WIDTH), (WIDTH, MLP / t)):
            layer += self.gemm(rows, m, n) + self.gemm(rows, n, m) + self.gemm(m, n, rows)
        pairs = tokens * tokens / 2 / c * heads
        layer += 14 * pairs * DIM / (self.rates[1])  # GEMMs of dimension 128
        # Norms, residuals, rotations and the gated activation, forward and backward.
        layer += self.memory(rows / t * WIDTH * 22 + rows * ((heads + 2 * keys) * DIM * 6 + MLP / t * 8), 18)
        if t > 1:
            layer += self.sent((t - 1) / t * rows * WIDTH, 10, t)  # 6 all-gathers, 4 reduce-scatters
            layer += self.memory((t + 1) / t * rows * WIDTH, 4) + self.memory(2 * rows * WIDTH, 10)  # additions, copies
        if c > 1:
            kv = rows * 2 * keys * DIM
            layer += self.sent(kv, 2 * (c - 1), t * c) + self.sent(kv, c - 1, t * c, 4)
            # Partial results are joined, and gradients added, once per exchange of keys.
            layer += (c - 1) * self.memory(rows * heads * DIM * 6, 4, 4)
        head = sum(self.gemm(min(rows, 256), a, b) for a, b in ((WORDS / t, WIDTH), (WIDTH, WORDS / t))) * rows / min(rows, 256)
        head += self.gemm(WORDS / t, WIDTH, 256) * rows / 256 + self.memory(rows * WORDS / t * 4, 1, 4)
        if t > 1:
            head += self.sent((t - 1) / t * rows * WIDTH, 4, t)
        return LAYERS * layer + head

    def end(self):
        layer = WIDTH * DIM * (HEADS / self.tp * 2 + max(KEYS / self.tp, 1) * 2) + 3 * WIDTH * MLP / self.tp
        weights, holders = LAYERS * layer + WORDS * WIDTH / self.tp, self.dp * self.cp
        link = self.link(16)
        moved = 2 * (holders - 1) / holders * weights * 4 / link["bandwidth"]
        return moved + self.memory(weights * (1 + 7 / holders + 1.5), 30, 4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1, help="seconds of this machine per second of the cluster")
    parser.add_argument("--output", default="runs/bench-emulated-layouts")
    options = parser.parse_args()
    folder = pathlib.Path(ROOT / options.output)
    folder.mkdir(parents=True, exist_ok=True)
    deck = f"{options.output}/deck.toml"
    (ROOT / deck).write_text(DECK)
    data = samples(f"{options.output}/samples.h5", 256, 0, 1, "--tokens", "3000", "--longest", "8000")
    print(f"{'layout':14}{'emulated s':>11}{'simulated':>11}{'ratio':>7}{'worst':>7}{'formula':>9}{'tp GB':>8}{'cp GB':>8}{'dp GB':>8}")
    for name, (dp, tp, cp) in LAYOUTS.items():
        values = [data, *(f"section.language.layout.{k}={v}" for k, v in (("dp", dp), ("tp", tp), ("cp", cp)))]
        rows = train(16, deck, f"{options.output}/run", [*values, f"train.steps={options.steps}", f"emulated.time_scale={options.scale}"])
        measured = rows["steps"]["time_s"] / options.scale
        predictions = [simulate(deck, values, "--cluster", CLUSTER, "--step", step) for step in range(1, options.steps + 1)]
        simulated = np.array([p["step_s"] for p in predictions])
        # The formula assumes samples of mean length, distributed evenly.
        formula, count = Formula(dp, tp, cp), predictions[0]["samples"]
        by_formula = np.array([count / dp * formula.task(p["tokens"] / count) + formula.end() for p in predictions])
        ratios = (measured / simulated)[1:]
        traffic = predictions[1]["sections"]["language"]
        print(f"{name:14}{measured[1:].mean():11.4f}{simulated[1:].mean():11.4f}{measured[1:].sum() / simulated[1:].sum():7.3f}"
              f"{ratios[np.abs(ratios - 1).argmax()]:7.3f}{by_formula[1:].mean():9.4f}"
              + "".join(f"{traffic.get(k, 0) / 1e9:8.2f}" for k in ("tp_bytes", "cp_bytes", "dp_bytes")), flush=True)


if __name__ == "__main__":
    main()
