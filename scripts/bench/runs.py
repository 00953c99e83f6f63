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


def plan(deck, cluster, ranks, out, values=(), fixed=(), *options):
    """Returns the JSON object of `maestro plan`, which writes `out`. `fixed`: keys that keep the deck's values."""
    fix = [word for key in fixed for word in ("--fix", key)]
    command = [BINARY, "plan", deck, "--cluster", cluster, "--ranks", str(ranks), "--out", out, *fix, *options, *settings(values)]
    return json.loads(call(command).splitlines()[-1])


def planned_values(layout):
    """The values of --set of a plan's layout. Windows stay open, and are chosen from the memory as they were."""
    of_section = ("micro_batch", "recompute", "recompute_layers", "colocate_with", "window")  # the other keys are of its layout
    values = []
    for section, keys in layout.items():
        for key, value in {"colocate_with": "", **keys, "window": 0}.items():
            values.append(f"section.{section}.{'' if key in of_section else 'layout.'}{key}={value}")
    return values


def words_of_layout(layout):
    """A plan's layout in short, without degrees of 1."""
    parts = []
    for section, keys in layout.items():
        degrees = " ".join(f"{key} {keys[key]}" for key in ("dp", "tp", "cp", "pp", "chunks", "ep", "etp") if key == "dp" or keys[key] != 1)
        parts.append(f"{section} {degrees} mb {keys['micro_batch']} {keys['recompute']}" + (" colocated" if keys.get("colocate_with") else ""))
    return "; ".join(parts)


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
