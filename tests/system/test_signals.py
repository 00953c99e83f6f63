"""Signals to stop: training stops after a step; all else ends at once, says so, and leaves nothing half written."""

import os
import shutil
import signal
import subprocess
import time

import pytest
from conftest import BINARY, ROOT, TWO_RANKS, VLM, Workspace, settings
from launched import ranks_of
from sample_file import Sample, SampleWriter
from test_faults import wait_for_end
from test_folders import DECK, FAMILIES
from test_run_directory import AUTO, EVERY, finished, run, tree  # noqa: F401 (fixtures)
from test_storage import shim  # noqa: F401 (a fixture)


def launch(workspace, ranks, *arguments, program=(BINARY,), **faults):
    """`faults`: the variables of fault_shim.c."""
    shim = [word for key, value in faults.items() for word in ("-x", f"{'LD_PRELOAD' if key == 'shim' else 'SHIM_' + key.upper()}={value}")]
    return subprocess.Popen(["mpirun", "--allow-run-as-root", "--oversubscribe", *shim, "-n", str(ranks), *program, *arguments],
                            cwd=workspace.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)  # fmt: skip


def wait_for(job, ready, limit=60):
    end = time.monotonic() + limit
    while not ready():
        assert job.poll() is None and time.monotonic() < end, job.communicate()
        time.sleep(0.02)


def signalled(job, number, rank=None):
    """Signals a rank, or mpirun. Returns the exit code and the program's last line."""
    os.kill(job.pid if rank is None else ranks_of(job)[rank], number)
    try:
        wait_for_end(job, 15)
    except subprocess.TimeoutExpired:
        for pid in ranks_of(job).values():
            os.kill(pid, signal.SIGKILL)
        raise AssertionError("the signal has not ended the job") from None
    output, errors = job.communicate()
    lines = [line for line in errors.splitlines() if line.startswith("maestro: ")]
    assert len(lines) == 1, output + errors
    return job.returncode, lines[0]


def slow(shim, file, ms):  # noqa: F811
    return {"shim": shim, "path": file, "calls": "read", "sleep_ms": ms}


@pytest.mark.parametrize(("resumes", "source"), [(False, "auto"), (False, "runs/run"), (True, "auto")])
def test_a_signal_before_the_first_step_ends_all_ranks(workspace, run, shim, resumes, source):  # noqa: F811
    name = "run" if resumes else "new"
    job = launch(workspace, 2, "train", VLM, "--resume", source, *settings([f"run.output=runs/{name}", *TWO_RANKS]), **slow(shim, "glyphs-train.h5", 1000))
    wait_for(job, (workspace.run(name) / ".lock").exists)
    time.sleep(0.5)
    code, line = signalled(job, signal.SIGTERM if resumes else signal.SIGINT, rank=0 if resumes else 1)
    assert "training has not begun" in line
    if resumes:
        assert code == 75 and line.endswith("SIGTERM; training has not begun; continue with --resume auto")
        assert workspace.exit_report(name)["code"] == 75
    else:
        assert code == 128 + signal.SIGINT and not workspace.run(name).exists()


def test_an_evaluation_ends_at_once_and_leaves_the_run_alone(workspace, run, shim):  # noqa: F811
    before = tree(run)
    job = launch(workspace, 2, "evaluate", VLM, "--checkpoint", "runs/run", *settings(TWO_RANKS), keep_signals=1, **slow(shim, "glyphs-validation.h5", 400))
    wait_for(job, lambda: len(ranks_of(job)) == 2)
    time.sleep(2)
    code, line = signalled(job, signal.SIGHUP, rank=1)
    assert code == 128 + signal.SIGHUP and "rank 1 " in line and line.endswith("SIGHUP; the evaluation is not complete")
    assert tree(run) == before


def test_a_simulation_ends_at_once_but_not_by_a_hangup_under_nohup(workspace, shim):  # noqa: F811
    cluster = str(ROOT / "inputs/clusters/h100.toml")
    job = launch(workspace, 1, "simulate", VLM, "--cluster", cluster, *settings(TWO_RANKS), program=("nohup", BINARY), **slow(shim, "glyphs-train.h5", 1000))
    wait_for(job, lambda: len(ranks_of(job)) == 1)
    time.sleep(1)
    os.kill(ranks_of(job)[0], signal.SIGHUP)
    time.sleep(1)
    assert job.poll() is None
    code, line = signalled(job, signal.SIGTERM, rank=0)
    assert code == 128 + signal.SIGTERM and line.endswith("the simulation: stopped by SIGTERM; the command is not complete")


def test_an_interrupt_within_a_long_step_says_what_is_kept(workspace, run, shim):  # noqa: F811
    job = launch(workspace, 2, "train", VLM, *AUTO, *settings(["run.output=runs/run", *TWO_RANKS, "train.steps=100", *EVERY]),
                 **slow(shim, "glyphs-train.h5", 180))  # fmt: skip
    wait_for(job, lambda: "resumed from" in (run / "log.txt").read_text())
    time.sleep(0.5)
    code, line = signalled(job, signal.SIGINT)
    assert code != 0 and "SIGTERM in step 9: " in line and "mpirun waits one second" in line
    assert "The newest whole checkpoint is runs/run/checkpoints/step-000008" in line
    report = workspace.exit_report("run")
    assert report["ended"] is False and report["code"] == 128 + signal.SIGTERM and line.endswith(report["reason"])


def test_a_run_that_saves_nothing_is_not_asked_to_stop_in_order(workspace):
    job = launch(workspace, 2, "train", VLM, *settings(["run.output=runs/run", *TWO_RANKS, "run.precision=fp64", "train.steps=100000", "checkpoint.every=0"]))
    wait_for(job, (workspace.run("run") / "metrics.h5").exists)
    time.sleep(0.5)
    code, line = signalled(job, signal.SIGUSR1)
    assert code == 128 + signal.SIGUSR1 and "it saves nothing to continue from" in line
    assert workspace.exit_report("run")["code"] == code


def test_an_export_that_is_cut_leaves_nothing(tmp_path, shim):  # noqa: F811
    space = Workspace(tmp_path)
    shutil.copytree(FAMILIES / "llama", space.path / "model")
    (space.path / "deck.toml").write_text(DECK)
    writer = SampleWriter(space.path / "samples.h5", vocabulary=48, marker=47)
    for _ in range(3):
        sample = Sample()
        sample.add([1], weight=0.0)
        sample.add([7] * 8)
        writer.add(sample)
    writer.close()
    space.train(1, "deck.toml", "run", ["run.device=cpu", "train.steps=1"])
    job = launch(space, 2, "export", "runs/run", "--to", "exported", shim=shim, path="exported/model", calls="write", sleep_ms=1000)
    wait_for(job, (space.path / "exported/model.safetensors.partial").exists)
    code, line = signalled(job, signal.SIGTERM)
    assert "the export is not complete" in line
    assert not (space.path / "exported").exists()
