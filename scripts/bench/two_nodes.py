#!/usr/bin/env python3
"""Measures the cost of several nodes: each figure is relative to the same run on one node, in alternation; medians over rounds.

* emulated: inputs/emulated_vlm.toml on 20 ranks, ten on each of two hosts made of network namespaces (as root), per policy.
* computing: two ranks that compute, one core each (the decks of waiting.py), with messages instead of shared memory. The message
  thread needs time of a core that is fully used. Also prints the share of processor time that threads other than the main one use.
"""

import argparse
import contextlib
import pathlib
import shutil
import statistics
import tempfile
import threading
import time

import h5py
from runs import BINARY, ROOT, call, settings, train
from waiting import LANGUAGE, VISION

NODES = str(ROOT / "tests/support/nodes.sh")
EMULATED = "inputs/emulated_vlm.toml"
GLYPHS = "inputs/vlm_glyphs.toml"
COMPUTING = [*LANGUAGE, *VISION, "model.glyph-vision.layers=14"]


def steps_of(output, skip):
    with h5py.File(ROOT / output / "metrics.h5") as file:
        return float(file["steps/time_s"][skip:].mean())


@contextlib.contextmanager
def two_hosts():
    """Makes the hosts north and south, and yields a function that calls nodes.sh there with the arguments that it gets."""
    with tempfile.TemporaryDirectory() as folder:
        nodes = ["env", f"NODES_STATE={folder}/nodes", NODES]
        call([*nodes, "up", "north", "south"])
        try:
            yield lambda *words: call([*nodes, *words])
        finally:
            call([*nodes, "down"])


def emulated_step(output, values):
    """Returns the mean step time on two hosts."""
    shutil.rmtree(ROOT / output, ignore_errors=True)
    with two_hosts() as nodes:
        nodes("mpirun", "--oversubscribe", "--host", "north:10,south:10", "-n", "20", BINARY, "train", EMULATED,
              *settings([f"run.output={output}", *values]))
    return steps_of(output, 1)


def emulated(options):
    for policy in ("wavefront", "fifo"):
        values = [f"train.steps={options.steps}", f"schedule.policy={policy}", f"emulated.time_scale={options.scale}"]
        ratios = []
        for _ in range(options.rounds):
            one = train(20, EMULATED, options.output, values)["steps"]["time_s"][1:].mean()
            ratios.append(emulated_step(options.output, values) / one)
        print(f"emulated, {policy:9}: step on two nodes / on one {statistics.median(ratios):.4f}  ({', '.join(f'{r:.3f}' for r in ratios)})", flush=True)


class ThreadTimes(threading.Thread):
    """Records the processor time of the main threads and of all threads of the ranks until they end."""

    def __init__(self):
        super().__init__(daemon=True)
        self.last, self.done = {}, False

    def run(self):
        while not self.done:
            for entry in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    if (entry / "exe").resolve() == pathlib.Path(BINARY).resolve():
                        ticks = {int(task.name): sum(map(int, (task / "stat").read_text().rpartition(")")[2].split()[11:13])) for task in (entry / "task").iterdir()}
                        self.last[int(entry.name)] = (ticks[int(entry.name)], sum(ticks.values()))
                except OSError:
                    continue
            time.sleep(0.2)

    def share_of_others(self):
        main, whole = (sum(values) for values in zip(*self.last.values()))
        return (whole - main) / whole


def computing(options):
    ratios, shares = [], {"window": [], "messages": []}
    for _ in range(options.rounds):
        step = {}
        for transport in shares:
            times = ThreadTimes()
            times.start()
            rows = train(2, GLYPHS, options.output, [*COMPUTING, "train.steps=30", f"run.transport={transport}"])
            times.done = True
            shares[transport].append(times.share_of_others())
            step[transport] = rows["steps"]["time_s"][5:].mean()
        ratios.append(step["messages"] / step["window"])
    print(f"computing: step by messages / by shared memory {statistics.median(ratios):.4f}  ({', '.join(f'{r:.3f}' for r in ratios)}); processor time of other "
          f"threads {statistics.median(shares['messages']):.2%}, without messages {statistics.median(shares['window']):.2%}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--scale", type=float, default=2)
    parser.add_argument("--only", choices=["emulated", "computing"])
    parser.add_argument("--output", default="runs/bench-two-nodes")
    options = parser.parse_args()
    if options.only != "computing":
        emulated(options)
    if options.only != "emulated":
        computing(options)


if __name__ == "__main__":
    main()
