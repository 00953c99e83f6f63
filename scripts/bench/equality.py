#!/usr/bin/env python3
"""Compares losses and gradients of layouts, policies and a resumed run in fp32.

The reference is one rank with both sections colocated. Prints the largest relative difference of losses over the steps and, for the
gradients of step 1 (from Adam's first moment), the largest difference of a parameter over the norm of its gradient.
"""

import argparse

import h5py
import numpy as np
from runs import ROOT, train

DECK = "inputs/vlm_glyphs.toml"
ONE_RANK = ["section.language.colocate_with=vision", "section.language.layout.dp=1"]
TWO_RANKS = ["section.language.layout.dp=1"]
CASES = {
    "1 rank, colocated": (1, ONE_RANK),
    "2 ranks": (2, TWO_RANKS),
    "4 ranks": (4, []),
    "4 ranks, lpt": (4, ["schedule.policy=lpt"]),
    "4 ranks, fifo": (4, ["schedule.policy=fifo"]),
    "4 ranks, ready": (4, ["schedule.dispatch=ready"]),
}


def first_gradients(run):
    found = {}
    for section in ("vision", "language"):
        with h5py.File(ROOT / run / f"checkpoints/step-000001/{section}.h5") as file:

            def visit(name, item, section=section):
                if isinstance(item, h5py.Dataset):
                    found[f"{section}.{name}"] = item[...].astype(np.float64)

            file["adam_m"].visititems(visit)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--output", default="runs/bench-equality")
    options = parser.parse_args()
    print(f"{'':20}  losses of {options.steps} steps  gradients of step 1")
    reference = None
    for name, (ranks, values) in CASES.items():
        losses = train(ranks, DECK, f"{options.output}/long", [*values, f"train.steps={options.steps}", "checkpoint.every=0"])["steps"]["loss"]
        train(ranks, DECK, f"{options.output}/first", [*values, "train.steps=1", "checkpoint.every=1"])
        gradients = first_gradients(f"{options.output}/first")
        if reference is None:
            reference = losses, gradients
        loss = np.max(np.abs(losses - reference[0]) / np.abs(reference[0]))
        gradient = max(np.linalg.norm(gradients[key] - value) / np.linalg.norm(value) for key, value in reference[1].items())
        print(f"{name:20}  {loss:19.1e}  {gradient:19.1e}", flush=True)
    half = options.steps // 2
    whole = train(4, DECK, f"{options.output}/whole", [f"train.steps={options.steps}"])["steps"]["loss"]
    train(4, DECK, f"{options.output}/cut", [f"train.steps={half}"])
    cut = train(4, DECK, f"{options.output}/cut", [f"train.steps={options.steps}"], options=["--resume", "auto"], fresh=False)["steps"]["loss"]
    print(f"{'4 ranks, resumed':20}  {'equal bit for bit' if np.array_equal(whole, cut) else 'DIFFERENT':>19}")
    print(f"the loss falls from {reference[0][0]:.3f} to {reference[0][-1]:.3f}")


if __name__ == "__main__":
    main()
