"""What people see of a run on a GPU: ranges in a profiler, times of tasks."""

import os
import pathlib
import sys

import h5py
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_training import HOSTED, STEPS, data, train  # noqa: E402, F401  (data is a fixture)

RECORDER = os.environ["MAESTRO_NVTX_RECORDER"]
PHASES = ("forward", "backward")


@pytest.fixture
def folder(tmp_path, data):  # noqa: F811
    (tmp_path / "data").symlink_to(data)
    return tmp_path


def sections_of(file):
    names = file.attrs["sections"]
    return (names.decode() if isinstance(names, bytes) else names).split("\n")


def tasks_of(path):
    """Of each rank, in the order in which they ran."""
    ranks = {}
    with h5py.File(path) as file:
        names, rows = sections_of(file), file["timeline"]
        columns = {key: rows[key][:] for key in ("rank", "step", "section", "phase", "micro_batch", "start_s", "end_s", "wait_s")}
        for i in sorted(range(len(columns["rank"])), key=lambda i: columns["start_s"][i]):
            task = {key: column[i] for key, column in columns.items()}
            ranks.setdefault(int(task["rank"]), []).append({**task, "section": names[task["section"]]})
    return ranks


def ranges_of(path):
    """Every range of the domain "maestro" as the path of those around it and its own name, in the order of their beginnings."""
    opened, found = [], []
    for line in path.read_text().splitlines():
        what, domain, *name = line.split("\t")
        if domain != "maestro":
            continue
        if what == "push":
            opened.append(name[0])
            found.append(tuple(opened))
        else:
            opened.pop()
    assert not opened, f"never closed: {opened}"
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, data):  # noqa: F811
    """A run of 4 ranks with a recorder of ranges, and its log."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "data").symlink_to(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVTX_INJECTION64_PATH", RECORDER)
        patch.setenv("MAESTRO_NVTX_RECORD", str(folder / "ranges"))
        _, log = train(folder, HOSTED, 4, "run.device=cuda")
    return folder, log


def test_a_profiler_sees_sections_phases_and_micro_batches(recorded):
    folder, _ = recorded
    tasks = tasks_of(folder / "runs/0/metrics.h5")
    assert sorted(tasks) == [0, 1, 2, 3]
    for rank in tasks:
        found = ranges_of(folder / f"ranges.{rank}")
        expected = [(t["section"], PHASES[t["phase"]], f"micro-batch {t['micro_batch']}") for t in tasks[rank]]
        assert [r for r in found if len(r) == 3 and r[1] in PHASES] == expected
        ends = [r for r in found if len(r) == 2 and r[1] not in PHASES]
        held = {t["section"] for t in tasks[rank]}
        assert sorted(ends) == sorted((section, phase) for section in held for phase in ("reduce", "update") for _ in range(STEPS))
        edges = [r for r in found if r[-1] == "edge"]
        assert edges and all(len(r) == 4 and r[1] in PHASES for r in edges)
        known = set(expected) | {e[:k] for e in expected for k in (1, 2)} | set(ends) | set(edges)
        assert set(found) == known, set(found) - known


def test_a_profiler_sees_nothing_of_the_cpu(folder, monkeypatch):
    monkeypatch.setenv("NVTX_INJECTION64_PATH", RECORDER)
    monkeypatch.setenv("MAESTRO_NVTX_RECORD", str(folder / "ranges"))
    train(folder, HOSTED, 4, "run.device=cpu")
    assert not any("maestro" in path.read_text() for path in folder.glob("ranges.*"))


def test_tasks_lie_within_their_step_one_after_the_other(recorded):
    folder, log = recorded
    path = folder / "runs/0/metrics.h5"
    with h5py.File(path) as file:
        steps = dict(zip(file["steps/step"][:], file["steps/time_s"][:]))
    for rank, tasks in tasks_of(path).items():
        for before, task in zip(tasks, tasks[1:]):
            assert task["start_s"] - task["wait_s"] >= before["end_s"] - 1e-6
        for step, time_s in steps.items():
            ran = sum(t["end_s"] - t["start_s"] for t in tasks if t["step"] == step)
            assert 0 < ran <= time_s + 0.05, f"rank {rank}, step {step}: {ran} of {time_s} s"
    assert "time per section" in log
