#!/usr/bin/env python3
"""Measures the cost of a start with few and with many samples, the size of checkpoints, and the cost of resuming from them.

MAESTRO=PROGRAM measures another build, for which --file selects samples of an older format."""

import argparse
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time

import runs

DECK = "inputs/vlm_glyphs.toml"
RANKS = 4


def be_a_rank(folder, command):
    """Runs the program as this rank, and writes down the bytes that it read and its peak memory."""
    code = subprocess.run(command).returncode
    io = dict(line.split(": ") for line in pathlib.Path("/proc/self/io").read_text().splitlines())
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    pathlib.Path(folder, os.environ["OMPI_COMM_WORLD_RANK"]).write_text(json.dumps({"read": int(io["rchar"]), "memory": peak}))
    return code


def start(data, output, steps, *options):
    """Returns the bytes read and the peak memory of each rank, and the seconds of the run."""
    with tempfile.TemporaryDirectory() as folder:
        values = [f"data.train={data}", f"run.output={output}", f"train.steps={steps}", "checkpoint.every=100000"]
        begin = time.monotonic()
        runs.call(["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(RANKS), sys.executable, __file__, "--rank",
                   folder, runs.BINARY, "train", DECK, *options, *runs.settings(values)])
        elapsed_s = time.monotonic() - begin
        ranks = [json.loads(pathlib.Path(folder, str(rank)).read_text()) for rank in range(RANKS)]
    return {key: [rank[key] for rank in ranks] for key in ("read", "memory")} | {"seconds": elapsed_s}


def size(path):
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def main():
    if sys.argv[1:2] == ["--rank"]:
        return be_a_rank(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--file", help="sample file to use instead of a new one")
    parser.add_argument("--small", default="data/glyphs-train.h5", help="sample file to compare with")
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 400], help="steps after which checkpoints are measured")
    parser.add_argument("--output", default="runs/bench-starting")
    options = parser.parse_args()
    output = runs.ROOT / options.output
    shutil.rmtree(output, ignore_errors=True)
    data = options.file or str(output / "samples.h5")
    if not options.file:
        runs.call([sys.executable, "scripts/data/make_mixed.py", data, f"--samples={options.samples}", "--tokens=100", "--pixels=1024",
                   "--sigma=0.3", "--longest=256", "--largest=48"])

    best = {}
    for attempt in range(3):
        for name, file in (("small", options.small), ("large", data)):
            got = start(file, output / f"{name}{attempt}", 1)
            if name not in best or got["seconds"] < best[name]["seconds"]:
                best[name] = got
    print(f"a run of one step, {RANKS} ranks; file of {os.path.getsize(data) / 1e6:.0f} MB over {options.small}")
    for key in ("read", "memory"):
        print(f"  {key}, MB more on each rank: ", *(f"{(a - b) / 1e6:.1f}" for a, b in zip(best["large"][key], best["small"][key])))
    print(f"  seconds more: {best['large']['seconds'] - best['small']['seconds']:.2f}")

    print("checkpoints of the glyph deck")
    for steps in options.steps:
        run = output / f"to{steps}"
        start(options.small, run, steps)
        found = run / f"checkpoints/step-{steps:06}"
        resumed = start(options.small, run, steps + 1, "--resume", "auto")
        read = [(a - b) / 1e6 for a, b in zip(resumed["read"], best["small"]["read"])]
        print(f"  after {steps} steps: train.h5 {(found / 'train.h5').stat().st_size / 1e6:.3f} MB, whole {size(found) / 1e6:.2f} MB; "
              f"resuming reads {sum(read):.1f} MB more than starting, over {RANKS} ranks", flush=True)
    shutil.rmtree(output)


if __name__ == "__main__":
    sys.exit(main())
