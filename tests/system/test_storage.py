"""Storage that fails, fills up or is slow: what is reported, what is kept, and that slow progress is not taken for a hang."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import h5py
import numpy as np
import pytest
from conftest import BINARY, TWO_RANKS, VLM, mpirun, settings
from launched import ranks_of
from test_faults import set_element, start, wait_for_end
from test_run_directory import AUTO, EVERY, finished, run, tree  # noqa: F401 (fixtures)

HERE = pathlib.Path(__file__).parent
EIO, EACCES = 5, 13


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    """The library that makes calls fail, see fault_shim.c."""
    library = tmp_path_factory.mktemp("shim") / "fault_shim.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / "fault_shim.c"), "-ldl"], check=True)
    return library


def train(workspace, shim, values, *options, expect, timeout=120, **faults):
    """Two ranks on runs/run, with the shim's variables."""
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    for name, value in {"LD_PRELOAD": shim, **{f"SHIM_{key.upper()}": value for key, value in faults.items()}}.items():
        command += ["-x", f"{name}={value}"]
    command += [BINARY, "train", VLM, *options, *settings(["run.output=runs/run", *TWO_RANKS, *values])]
    result = subprocess.run(command, cwd=workspace.path, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    assert result.returncode == expect, f"exit {result.returncode}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
    return result


@pytest.mark.parametrize("calls, number, file", [("read", EIO, "step-000008/language.h5"),
                                                 pytest.param("open", EACCES, "step-000008/vision.h5", marks=pytest.mark.nightly),
                                                 pytest.param("open", EIO, "step-000008/manifest.json", marks=pytest.mark.nightly)])
def test_a_failed_read_is_no_damage(workspace, run, shim, calls, number, file):  # noqa: F811
    before = tree(run)
    result = train(workspace, shim, ["train.steps=10", *EVERY], *AUTO, expect=74, path=file, calls=calls, errno=number)
    assert file in result.stderr and os.strerror(number) in result.stderr, result.stderr
    assert tree(run) == before


def test_a_read_that_fails_once_is_tried_again(workspace, run, shim):  # noqa: F811
    result = train(workspace, shim, ["train.steps=10", *EVERY], *AUTO, expect=0, path="step-000008/language.h5", calls="read",
                   errno=EIO, times=1)
    assert "after step 8" in result.stdout and "damaged" not in result.stdout


def test_a_read_of_samples_that_fails_is_tried_again(workspace, shim):
    """Both ranks fail twice: in the index, or in a sample."""
    train(workspace, shim, ["train.steps=1", "checkpoint.every=0"], expect=0, path="glyphs-train.h5", calls="read", errno=EIO, times=2)


def test_a_failed_write_ends_the_run_and_keeps_what_there_was(workspace, run, shim):  # noqa: F811
    before = {name: hash for name, hash in tree(run).items() if name.startswith("checkpoints/")}
    result = train(workspace, shim, ["train.steps=10", *EVERY], *AUTO, expect=74, path="step-000010.partial/language.h5",
                   calls="write", errno=EIO)
    assert "step-000010.partial/language.h5: cannot be written: Input/output error" in result.stderr, result.stderr
    after = tree(run)
    assert {name: after.get(name) for name in before} == before
    assert workspace.exit_report("run")["code"] == 74
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=10", *EVERY], options=AUTO)
    assert list(workspace.steps("run")["step"]) == list(range(1, 11))


LONG = ["train.steps=100000", "checkpoint.every=10"]  # checkpoints in the background alone


@pytest.mark.parametrize("calls, rank", [("write", 1), *(pytest.param(*case, marks=pytest.mark.nightly) for case in (("sync", 0), ("read", 1), ("open", 1)))])
def test_a_failure_in_the_background_ends_the_run_and_keeps_what_there_was(workspace, run, shim, calls, rank):  # noqa: F811
    """It is thrown between two later steps, on all ranks."""
    before = {name: hash for name, hash in tree(run).items() if name.startswith("checkpoints/")}
    result = train(workspace, shim, LONG, *AUTO, expect=74, path="step-000010.partial/", calls=calls, errno=EIO, rank=rank)
    assert result.stderr.count("step-000010.partial") == 1 and "Input/output error" in result.stderr, result.stderr
    assert {name: hash for name, hash in tree(run).items() if name.startswith("checkpoints/")} == before
    assert workspace.exit_report("run")["code"] == 74 and workspace.exit_report("run")["step"] >= 10
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=11", *EVERY], options=AUTO)
    assert list(workspace.steps("run")["step"]) == list(range(1, 12))


def test_a_checkpoint_in_the_background_is_completed_before_an_error_ends_the_run(workspace, run, shim):  # noqa: F811
    """Step 9 makes weights so large, by their moments, that step 10 is not finite. By then the checkpoint after step 9 is not complete."""
    for norm in ("q_norm", "k_norm"):
        set_element(run / "checkpoints/step-000008", f"adam_m/layers.0.attention.{norm}.weight", ..., 1e30)
    result = train(workspace, shim, ["train.steps=12", "checkpoint.every=1"], *AUTO, expect=79, path="step-000009",
                   calls="sync", sleep_ms=300)
    assert "step 10: " in result.stderr and "not finite" in result.stderr, result.stderr
    assert "step-000009" in [path.name for path in (run / "checkpoints").iterdir()]


def slow(shim, **more):
    """Exports that make a checkpoint take a second or more: each sync in it a part of that."""
    return {"LD_PRELOAD": str(shim), "SHIM_PATH": "checkpoints/step-", "SHIM_CALLS": "sync", "SHIM_SLEEP_MS": "400", **more}


def partial_of(workspace, job, name="run", limit=60):
    """Waits until a checkpoint is under way, and returns its step."""
    end = time.monotonic() + limit
    while not (found := list(workspace.run(name).glob("checkpoints/step-*.partial/*.h5"))):
        assert job.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    return int(found[0].parent.name[5:11])


def test_a_checkpoint_during_a_checkpoint_waits_for_it(workspace, run, shim):  # noqa: F811
    workspace.train(2, VLM, "whole", [*TWO_RANKS, "train.steps=12", *EVERY])
    result = train(workspace, shim, ["train.steps=12", "checkpoint.every=1", "checkpoint.keep=9"], *AUTO, expect=0,
                   path="checkpoints/step-", calls="sync", sleep_ms=100)
    written = [line[-6:] for line in result.stdout.splitlines() if line.startswith("checkpoint runs/run")]
    assert written == ["000009", "000010", "000011", "000012"]
    assert np.array_equal(workspace.losses("run"), workspace.losses("whole"))
    for section in ("vision", "language"):
        whole, here = workspace.checkpoint("whole", 10, section), workspace.checkpoint("run", 10, section)
        for group in whole:
            assert all(np.array_equal(whole[group][name], here[group][name]) for name in whole[group])
    # Each counts the rows up to its step, although later ones were written before it was complete.
    for step in (9, 10, 11):
        with h5py.File(workspace.run("run") / f"checkpoints/step-{step:06d}/train.h5") as file:
            assert file.attrs["step_rows"] == step


def test_a_kill_during_a_checkpoint_in_the_background(workspace, run, shim):  # noqa: F811
    whole = workspace.losses("run")
    job = start(workspace, "run", [*TWO_RANKS, *LONG], *AUTO, ranks=2, exports=slow(shim))
    assert partial_of(workspace, job) == 10
    time.sleep(0.3)
    os.kill(ranks_of(job)[1], signal.SIGKILL)
    wait_for_end(job, 10)
    names = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    assert names == ["step-000006", "step-000008", "step-000010.partial"]
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=9", *EVERY], options=AUTO)
    assert np.array_equal(workspace.losses("run")[:8], whole)
    assert sorted(path.name for path in (run / "checkpoints").glob("step-*")) == ["step-000008", "step-000009"]


def test_a_stop_during_a_checkpoint_waits_for_it(workspace, run, shim):  # noqa: F811
    job = start(workspace, "run", [*TWO_RANKS, *LONG, "checkpoint.keep=9"], *AUTO, ranks=2, exports=slow(shim))
    under_way = partial_of(workspace, job)
    job.send_signal(signal.SIGUSR1)
    wait_for_end(job, 60)
    assert job.returncode == 75, job.stdout.read()
    steps = [int(path.name[5:]) for path in (run / "checkpoints").glob("step-*")]
    assert sorted(steps) == sorted({6, 8, under_way, workspace.exit_report("run")["step"]})
    workspace.train(2, VLM, "run", [*TWO_RANKS, f"train.steps={max(steps) + 1}"], options=AUTO)


def test_a_nan_after_the_copy_leaves_a_complete_checkpoint(workspace, shim):
    """Weights grow ninefold in a step until one overflows, while the checkpoint of the step before is being written."""
    growing = ["optimizer.learning_rate=1", "optimizer.weight_decay=10", "optimizer.warmup_steps=0", "optimizer.decay_steps=0"]
    result = train(workspace, shim, [*growing, "train.steps=200", "checkpoint.every=1"], expect=79, path="checkpoints/step-", calls="sync", sleep_ms=50)
    last = workspace.exit_report("run")["step"]
    assert last > 1 and f"step {last + 1}: " in result.stderr and "finite" in result.stderr, result.stderr
    names = sorted(path.name for path in workspace.run("run").glob("checkpoints/step-*"))
    assert names[-2:] == [f"step-{last - 1:06d}", f"step-{last:06d}"] and len(names) <= 3  # one of lowest loss besides
    assert np.isfinite(workspace.checkpoint("run", last, "language")["weights"]["embedding.weight"]).all()


def test_a_rank_without_room_costs_one_checkpoint(workspace, run, shim):  # noqa: F811
    """Two replicas write the file together; the second one's calls fail."""
    result = train(workspace, shim, ["section.language.colocate_with=vision", "section.vision.layout.dp=2", "section.language.layout.dp=2",
                                     "train.steps=12", *EVERY], *AUTO, expect=0, path="step-000010.partial/language.h5", calls="write", errno=28, rank=1)
    warning = re.search(r"^warning: no checkpoint after step 10: \S*step-000010.partial/language.h5: cannot be written: No space left on device.*$",
                        result.stdout, re.MULTILINE)
    assert warning and "step-000008 is complete" in warning[0] and "MiB are free in runs/run" in warning[0], result.stdout
    assert {path.name for path in (run / "checkpoints").glob("step-*")} >= {"step-000008", "step-000012"}
    assert list(workspace.steps("run")["step"]) == list(range(1, 13))


@pytest.mark.nightly
def test_slow_storage_is_no_hang(workspace, run, shim):  # noqa: F811
    """Every call on a checkpoint takes 0.3 s, all of them far more than the deadline of 3 s."""
    result = train(workspace, shim, ["train.steps=9", "run.timeout_s=3", *EVERY], *AUTO, expect=0, timeout=300, path="checkpoints/step",
                   calls="read,write,sync", sleep_ms=300, times=30)
    assert "after step 8" in result.stdout


@pytest.mark.parametrize("steps", ["10", pytest.param("100000", marks=pytest.mark.nightly)])
def test_a_write_that_never_returns_is_named(workspace, run, shim, steps):  # noqa: F811
    """In the checkpoint at the end, and in one in the background."""
    result = train(workspace, shim, [f"train.steps={steps}", "run.timeout_s=3", *EVERY], *AUTO, expect=76, path="step-000010.partial/language.h5",
                   calls="write", sleep_ms=1000000, rank=1)
    assert "rank 1" in result.stderr and "writing runs/run/checkpoints/step-000010.partial/language.h5" in result.stderr, result.stderr
    report = workspace.exit_report("run")
    assert report["code"] == 76 and report["rank"] == 1 and "language.h5" in report["reason"]


@pytest.fixture
def small_disk(workspace, finished):  # noqa: F811
    """Mounts a small file system on runs/ with a copy of the run; returns a function that fills it up to some free KiB."""
    folder = workspace.path / "runs"
    folder.mkdir()
    size = sum(path.stat().st_size for path in finished.rglob("*")) * 2 + (8 << 20)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no small file system: {made.stderr.strip()}")
    shutil.copytree(finished, folder / "run")

    def leave(kib):
        with open(folder / "filler", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(4096, shutil.disk_usage(folder).free - kib * 1024))

    yield leave
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_costs_checkpoints_and_not_the_run(workspace, small_disk):
    """While it is full, rows of metrics wait, and checkpoints are left out. Once there is room, both go on."""
    job = start(workspace, "run", [*TWO_RANKS, *LONG], *AUTO, ranks=2)

    def wait_for(text):
        end, seen = time.monotonic() + 60, []
        while not seen or text not in seen[-1]:
            seen.append(job.stdout.readline())
            assert seen[-1] and time.monotonic() < end, "".join(seen)
        return seen[-1]

    wait_for("checkpoint runs/run/checkpoints/step-000010")
    small_disk(0)
    assert "MiB are free in runs/run" in wait_for("warning: no checkpoint after step ")
    (workspace.path / "runs/filler").unlink()
    wait_for("checkpoint runs/run/checkpoints/step-")
    job.send_signal(signal.SIGUSR1)
    wait_for_end(job, 60)
    assert job.returncode == 75, job.stdout.read()
    assert list(workspace.steps("run")["step"]) == list(range(1, workspace.exit_report("run")["step"] + 1))
    assert not list(workspace.run("run").glob("checkpoints/*.partial"))


@pytest.mark.nightly
@pytest.mark.parametrize("kib", [64, 0, 8, 512, 2048])
def test_resuming_on_a_nearly_full_disk(workspace, small_disk, kib):
    before = {name: hash for name, hash in tree(workspace.run("run")).items() if name.startswith("checkpoints/")}
    losses = workspace.losses("run")
    small_disk(kib)
    values = settings(["run.output=runs/run", *TWO_RANKS, "train.steps=12", *EVERY])
    result = mpirun(2, "train", VLM, *AUTO, *values, cwd=workspace.path, timeout=120)
    assert result.returncode in (73, 74), result.stderr
    assert "free" in result.stderr and "ignal" not in result.stderr, result.stderr
    assert np.array_equal(workspace.losses("run")[:8], losses), "metrics.h5 can be read"
    assert {name: hash for name, hash in tree(workspace.run("run")).items() if name.startswith("checkpoints/")} == before
    (workspace.path / "runs/filler").unlink()
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=9"], options=AUTO)
    assert np.array_equal(workspace.losses("run")[:8], losses) and len(workspace.losses("run")) == 9

