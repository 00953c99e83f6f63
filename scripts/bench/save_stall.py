#!/usr/bin/env python3
"""Measures how long a checkpoint stalls training: how much longer the step after one takes than the same step of a run without checkpoints,
and how much longer all steps until the next checkpoint take together. The times are those at which the program logs its steps, because no
step's time in metrics.h5 includes what happens between two steps. MAESTRO=PROGRAM measures another build."""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import time

import runs

DECK = "inputs/vlm_glyphs.toml"


def step_times(ranks, output, values):
    """Runs the program with a log line for each step, and returns the seconds from the end of the step before to the end of each."""
    shutil.rmtree(runs.ROOT / output, ignore_errors=True)
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), runs.BINARY, "train", DECK,
               *runs.settings([f"run.output={output}", "train.log_every=1", *values])]
    job = subprocess.Popen(command, cwd=runs.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, bufsize=1)
    times, tail = {}, []
    for line in job.stdout:
        tail = [*tail[-30:], line]
        if found := re.match(r"step +(\d+)", line):
            times[int(found[1])] = time.monotonic()
    if job.wait() != 0:
        sys.exit("".join(tail))
    return {step: times[step] - times[step - 1] for step in times if step - 1 in times}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=768, help="of the language model: 768 makes a checkpoint of 500 MB")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=4, help="samples of a step")
    parser.add_argument("--every", type=int, default=6, help="steps between two checkpoints")
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--dp", type=int, default=1, help="replicas of the language model, beside a rank for the encoder")
    parser.add_argument("--output", default="runs/bench-save-stall")
    options = parser.parse_args()
    steps = options.every * (options.saves + 2) - 1
    model = "model.glyph-language."
    values = [f"data.global_batch={options.batch}", f"{model}width={options.width}", f"{model}mlp={4 * options.width}", f"{model}layers={options.layers}",
              f"{model}heads={options.width // 64}", f"{model}kv_heads={options.width // 64}", f"{model}head_dim=64", f"train.steps={steps}",
              f"section.language.layout.dp={options.dp}", "section.language.micro_batch=2", "section.vision.micro_batch=2", "metrics.interval_s=1000"]
    plain = step_times(1 + options.dp, options.output, [*values, "checkpoint.every=0"])
    saving = step_times(1 + options.dp, options.output, [*values, f"checkpoint.every={options.every}"])
    size = max(path.stat().st_size for path in (runs.ROOT / options.output).glob("checkpoints/step-*/language.h5"))
    shutil.rmtree(runs.ROOT / options.output, ignore_errors=True)

    # A checkpoint after the last step stalls none. The first few steps warm up.
    saves = range(options.every, steps - options.every, options.every)
    longer = {step: saving[step] - plain[step] for step in plain if step > options.every}
    first = statistics.median(longer[save + 1] for save in saves)
    stall = statistics.median(sum(longer[step] for step in range(save + 1, save + options.every + 1)) for save in saves)
    alone = statistics.median(plain.values())
    print(f"{runs.BINARY}: {size / 1e6:.0f} MB in language.h5, {1 + options.dp} ranks, median of {len(saves)} checkpoints")
    print(f"  a step without a checkpoint {alone:.3f} s, with one before it {alone + first:.3f} s")
    print(f"  stall of that step {first:.3f} s; all steps until the next checkpoint take {stall:.3f} s longer")
    print(json.dumps({"bytes": size, "step_s": alone, "first_step_stall_s": first, "stall_s": stall}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
