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
SYNC_TYPES = {"section": "i4", "replica": "i4", "stage": "i4", "rank": "i4", "step": "i8", "kind": "i4", "groups": "i4",
              "start_s": "f8", "end_s": "f8", "busy_s": "f8"}

LOSS_TYPES = {"step": "i8", "section": "i4", "name": "S16", "value": "f8"}
EXPERT_TYPES = {"step": "i8", "section": "i4", "layer": "i4", "largest": "f8", "smallest": "f8", "entropy": "f8"}


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


def sync_rows(steps, language_ranks=3):
    """Beside task_rows: in a step of 250 ms, sums of language from 210 to 230 ms and gathers from 240 ms to 30 ms of the next step."""
    rows = []
    for step in range(1, steps + 1):
        begin = 0.25 * (step - 1)
        for replica in range(language_ranks):
            rows.append((1, replica, 0, replica + 1, step, 0, 4, begin + 0.21, begin + 0.23, 0.015))
            rows.append((1, replica, 0, replica + 1, step, 1, 4, begin + 0.24, begin + 0.28, 0.04))
    return {name: [row[i] for row in rows] for i, name in enumerate(SYNC_TYPES)}


def expert_rows(steps, layers=(1, 2), section=1, experts=8, seed=3):
    """Of choices that become more even from step to step, and in later layers sooner."""
    random = np.random.default_rng(seed)
    rows = []
    for step in range(1, steps + 1):
        for layer in layers:
            counts = random.dirichlet(np.full(experts, 1 + 40 * step / steps * (1 + layer) / (1 + max(layers)))) * experts
            shares = counts[counts > 0] / experts
            rows.append((step, section, layer, counts.max(), counts.min(), -(shares * np.log(shares)).sum() / np.log(experts)))
    return {name: [row[i] for row in rows] for i, name in enumerate(EXPERT_TYPES)}


def loss_rows(steps, section=1, seed=4):
    """Of a student whose experts are balanced by a loss."""
    random = np.random.default_rng(seed)
    rows = []
    for step in range(1, steps + 1):
        for name, last, first in (("balance", 2e-3, 1e-3), ("cross_entropy", 1.2, 4.5), ("forward_kl", 0.3, 1.5)):
            rows.append((step, section, name, last + first * np.exp(-step / 60) * (1 + 0.05 * random.standard_normal())))
    return {name: [row[i] for row in rows] for i, name in enumerate(LOSS_TYPES)}


def agenda_1f1b(rank, ranks, chunks, micro_batches):
    """The tasks (stage, micro-batch, phase) of one rank of a pipeline in the order of Megatron's schedules: 1F1B, or with chunks the
    interleaved one, in which every rank runs `chunks` stages in rounds of `ranks` micro-batches."""
    rounds = [range(first, min(first + ranks, micro_batches)) for first in range(0, micro_batches, ranks)]
    stages = [rank + ranks * chunk for chunk in range(chunks)]
    forwards = [(stage, k, 0) for some in rounds for stage in stages for k in some]
    backwards = [(stage, k, 1) for some in rounds for stage in reversed(stages) for k in some]
    ahead = ranks - rank - 1 if chunks == 1 else 2 * (ranks - rank - 1) + (chunks - 1) * ranks
    ahead = min(ahead, len(forwards))
    pairs = zip(forwards[ahead:], backwards)
    return [*forwards[:ahead], *(task for pair in pairs for task in pair), *backwards[len(forwards) - ahead:]]


def pipeline_rows(*, ranks=4, chunks=1, micro_batches=8, forward=0.02, pictures=(), colocated=False, steps=1):
    """A language section of ranks x chunks stages, whose backwards take twice their forwards; a rank needs `forward` seconds for the
    forwards of a micro-batch. Vision feeds it the micro-batches in `pictures`: on rank 0, with the language section behind it, or with
    a stage on each of the same ranks."""
    seconds = {(1, 0): forward / chunks, (1, 1): 2 * forward / chunks, (0, 0): forward / 2, (0, 1): forward}
    depth, encoder, first = ranks * chunks, ranks if colocated else 1, 0 if colocated else 1
    agendas = {first + rank: [(1, *task) for task in agenda_1f1b(rank, ranks, chunks, micro_batches)] for rank in range(ranks)}
    for rank in range(encoder):
        before, after = ([(0, rank, k, phase) for k in pictures] for phase in (0, 1))
        agendas[rank] = [*before, *agendas.get(rank, []), *after]

    def needed(section, stage, k, phase):
        """The task whose rows or gradients this one receives."""
        if phase == 0:
            return (section, stage - 1, k, 0) if stage else (0, encoder - 1, k, 0) if section and k in pictures else None
        last = depth - 1 if section else encoder - 1
        return (section, stage + 1, k, 1) if stage < last else (section, stage, k, 0) if section else (1, 0, k, 1)

    rows, begin = [], 0.0
    for step in range(1, steps + 1):
        ended, clocks = {}, dict.fromkeys(agendas, begin)
        left = {rank: list(tasks) for rank, tasks in agendas.items()}
        while any(left.values()):
            rank = next(r for r, tasks in left.items() if tasks and (needed(*tasks[0]) is None or needed(*tasks[0]) in ended))
            task = section, stage, k, phase = left[rank].pop(0)
            start = max(clocks[rank], ended.get(needed(*task), begin))
            ended[task] = start + seconds[section, phase]
            rows.append((section, 0, stage, rank, step, k, phase, start, ended[task], start - clocks[rank]))
            clocks[rank] = ended[task]
        begin = max(clocks.values()) + 0.02
    return {name: [row[i] for row in rows] for i, name in enumerate(TASK_TYPES)}


def write_run(folder, steps=None, tasks=None, syncs=None, experts=None, losses=None, deck="[run]\nname = \"test\"\n", ended=0,
              sections="vision\nlanguage"):
    """`tasks` may have `weights_s`. Without it, `syncs`, `experts` and `losses` the file is as an older build wrote it."""
    folder.mkdir(parents=True)
    steps = steps or step_rows(40)
    tasks = tasks or task_rows(4)
    with h5py.File(folder / "metrics.h5", "w") as file:
        task_types = {**TASK_TYPES, **({"weights_s": "f8"} if "weights_s" in tasks else {})}
        for group, types, rows in (("steps", STEP_TYPES, steps), ("timeline", task_types, tasks), ("syncs", SYNC_TYPES, syncs),
                                   ("experts", EXPERT_TYPES, experts), ("losses", LOSS_TYPES, losses)):
            for name, kind in types.items() if rows else ():
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
