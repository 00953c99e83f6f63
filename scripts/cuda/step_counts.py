#!/usr/bin/env python3
"""Counts what a training step asks of CUDA, cuBLASLt, cuDNN and NCCL, on the simulated runtime of tests/hosted: launches, groups of NCCL,
bytes that they send, copies, and calls for which the host waits; per layer, micro-batch and step of rank 0. Writes the table "counts" of
docs/cuda.md. Trains a small language model with 2 and 4 layers, 1 and 3 micro-batches a step, and 2 and 4 steps: the differences give the
counts of one layer, one micro-batch and one step, without those of the start.

  scripts/cuda/step_counts.py build/cpu-release/maestro_hosted                   # writes the table, and keeps its figures of 5efa902
  scripts/cuda/step_counts.py build/cpu-release/maestro_hosted --check           # fails if the table differs
  scripts/cuda/step_counts.py build/cpu-release/maestro_hosted --before OTHER    # counts those again: OTHER is maestro_hosted of that tree"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import document

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/data"))
from sample_file import Sample, SampleWriter  # noqa: E402

TOKENS, WIDTH, MLP, HEADS, HEAD_DIM, VOCABULARY = 64, 64, 128, 8, 8, 260
LAYERS, MICRO_BATCHES, STEPS = (2, 4), (1, 3), (2, 4)
LAYOUTS = {"tp 1": {}, "tp 2": {"tp": 2}, "tp 8": {"tp": 8}, "cp 4": {"cp": 4}, "dp 2": {"dp": 2}}

POLLED = "host waits: events polled until reached"
# What a row of the table adds up: names of hosted::count() in tests/hosted, of this tree and of 5efa902.
ROWS = {
    "launches": ("a kernel", "a GEMM of cuBLASLt", "a product of cuBLASLt", "a graph of cuDNN", "a memset", "a copy on the device"),
    "of them cuDNN's graphs": ("a graph of cuDNN",),
    "NCCL groups": ("an NCCL group",),
    "bytes sent by NCCL": ("an NCCL group",),
    "copies between host and device": ("a copy to the device", "a copy to the host", "a copy to pageable memory"),
    "bytes of these copies": ("a copy to the device", "a copy to the host", "a copy to pageable memory"),
    "events recorded, or waited for by streams": ("cudaEventRecord", "cudaStreamWaitEvent"),
    "host waits: threads of NCCL groups": ("an NCCL group that a thread starts",),
    POLLED: ("an event that the host polls",),
    "host waits: synchronizing calls": ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaFree", "cudaHostAlloc",
                                        "a copy to pageable memory"),
}
COLUMNS = ["a layer forward", "a layer backward", "rest of a micro-batch", "a layer once per step", "rest of a step"]
DECK = """
[run]
output = "run"
device = "cuda"
tp_overlap = "always"
precision = "bf16"
[data]
train = "{samples}"
validation = "{samples}"
global_batch = {global_batch}
sequence_length = {tokens}
[train]
steps = {steps}
[optimizer]
learning_rate = 1e-3
[schedule]
policy = "wavefront"
[model.small]
kind = "language"
layers = {layers}
width = {width}
heads = {heads}
kv_heads = {heads}
head_dim = {head_dim}
mlp = {mlp}
vocabulary = {vocabulary}
[[section]]
name = "language"
model = "small"
micro_batch = 1
window = 1
[section.layout]
tp = {tp}
cp = {cp}
dp = {dp}
"""


def write_samples(path):
    writer = SampleWriter(path, vocabulary=VOCABULARY, marker=VOCABULARY - 1)
    for first in range(16):
        sample = Sample()
        sample.add([first], weight=0.0)
        sample.add([(first + 7 * i) % (VOCABULARY - 1) for i in range(1, TOKENS)])
        writer.add(sample)
    writer.close()


def train(program, samples, layout, layers, micro_batches, steps):
    """Returns the counts of rank 0: (phase, what) -> (calls, bytes)."""
    degrees = {"tp": 1, "cp": 1, "dp": 1, **layout}
    ranks = degrees["tp"] * degrees["cp"] * degrees["dp"]
    values = {"tokens": TOKENS, "width": WIDTH, "mlp": MLP, "heads": HEADS, "head_dim": HEAD_DIM, "vocabulary": VOCABULARY}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "counts").mkdir()
        (folder / "deck.toml").write_text(DECK.format(samples=samples, global_batch=micro_batches * degrees["dp"], steps=steps, layers=layers,
                                                      **values, **degrees))
        done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), program, "train", "deck.toml"],
                              cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300,
                              env={**os.environ, "OMP_NUM_THREADS": "1", "MAESTRO_HOSTED_DEVICES": str(ranks),
                                   "MAESTRO_HOSTED_COUNTS": str(folder / "counts")})
        if done.returncode != 0:
            raise SystemExit(f"{program}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        counts = {}
        for line in (folder / "counts/0.tsv").read_text().splitlines():
            phase, what, calls, size = line.split("\t")
            counts[phase, what] = (int(calls), int(size))
        return counts


def total(counts, row, counted=lambda phase: True):
    """Adds up a row of the table over phases."""
    index = 1 if "bytes" in row else 0
    return sum(found[index] for (phase, what), found in counts.items() if counted(phase) and what in ROWS[row])


def middle(counts, phase):
    """Returns a phase of the second of three micro-batches. Gathers of weights run beside the first one, and sums of gradients beside the
    last one; in which task they are issued depends on when the other ranks arrive."""
    indices = sorted({int(found.split()[-1]) for found, _ in counts if found.startswith(phase)})
    return f"{phase} micro-batch {indices[1]}"


def split(value_of):
    """Splits value_of(layers, micro_batches), which is linear in both, into what belongs to the rest of a micro-batch beside its layers,
    to a layer once per step, and to the rest of a step."""
    (few, many), (one, more) = LAYERS, MICRO_BATCHES
    of_layer = {batches: (value_of(many, batches) - value_of(few, batches)) / (many - few) for batches in MICRO_BATCHES}
    layer = (of_layer[more] - of_layer[one]) / (more - one)  # of a micro-batch
    batch = (value_of(few, more) - value_of(few, one)) / (more - one) - few * layer
    layer_step = of_layer[one] - one * layer
    return batch, layer_step, value_of(few, one) - one * (batch + few * layer) - few * layer_step


def measure(program, samples, layout):
    """Returns, for each row, the counts of a layer forward and backward, of the rest of a micro-batch, of a layer once per step, and of
    the rest of a step."""
    runs = {(layers, batches, steps): train(program, samples, layout, layers, batches, steps)
            for layers, batches, steps in itertools.product(LAYERS, MICRO_BATCHES, STEPS)}
    (few, many), (short, long) = LAYERS, STEPS

    def of_layer(row, phase):
        shallow, deep = (runs[layers, MICRO_BATCHES[1], long] for layers in LAYERS)
        rise = total(deep, row, middle(deep, phase).__eq__) - total(shallow, row, middle(shallow, phase).__eq__)
        return rise / (many - few) / long

    def of_step(row):
        return split(lambda layers, batches: (total(runs[layers, batches, long], row) - total(runs[layers, batches, short], row)) / (long - short))

    return {row: (of_layer(row, "forward"), of_layer(row, "backward"), *of_step(row)) for row in ROWS}


def number(value):
    """Rounded: every few dozen launches the host waits for an earlier event, wherever in a step that is."""
    return f"{round(value):,}"


def cell(before, after):
    return after if before == after else f"{before} → {after}"


def table_of(after, before):
    """`after` and `before`: layout -> row -> cells."""
    text = ""
    for layout, rows in after.items():
        text += "\n| " + " | ".join([layout, *COLUMNS]) + " |\n|" + "---|" * (1 + len(COLUMNS)) + "\n"
        for row, values in rows.items():
            olds = before[layout][row]
            if {*values, *olds} != {"0"}:
                text += f"| {row} | " + " | ".join(map(cell, olds, values)) + " |\n"
    return text + "\n"


def read_table(text):
    """Reads what table_of() has written: before and after."""
    before, after, layout = {}, {}, None
    for line in text.splitlines():
        name, *cells = (word.strip() for word in line.strip("|").split("|"))
        if cells == COLUMNS:
            layout = name
            before[layout], after[layout] = ({row: ["0"] * len(COLUMNS) for row in ROWS} for _ in range(2))
        elif name in ROWS:
            before[layout][name] = [value.split(" → ")[0] for value in cells]
            after[layout][name] = [value.split(" → ")[-1] for value in cells]
    return before, after


def measure_all(program, layouts):
    """Returns layout -> row -> cells."""
    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder) / "samples.h5"
        write_samples(samples)
        return {layout: {row: [number(value) for value in values]
                         for row, values in measure(Path(program).resolve(), samples, LAYOUTS[layout]).items()} for layout in layouts}


def differences(found, table):
    """Where counts differ from the table. Polls vary on a busy machine, where the host waits longer and asks for more."""
    return [f"{layout}, {row}: {table[layout][row]} in the table, {found[layout][row]} counted"
            for layout in found for row in ROWS if row != POLLED and found[layout][row] != table[layout][row]]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="maestro_hosted of a build folder")
    parser.add_argument("--before", help="maestro_hosted of commit 5efa902 with these counters")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), help="for --check")
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "cuda.md")
    options = parser.parse_args(arguments)
    text = options.document.read_text()
    before, after = read_table(document.read_between(text, "counts"))
    if options.check:
        found = measure_all(options.program, options.layouts)
        different = differences(found, after)
        print("\n".join(different) or f"the table has what {options.program} counts")
        return 1 if different else 0
    if options.before:
        before = measure_all(options.before, LAYOUTS)
    options.document.write_text(document.write_between(text, "counts", table_of(measure_all(options.program, LAYOUTS), before)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
