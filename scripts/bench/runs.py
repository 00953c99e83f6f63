"""Runs the built program for the benchmarks, from the root of the repository. A failure ends the benchmark."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import h5py

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("MAESTRO", str(ROOT / "build/cpu-release/maestro"))


def call(command):
    """Returns the stdout of the command; ends the program if it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=3600)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def mpirun(ranks, *words, before=()):
    return call([*before, "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), BINARY, *map(str, words)])


def settings(values):
    """Returns the values as --set options of the command line."""
    return [word for value in values for word in ("--set", value)]


def simulate(deck, values, *options):
    """Returns the JSON object that `maestro simulate` prints as a dictionary."""
    return json.loads(call([BINARY, "simulate", deck, *map(str, options), *settings(values)]).splitlines()[-1])


def train(ranks, deck, output, values, *, options=(), before=(), fresh=True):
    """Trains into `output` and returns the columns of /steps and /timeline by name."""
    output = pathlib.Path(output)
    if fresh:
        shutil.rmtree(ROOT / output, ignore_errors=True)
    mpirun(ranks, "train", deck, *options, *settings([f"run.output={output}", *values]), before=before)
    with h5py.File(ROOT / output / "metrics.h5") as file:
        return {group: {name: file[group][name][:] for name in file[group]} for group in ("steps", "timeline")}


def evaluate(deck, checkpoint, *options, values=()):
    return json.loads(mpirun(2, "evaluate", deck, "--checkpoint", checkpoint, *options, *settings(values)).splitlines()[-1])
