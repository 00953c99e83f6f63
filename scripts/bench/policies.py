#!/usr/bin/env python3
"""Shows that the order of samples does not change what is learned. Trains a glyph deck under every policy, compares loss curves and
held-out quality, and compares, from several checkpoints, the gradient of the same next step under each policy."""

import argparse
import pathlib
import shutil

import h5py
import numpy as np
from runs import ROOT, evaluate, train

DECK = "inputs/vlm_glyphs.toml"
POLICIES = ["wavefront", "fifo", "lpt"]
SECTIONS = ["vision", "language"]
BETA = 0.9  # decay rate of the first moment in the deck


def moments(run, step):
    found = {}
    for section in SECTIONS:
        with h5py.File(ROOT / run / f"checkpoints/step-{step:06d}/{section}.h5") as file:
            group = file["adam_m"]
            group.visititems(lambda name, item, s=section: found.update({f"{s}.{name}": item[...].astype(np.float64)})
                             if isinstance(item, h5py.Dataset) else None)
    return found


def gradients_at(output, step):
    """Returns {policy: gradient of the step after the checkpoint}, computed from the first moment before and after it."""
    before = moments(f"{output}/wavefront", step)
    found = {}
    for policy in POLICIES:
        run = f"{output}/one-step"
        shutil.rmtree(ROOT / run, ignore_errors=True)
        (ROOT / run / "checkpoints").mkdir(parents=True)
        shutil.copytree(ROOT / output / f"wavefront/checkpoints/step-{step:06d}", ROOT / run / f"checkpoints/step-{step:06d}")
        train(4, DECK, run, [f"schedule.policy={policy}", f"train.steps={step + 1}", "checkpoint.every=1", "checkpoint.keep=9"],
              options=["--resume", "auto"], fresh=False)
        after = moments(run, step + 1)
        found[policy] = {name: (after[name] - BETA * before[name]) / (1 - BETA) for name in after}
    return found


def difference(a, b):
    """Returns the norm of the difference of two gradients over the norm of the first."""
    return np.sqrt(sum(np.sum((a[n] - b[n]) ** 2) for n in a) / sum(np.sum(a[n] ** 2) for n in a))


def plot(losses, steps, apart, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for policy, colour, width in zip(POLICIES, ["#0072b2", "#d55e00", "#e6a000"], [3.2, 1.8, 0.8]):
        left.plot(np.arange(1, len(losses[policy]) + 1), losses[policy], color=colour, linewidth=width, label=policy)
    left.set(xlabel="step", ylabel="loss", yscale="log")
    left.legend(frameon=False)
    for policy, colour in zip(POLICIES[1:], ["#d55e00", "#e6a000"]):
        right.plot(steps, [apart[step][policy] for step in steps], marker="o", color=colour, label=f"{policy} and wavefront")
    right.axhline(2.0 ** -24, color="grey", linewidth=1, linestyle=":")
    right.text(steps[0], 2.0 ** -24 * 1.15, "rounding error of one fp32 number", fontsize=8, color="grey")
    right.set(xlabel="step", ylabel="gradient difference / norm", yscale="log", ylim=(1e-8, 1e-4))
    right.legend(frameon=False)
    for axis in (left, right):
        axis.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=440)
    parser.add_argument("--output", default="runs/bench-policies")
    parser.add_argument("--plot", help="PNG file to write")
    options = parser.parse_args()
    every = options.steps // 8
    losses, quality = {}, {}
    for policy in POLICIES:
        run = f"{options.output}/{policy}"
        rows = train(4, DECK, run, [f"schedule.policy={policy}", f"train.steps={options.steps}", f"checkpoint.every={every}", "checkpoint.keep=9"])
        losses[policy] = rows["steps"]["loss"]
        quality[policy] = evaluate(DECK, run)
    print("policy     first loss  loss of 20 steps  held-out loss  named exactly")
    for policy in POLICIES:
        print(f"{policy:9}  {losses[policy][0]:10.6f}  {np.mean(losses[policy][-20:]):16.4f}  {quality[policy]['loss']:13.4f}"
              f"  {100 * quality[policy]['exact_match']:12.1f}%")
    steps = [step for step in range(every, options.steps, every)]
    apart = {}
    print("\nstep   difference from the gradient of wavefront over its norm")
    for step in steps:
        found = gradients_at(options.output, step)
        apart[step] = {policy: difference(found["wavefront"], found[policy]) for policy in POLICIES[1:]}
        print(f"{step:5}  " + "  ".join(f"{policy} {apart[step][policy]:.1e}" for policy in POLICIES[1:]), flush=True)
    if options.plot:
        plot(losses, steps, apart, pathlib.Path(options.plot))


if __name__ == "__main__":
    main()
