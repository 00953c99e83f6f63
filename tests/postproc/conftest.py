"""Writes run directories like those of the program, with h5py."""

import json
import pathlib
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "postproc"))

STEP_TYPES = {"step": "i8", "loss": "f8", "tokens": "i8", "time_s": "f8", "grad_norm": "f8", "learning_rate": "f8"}
TASK_TYPES = {"section": "i4", "replica": "i4", "stage": "i4", "rank": "i4", "step": "i8", "micro_batch": "i4", "phase": "i4",
              "start_s": "f8", "end_s": "f8", "wait_s": "f8"}


def step_rows(count, seed=1):
    random = np.random.default_rng(seed)
    step = np.arange(1, count + 1)
    return {"step": step, "loss": 4.5 * np.exp(-step / 60) + 0.4 + 0.15 * random.standard_normal(count) ** 2,
            "tokens": random.integers(1800, 2300, count), "time_s": np.full(count, 0.25), "grad_norm": 1 + random.random(count),
            "learning_rate": np.full(count, 1e-3)}


def task_rows(steps, language_ranks=3, micro_batches=4):
    """Vision on rank 0: 20 ms forward and 30 ms backward per micro-batch. Language on the other ranks: 40 and 60 ms, after a wait
    of 20 ms before the first task."""
    rows = []
    for step in range(1, steps + 1):
        begin = 0.25 * (step - 1)
        for k in range(micro_batches):
            rows.append((0, 0, 0, 0, step, k, 0, begin + 0.02 * k, begin + 0.02 * (k + 1), 0.0))
        for replica in range(language_ranks):
            clock, wait = begin, 0.02
            for k in range(2):
                rows.append((1, replica, 0, replica + 1, step, k, 0, clock + wait, clock + wait + 0.04, wait))
                rows.append((1, replica, 0, replica + 1, step, k, 1, clock + wait + 0.04, clock + wait + 0.10, 0.0))
                clock, wait = clock + wait + 0.10, 0.0
        clock = begin + 0.08
        for k in range(micro_batches):
            wait = 0.04 if k == 0 else 0.0
            rows.append((0, 0, 0, 0, step, k, 1, clock + wait, clock + wait + 0.03, wait))
            clock += wait + 0.03
    return {name: [row[i] for row in rows] for i, name in enumerate(TASK_TYPES)}


def write_run(folder, steps=None, tasks=None, deck="[run]\nname = \"test\"\n", ended=0, sections="vision\nlanguage"):
    folder.mkdir(parents=True)
    steps = steps or step_rows(40)
    tasks = tasks or task_rows(4)
    with h5py.File(folder / "metrics.h5", "w") as file:
        for group, types, rows in (("steps", STEP_TYPES, steps), ("timeline", TASK_TYPES, tasks)):
            for name, kind in types.items():
                file.create_dataset(f"{group}/{name}", data=np.asarray(rows[name], kind), maxshape=(None,), chunks=(1024,))
        file.attrs.update({"format": "maestro-metrics", "version": np.int32(1), "deck": deck, "environment": "test machine",
                           "sections": sections})
    if ended is not None:
        (folder / "exit.json").write_text(json.dumps({"code": ended, "rank": 0, "host": "a", "step": 40, "reason": ""}))
    (folder / "checkpoints/step-000040").mkdir(parents=True)
    return folder


@pytest.fixture
def run_folder(tmp_path):
    return write_run(tmp_path / "runs/first")
