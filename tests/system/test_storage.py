"""Storage that fails, fills up or is slow: what is reported, what is kept, and that slow progress is not taken for a hang."""

import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
from conftest import BINARY, TWO_RANKS, VLM, mpirun, settings
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


def test_a_rank_that_alone_cannot_write_its_part_ends_all(workspace, shim):
    """Two replicas write the file together; the second one's calls fail."""
    result = train(workspace, shim, ["section.language.colocate_with=vision", "section.vision.layout.dp=2", "section.language.layout.dp=2",
                                     "train.steps=2"], expect=74, path="step-000002.partial/language.h5", calls="write", errno=28, rank=1)
    assert "step-000002.partial/language.h5: cannot be written: No space left on device" in result.stderr, result.stderr
    assert not (workspace.run("run") / "checkpoints/step-000002").exists()
    assert workspace.exit_report("run")["code"] == 74


@pytest.mark.nightly
def test_slow_storage_is_no_hang(workspace, run, shim):  # noqa: F811
    """Every call on a checkpoint takes 0.3 s, all of them far more than the deadline of 3 s."""
    result = train(workspace, shim, ["train.steps=9", "run.timeout_s=3", *EVERY], *AUTO, expect=0, timeout=300, path="checkpoints/step",
                   calls="read,write,sync", sleep_ms=300, times=30)
    assert "after step 8" in result.stdout


def test_a_write_that_never_returns_is_named(workspace, run, shim):  # noqa: F811
    result = train(workspace, shim, ["train.steps=10", "run.timeout_s=3", *EVERY], *AUTO, expect=76, path="step-000010.partial/language.h5",
                   calls="write", sleep_ms=1000000, rank=1)
    assert "rank 1 " in result.stderr and "writing runs/run/checkpoints/step-000010.partial/language.h5" in result.stderr, result.stderr
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


@pytest.mark.parametrize("kib", [64, *(pytest.param(kib, marks=pytest.mark.nightly) for kib in (0, 8, 512, 2048))])
def test_resuming_on_a_nearly_full_disk(workspace, small_disk, kib):
    before = {name: hash for name, hash in tree(workspace.run("run")).items() if name.startswith("checkpoints/")}
    losses = workspace.losses("run")
    small_disk(kib)
    values = settings(["run.output=runs/run", *TWO_RANKS, "train.steps=12", *EVERY])
    result = mpirun(2, "train", VLM, *AUTO, *values, cwd=workspace.path, timeout=120)
    assert result.returncode in (73, 74), result.stderr
    assert "free" in result.stderr and "ignal" not in result.stderr, result.stderr
    assert np.array_equal(workspace.losses("run")[:8], losses), "metrics.h5 can be read"
    after = tree(workspace.run("run"))
    assert {name: after.get(name) for name in before} == before
    (workspace.path / "runs/filler").unlink()
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=9"], options=AUTO)
    assert np.array_equal(workspace.losses("run")[:8], losses) and len(workspace.losses("run")) == 9

