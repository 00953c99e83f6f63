#!/usr/bin/env python3
"""What scheduling gains: the time of a step under each policy over the share of samples with pictures and the encoder's
load, simulated (`maestro simulate`), means over seeds. Times are given over the lower bound of the deck's layout; for
`one-size` all ranks do everything in turn, so it may fall below 1 where the layout leaves ranks idle."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/data"))
import make_costs  # noqa: E402

POLICIES = ["one-size", "fifo", "lpt", "wavefront"]
SHARES = [0.0, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 1.0]
LOADS = [0.3, 0.6, 0.9]


def simulate(binary, deck, costs, policy):
    command = [binary, "simulate", deck, "--costs", costs, "--policy", policy]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(binary, path, seeds):
    """{(load, share, policy): step time over the lower bound}."""
    with open(path, "rb") as file:
        deck = tomllib.load(file)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        costs = f"{folder}/costs.csv"
        for load in LOADS:
            for share in SHARES:
                sums = dict.fromkeys(POLICIES, 0.0)
                for seed in range(seeds):
                    make_costs.write(costs, make_costs.draw(deck, per_replica=16, share=share, load=load, sigma=0.6, seed=seed))
                    results = {policy: simulate(binary, path, costs, policy) for policy in POLICIES}
                    for policy in POLICIES:
                        sums[policy] += results[policy]["makespan_s"] / results["wavefront"]["lower_bound_s"] / seeds
                for policy in POLICIES:
                    found[load, share, policy] = sums[policy]
    return found


def plot(found, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(1, len(LOADS), figsize=(11, 3.6), sharey=True, layout="constrained")
    colours = {"one-size": "#999999", "fifo": "#d55e00", "lpt": "#e6a000", "wavefront": "#0072b2"}
    for axis, load in zip(axes, LOADS):
        for policy in POLICIES:
            axis.plot(SHARES, [found[load, share, policy] for share in SHARES], marker="o", markersize=3.5, color=colours[policy],
                      label=policy, linewidth=2 if policy == "wavefront" else 1.4)
        axis.set_title(f"encoder load {load}")
        axis.set_xlabel("share of samples with pictures")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("step time / lower bound")
    axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deck", default="inputs/paper_vlm.toml")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--binary", default="build/cpu-release/maestro")
    parser.add_argument("--plot", help="PNG file to write")
    options = parser.parse_args()
    found = measure(options.binary, options.deck, options.seeds)
    print("load  share  " + "".join(f"{policy:>11}" for policy in POLICIES) + "   fifo/wavefront")
    for load in LOADS:
        for share in SHARES:
            times = [found[load, share, policy] for policy in POLICIES]
            print(f"{load:4}  {share:5}  " + "".join(f"{t:11.3f}" for t in times) + f"{times[1] / times[3]:17.2f}")
    if options.plot:
        plot(found, pathlib.Path(options.plot))


if __name__ == "__main__":
    main()
