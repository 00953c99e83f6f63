#!/usr/bin/env python3
"""How well the vision section hides behind the language section on two cores: one rank each, policies in turn.

Prints, for every policy, the median over the runs of the vision section's work over the language section's, the share
of the step that the language section waits, and the step time over the time that the language section is busy.
"""

import argparse
import pathlib
import shutil
import statistics
import subprocess
import sys

import h5py
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = ["section.language.layout.dp=1", "section.vision.micro_batch=8", "section.vision.window=8", "section.language.micro_batch=8",
            "data.global_batch=128", "checkpoint.every=0", "model.glyph-vision.width=128", "model.glyph-vision.heads=4",
            "model.glyph-vision.mlp=320"]


def measure(run, skip):
    """(vision work / language work, language waiting share, step / language busy) over the steps after `skip`."""
    with h5py.File(run / "metrics.h5") as file:
        step_time = file["steps/time_s"][:][skip:].sum()
        timeline = {key: file["timeline"][key][:] for key in ("section", "step", "start_s", "end_s", "wait_s")}
    late = timeline["step"] > skip
    busy = [float(np.sum((timeline["end_s"] - timeline["start_s"])[late & (timeline["section"] == s)])) for s in (0, 1)]
    waits = float(np.sum(timeline["wait_s"][late & (timeline["section"] == 1)]))
    return busy[0] / busy[1], waits / step_time, step_time / busy[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/cpu-release/maestro"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--vision-layers", type=int, nargs="+", default=[9, 15])
    parser.add_argument("--output", default="runs/bench-waiting")
    options = parser.parse_args()
    print("vision layers  policy     vision/language  language waits  step/language busy")
    for layers in options.vision_layers:
        results = {"wavefront": [], "fifo": []}
        for _ in range(options.runs):
            for policy in results:
                shutil.rmtree(options.output, ignore_errors=True)
                values = [*SETTINGS, f"run.output={options.output}", f"train.steps={options.steps}", f"schedule.policy={policy}",
                          f"model.glyph-vision.layers={layers}"]
                command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", options.binary, "train", str(ROOT / "inputs/vlm_glyphs.toml"),
                           *(word for value in values for word in ("--set", value))]
                done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)
                if done.returncode != 0:
                    sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
                results[policy].append(measure(pathlib.Path(options.output), 5))
        for policy, rows in results.items():
            work, waiting, step = (statistics.median(column) for column in zip(*rows))
            print(f"{layers:13}  {policy:9}  {work:15.2f}  {waiting:13.1%}  {step:18.3f}", flush=True)


if __name__ == "__main__":
    main()
