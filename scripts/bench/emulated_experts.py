#!/usr/bin/env python3
"""Compares simulated and emulated steps of a language model with 30 billion parameters, of which a token uses 3 (the sizes of
Qwen3-30B-A3B: 128 experts, 8 of them for a token), on 64 GPUs with ep 8, beside a vision encoder on 8 GPUs. The 8 ranks that share
experts are those of one replica (tp 4, cp 2), or 8 replicas of one rank each."""

import argparse
import pathlib

import numpy as np
from emulated import CLUSTER, samples
from runs import ROOT, simulate, train

# By name: the layout of the language model, and the samples of a global batch.
LAYOUTS = {
    "replica": ("dp = 8\ntp = 4\ncp = 2\nep = 8", 128),
    "replicas": ("dp = 64\nep = 8", 512),
}


def deck_of(layout, global_batch):
    return f"""
[run]
name = "emulated_experts"
output = "runs/emulated_experts"
device = "emulated"
precision = "bf16"
[emulated]
cluster = "{CLUSTER}"
message_scale = 0.0001
[data]
train = "unset"
global_batch = {global_batch}
sequence_length = 8192
[train]
steps = 8
log_every = 1
recompute = "layer"
[optimizer]
learning_rate = 1e-3
[model.vit]
kind = "vision"
layers = 27
width = 1152
heads = 16
head_dim = 72
mlp = 4304
patch = 14
merge = 2
channels = 1
[model.llm]
kind = "language"
layers = 48
width = 2048
heads = 32
kv_heads = 4
head_dim = 128
vocabulary = 151936
tie_embeddings = false
experts = 128
experts_per_token = 8
expert_mlp = 768
[[section]]
name = "vision"
model = "vit"
micro_batch = 1
window = 16
[section.layout]
dp = 8
[[section]]
name = "language"
model = "llm"
micro_batch = 1
[section.layout]
{layout}
[[edge]]
from = "vision"
to = "language"
tensor = "embeddings"
"""


def compare(name, options):
    layout, global_batch = LAYOUTS[name]
    folder = ROOT / options.output / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "deck.toml").write_text(deck_of(layout, global_batch))
    deck, data = f"{options.output}/{name}/deck.toml", samples(f"{options.output}/samples.h5", 1024)
    print(f"{name}: {', '.join(layout.splitlines())}, {global_batch} samples a step", flush=True)
    for policy in ("fifo", "wavefront"):
        values = [data, f"schedule.policy={policy}"]
        predictions = [simulate(deck, values, "--cluster", CLUSTER, "--step", step) for step in range(1, options.steps + 1)]
        step_s = np.array([p["step_s"] for p in predictions])
        gap = np.mean([p["makespan_s"] / p["lower_bound_s"] - 1 for p in predictions[1:]])
        line = f"  {policy:10} simulated step {step_s[1:].mean():.4f} s, tasks {gap:.1%} above the lower bound"
        if not options.simulate:
            rows = train(72, deck, f"{options.output}/{name}/{policy}", [*values, f"train.steps={options.steps}", f"emulated.time_scale={options.scale}"])
            measured = rows["steps"]["time_s"] / options.scale
            line += f"; emulated {measured[1:].mean():.4f} s, {measured[1:].sum() / step_s[1:].sum():.3f} of it"
        print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", help=f"which of {', '.join(LAYOUTS)}; without, all")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--scale", type=float, default=8, help="seconds of this machine per second of the cluster")
    parser.add_argument("--output", default="runs/bench-emulated-experts")
    parser.add_argument("--simulate", action="store_true", help="simulated steps alone")
    options = parser.parse_args()
    for name in options.layouts or LAYOUTS:
        compare(name, options)


if __name__ == "__main__":
    main()
