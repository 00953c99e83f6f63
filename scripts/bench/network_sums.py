#!/usr/bin/env python3
"""Compares the step of a section of 100 million weights on two hosts with that of another build: network_sums.py OTHER_PROGRAM (as root)

Two hosts made of network namespaces have two data-parallel ranks each, and tc limits what each host sends. A step has four short texts.
With P weights in fp32, a host sends 4 P bytes in each step where sums are taken within hosts first, and 8 P where each rank sends every
other rank its part of gradients and weights. Runs alternate; prints for each build the bytes that a host sends in a step (without what
one step and the start take) over 4 P, the median step, the time that 4 P or 8 P bytes need on the network, and the time between the last
task of a step and the first one of the next.
"""

import argparse
import os
import re
import shutil
import statistics

import h5py
import numpy as np
from runs import BINARY, ROOT, call, settings
from two_nodes import two_hosts
from weight_memory import PARAMETERS, short_texts

HOSTS = ("north", "south")
DECK = "inputs/teacher.toml"
SHAPE = {"layers": 11, "width": 768, "heads": 12, "kv_heads": 12, "head_dim": 64, "mlp": 3072}
RECEIVER = "import socket; s = socket.create_server(('', 7777)); c, _ = s.accept(); n = 1\nwhile n: n = len(c.recv(1 << 20))\nc.send(b'.')"
SENDER = ("import socket, time; c = socket.create_connection(('{host}', 7777)); b = bytes(1 << 20); t = time.perf_counter()\n"
          "for _ in range({mib}): c.sendall(b)\nc.shutdown(1); c.recv(1); print({mib} * 8 * 2**20 / 1e9 / (time.perf_counter() - t))")


def rate_of_network(nodes, mib=512):
    """Returns the Gbit/s of one TCP connection from north to south."""
    nodes("in", "south", "sh", "-c", f'python3 -c "{RECEIVER}" >/dev/null 2>&1 & sleep 0.5')
    return float(nodes("in", "north", "python3", "-c", SENDER.format(host="south", mib=mib)))


def sent(nodes, node):
    """Returns the bytes that the host has sent."""
    text = nodes("in", node, "ip", "-statistics", "link", "show", "eth0")
    return int(re.search(r"TX:.*\n\s*(\d+)", text)[1])


def run(nodes, program, steps, values, options):
    """Trains with the program. Returns the mean of the bytes that the two hosts sent and the columns of /steps and /timeline by name."""
    output = f"{options.output}/run"
    shutil.rmtree(ROOT / output, ignore_errors=True)
    before = [sent(nodes, node) for node in HOSTS]
    nodes("mpirun", "--oversubscribe", "--bind-to", "none", "--host", "north:2,south:2", "-n", "4", program, "train", DECK,
          *settings([*values, f"run.output={output}", f"train.steps={steps}"]))
    crossed = statistics.mean(sent(nodes, node) - count for node, count in zip(HOSTS, before))
    with h5py.File(ROOT / output / "metrics.h5") as file:
        return crossed, *({name: file[group][name][:] for name in file[group]} for group in ("steps", "timeline"))


def between_tasks(timeline, steps):
    """Returns the median time between the last task of a step and the first one of the next."""
    first = [timeline["start_s"][timeline["step"] == step].min() for step in steps]
    last = [timeline["end_s"][timeline["step"] == step].max() for step in steps]
    return float(np.median(np.subtract(first[1:], last[:-1])))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", help="path of the other maestro")
    parser.add_argument("--gbit", type=float, default=5, help="Gbit/s that a host may send")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64, help="of each text")
    parser.add_argument("--texts", type=int, default=4, help="of a step")
    parser.add_argument("--output", default="runs/bench-network-sums")
    options = parser.parse_args()
    os.chdir(ROOT)
    shutil.rmtree(options.output, ignore_errors=True)
    samples = f"{options.output}/texts.h5"
    short_texts(samples, options.tokens)
    values = [f"data.train={samples}", f"data.validation={samples}", f"data.global_batch={options.texts}", "checkpoint.every=0",
              f"data.sequence_length={options.tokens}", "section.teacher.micro_batch=1", "section.teacher.layout.dp=4",
              *(f"model.text-teacher.{key}={value}" for key, value in SHAPE.items())]
    with two_hosts() as nodes:
        for node in HOSTS:
            nodes("in", node, *f"tc qdisc add dev eth0 root tbf rate {options.gbit}gbit burst 1mb latency 20ms".split())
        print(f"limit {options.gbit:g} Gbit/s, one connection reaches {rate_of_network(nodes):.2f}", flush=True)
        table = call(["mpirun", "--oversubscribe", "-n", "4", BINARY, "train", DECK, "--dry-run", *settings(values)])
        weights = int(PARAMETERS.search(table)[1])
        print(f"{weights / 1e6:.1f} million weights")
        print(f"{'build':8}{'sent / 4 P':>11}{'step, s':>9}{'on the network, s':>19}{'between tasks, s':>18}{'of the step':>13}", flush=True)
        programs = {"other": options.other, "this": BINARY}
        rows = {name: [] for name in programs}
        of_one_step = {name: run(nodes, program, 1, values, options)[0] for name, program in programs.items()}
        for _ in range(options.rounds):
            for name, program in programs.items():
                crossed, steps, timeline = run(nodes, program, options.steps, values, options)
                share = (crossed - of_one_step[name]) / (options.steps - 1) / (4 * weights)
                needed = round(share) * 4 * weights * 8 / (options.gbit * 1e9)
                step, between = float(np.median(steps["time_s"][1:])), between_tasks(timeline, steps["step"])
                rows[name].append((step, between, steps["loss"]))
                print(f"{name:8}{share:11.3f}{step:9.3f}{needed:19.3f}{between:18.3f}{between / step:13.1%}", flush=True)
    step, between = ({name: statistics.median(row[i] for row in rows[name]) for name in rows} for i in (0, 1))
    other, this = rows["other"][0][2], rows["this"][0][2]
    print(f"median step {step['this']:.3f} s over {step['other']:.3f} s: {step['this'] / step['other']:.3f}; between the tasks of two steps "
          f"{between['this']:.3f} s and {between['other']:.3f} s; losses differ by at most {np.max(np.abs(this / other - 1)):.1e}")


if __name__ == "__main__":
    main()
