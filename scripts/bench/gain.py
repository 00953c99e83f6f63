#!/usr/bin/env python3
"""Measures what scheduling gains for inputs/emulated_vlm.toml on a cluster file: the makespan of a step under each policy, for several
shares of samples with pictures and several loads of the encoder. Makespans are simulated (`maestro simulate`, means over steps) and,
at three points, measured on the emulated cluster. They are divided by the lower bound of the deck's layout. With `one-size`, all ranks
run all sections in turn, so its result may be below 1 if the layout leaves ranks idle. The load is the encoder's work per rank over
that of the language model; the number of its layers sets it."""

import argparse
import pathlib
from concurrent.futures import ThreadPoolExecutor

from emulated import emulate, samples, simulated
from runs import ROOT

POLICIES = ["one-size", "fifo", "lpt", "wavefront"]
SHARES = [0.0, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 1.0]
LOADS = [0.3, 0.6, 0.9]
MEASURED = [(0.6, 0.33), (0.9, 0.33), (0.9, 0.67)]
LAYERS = 24
RANKS = 20


def layers_for(data, load):
    """Returns the number of encoder layers whose load is closest to `load`."""
    sections = simulated([data, f"model.vit.layers={LAYERS}"])["sections"]
    now = sections["vision"]["work_s"] / sections["language"]["work_s"]
    return max(1, round(LAYERS * load / now)) if now > 0 else LAYERS


def case(data, layers, policy):
    return [data, f"model.vit.layers={layers}"] + ([] if policy == "one-size" else [f"schedule.policy={policy}"])


def curve_point(data, layers, policy, steps):
    """Returns the simulated makespan over the lower bound of the layout."""
    sum_time = sum_bound = 0
    for step in steps:
        sum_time += simulated(case(data, layers, policy), "--policy", policy, "--step", step)["makespan_s"]
        sum_bound += simulated(case(data, layers, "wavefront"), "--step", step)["lower_bound_s"]
    return sum_time / sum_bound


def measured_point(data, layers, policy, steps, output, scale):
    """Returns the emulated makespan over the lower bound, without the first step."""
    _, spans = emulate(RANKS, case(data, layers, policy), output, scale, steps[-1])
    return spans[1:].sum() / sum(simulated(case(data, layers, policy), "--step", step)["lower_bound_s"] for step in steps)


def plot(found, measured, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(1, len(LOADS), figsize=(11, 3.6), sharey=True, layout="constrained")
    colours = {"one-size": "#999999", "fifo": "#d55e00", "lpt": "#e6a000", "wavefront": "#0072b2"}
    for axis, load in zip(axes, LOADS):
        for policy in POLICIES:
            axis.plot(SHARES, [found[load, share, policy] for share in SHARES], marker=".", markersize=5, color=colours[policy],
                      label=policy, linewidth=2 if policy == "wavefront" else 1.4)
            points = [(share, value) for (at, share, name), value in measured.items() if (at, name) == (load, policy)]
            if points:
                axis.plot(*zip(*points), linestyle="none", marker="o", markersize=8, markerfacecolor="none", color=colours[policy], markeredgewidth=1.6)
        axis.set_title(f"encoder load {load}")
        axis.set_xlabel("share of samples with pictures")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("makespan of a step / lower bound")
    if measured:
        axes[0].plot([], [], linestyle="none", marker="o", markersize=8, markerfacecolor="none", color="black", label="emulated")
    axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6, help="steps per point")
    parser.add_argument("--scale", type=float, default=4, help="seconds of this machine per second of the cluster")
    parser.add_argument("--output", default="runs/bench-gain")
    parser.add_argument("--plot", help="PNG file to write")
    options = parser.parse_args()
    (ROOT / options.output).mkdir(parents=True, exist_ok=True)
    steps = range(2, 2 + options.steps)  # without the first step of a run, which is slower
    files = {share: samples(f"{options.output}/share-{share}.h5", 512, share) for share in SHARES}
    layers = {(load, share): layers_for(files[share], load) for load in LOADS for share in SHARES}
    with ThreadPoolExecutor(2) as pool:
        points = [(load, share, policy) for load in LOADS for share in SHARES for policy in POLICIES]
        values = pool.map(lambda p: curve_point(files[p[1]], layers[p[0], p[1]], p[2], steps), points)
        found = dict(zip(points, values))
    print("load  share  " + "".join(f"{policy:>11}" for policy in POLICIES) + "   fifo/wavefront")
    for load in LOADS:
        for share in SHARES:
            times = [found[load, share, policy] for policy in POLICIES]
            print(f"{load:4}  {share:5}  " + "".join(f"{t:11.3f}" for t in times) + f"{times[1] / times[3]:17.2f}", flush=True)
    print("\nemulated     " + "".join(f"{policy:>11}" for policy in POLICIES) + "   fifo/wavefront")
    measured = {}
    for load, share in MEASURED:
        for policy in POLICIES[1:]:
            measured[load, share, policy] = measured_point(files[share], layers[load, share], policy, steps,
                                                           f"{options.output}/run", options.scale)
        times = [measured[load, share, policy] for policy in POLICIES[1:]]
        print(f"{load:4}  {share:5}  {'':11}" + "".join(f"{t:11.3f}" for t in times) + f"{times[0] / times[2]:17.2f}", flush=True)
    if options.plot:
        plot(found, measured, pathlib.Path(options.plot))


if __name__ == "__main__":
    main()
