"""What a start finds in its run directory: who owns it, what may be continued, and what is never touched."""

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import time

import h5py
import numpy as np
import pytest
from conftest import FOUR_RANKS, ROOT, TWO_RANKS, VLM, Workspace, mpirun, publish, settings
from launched import ranks_of
from test_faults import start, wait_for_end

EVERY = ["checkpoint.every=2", "checkpoint.keep=2"]
AUTO = ["--resume", "auto"]


def tree(folder):
    """{name: contents} of a folder."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def names(workspace, run):
    return sorted(path.name for path in (workspace.run(run) / "checkpoints").iterdir())


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data):
    """A run of eight steps, with the checkpoints after steps 6 and 8, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "data").symlink_to(data)
    made = Workspace(folder)
    made.train(2, VLM, "run", [*TWO_RANKS, "train.steps=8", *EVERY])
    return made.run("run")


@pytest.fixture
def run(workspace, finished):
    """A copy of it as runs/run."""
    workspace.run("run").parent.mkdir()
    shutil.copytree(finished, workspace.run("run"))
    return workspace.run("run")


def test_a_run_whose_checkpoints_are_all_damaged_is_left_as_it_is(workspace, run):
    for step in (6, 8):
        file = run / f"checkpoints/step-{step:06d}/language.h5"
        os.truncate(file, file.stat().st_size // 2)
    before = tree(run)
    result = workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=4", *EVERY], options=AUTO, expect=65)
    for text in ("step-000008/language.h5", "step-000006/language.h5", "bytes, the manifest says", "Nothing was changed"):
        assert text in result.stderr, result.stderr
    assert tree(run) == before


def test_a_run_whose_checkpoints_are_gone_is_left_as_it_is(workspace, run):
    for path in (run / "checkpoints").glob("step-*"):
        shutil.rmtree(path)
    before = tree(run)
    assert list(before) and "checkpoints/LATEST" in before
    result = workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=4", *EVERY], options=AUTO, expect=65)
    assert "cannot be continued" in result.stderr
    assert tree(run) == before


def test_a_run_without_a_whole_checkpoint_starts_over_and_loses_nothing(workspace, run):
    """As after a kill before the first checkpoint."""
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints/step-000002.partial").mkdir(parents=True)
    before = workspace.losses("run")
    result = workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=2", *EVERY], options=AUTO)
    assert "before its first checkpoint" in result.stdout and "a fresh start" in result.stdout
    assert list(workspace.steps("run")["step"]) == [1, 2]
    with h5py.File(run / "metrics.h5.abandoned") as file:
        assert np.array_equal(file["steps/loss"][:], before)


def test_a_damaged_newest_checkpoint_is_named_and_set_aside_when_passed(workspace, run):
    whole = workspace.losses("run")
    damage(run / "checkpoints/step-000008/vision.h5")
    result = workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=7", *EVERY], options=AUTO)
    for text in ("damaged: ", "step-000008/vision.h5: its checksum", "step-000006 is used instead"):
        assert text in result.stdout and text in (run / "log.txt").read_text(), result.stdout
    assert names(workspace, "run") == ["LATEST", "step-000006", "step-000007", "step-000008"]
    assert (run / "checkpoints/LATEST").read_text() == "step-000007\n"
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=7", *EVERY], options=AUTO)
    assert "step-000008" in names(workspace, "run"), "nothing was to be done, and nothing passed it"
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=10", *EVERY], options=AUTO)
    assert set(names(workspace, "run")) - {"step-000007"} == {"LATEST", "step-000008", "step-000008.damaged", "step-000010"}
    assert np.array_equal(workspace.losses("run")[:8], whole)


def test_damaged_metrics_cost_rows_and_no_weights(workspace, run):
    os.truncate(run / "metrics.h5", 3000)
    result = workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=10", *EVERY], options=AUTO)
    assert "rows up to step 8 are lost" in result.stdout
    assert list(workspace.steps("run")["step"]) == [9, 10]
    assert (run / "metrics.h5.damaged").stat().st_size == 3000


def test_a_checkpoint_of_a_run_without_metrics_begins_new_rows(workspace, run):
    (run / "metrics.h5").unlink()
    result = workspace.train(2, VLM, "other", [*TWO_RANKS, "train.steps=9"], options=["--resume", "runs/run"])
    assert "metrics.h5 begins after step 8" in result.stdout
    assert list(workspace.steps("other")["step"]) == [9]


def test_a_key_that_the_checkpoint_does_not_know_is_its_default(workspace, run):
    checkpoint = run / "checkpoints/step-000008"
    with h5py.File(checkpoint / "train.h5", "r+") as file:
        stored = json.loads(file.attrs["settings"])
        for key in ("optimizer.eps", "model.glyph-language.rope_theta"):
            stored.pop(key)
        stored["optimizer.momentum"] = "0.9"  # of a build that knew it
        defaults = {**json.loads(file.attrs["defaults"]), "optimizer.momentum": "0.9"}
        for name, value in (("settings", stored), ("defaults", defaults)):
            del file.attrs[name]
            file.attrs[name] = np.bytes_(json.dumps(value).encode() + b"\0")
    publish(checkpoint)
    result = workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=9", "optimizer.eps=1e-6"], options=AUTO, expect=78)
    assert "optimizer.eps: 1e-06 now, not there in the checkpoint" in result.stderr
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=9"], options=AUTO)
    assert list(workspace.steps("run")["step"])[-1] == 9


def test_exit_json_is_of_this_start_or_absent(workspace, run):
    assert workspace.exit_report("run")["code"] == 0
    (workspace.path / "data").unlink()  # the start fails after the run is its own
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=9"], options=AUTO, expect=66)
    assert workspace.exit_report("run")["code"] == 66


def test_a_kill_leaves_no_exit_json(workspace, run):
    job = start(workspace, "run", [*FOUR_RANKS, "train.steps=100000", *EVERY], *AUTO)
    end = time.monotonic() + 60
    while "step-000010" not in names(workspace, "run"):
        assert job.poll() is None and time.monotonic() < end, job.stdout.read()
        time.sleep(0.05)
    assert not (run / "exit.json").exists()
    for pid in ranks_of(job).values():
        os.kill(pid, signal.SIGKILL)
    wait_for_end(job, 20)
    assert not (run / "exit.json").exists()


@pytest.mark.parametrize("options", [[], AUTO])
def test_a_second_start_ends_at_once_and_harms_nothing(workspace, run, options):
    first = start(workspace, "run", [*FOUR_RANKS, "train.steps=100000", *EVERY], *AUTO)
    end = time.monotonic() + 60
    while "step-000010" not in names(workspace, "run"):
        assert first.poll() is None and time.monotonic() < end, first.stdout.read()
        time.sleep(0.05)
    begin = time.monotonic()
    second = workspace.train(4, VLM, "run", [*FOUR_RANKS, "train.steps=100000", *EVERY], options=options, expect=73)
    assert time.monotonic() - begin < 20
    assert f"in use by process {ranks_of(first)[0]} on " in second.stderr, second.stderr
    first.send_signal(signal.SIGUSR1)
    wait_for_end(first, 40)
    assert first.returncode == 75, first.stdout.read()
    report = workspace.exit_report("run")
    assert report["code"] == 75
    assert list(workspace.steps("run")["step"]) == list(range(1, report["step"] + 1))


def test_two_fresh_starts_at_the_same_time(workspace):
    jobs = [start(workspace, "new", [*FOUR_RANKS, "train.steps=30", "checkpoint.every=10"]) for _ in range(2)]
    outputs = [job.communicate(timeout=120)[0] for job in jobs]
    assert sorted(job.returncode for job in jobs) == [0, 73], outputs
    assert list(workspace.steps("new")["step"]) == list(range(1, 31))
    assert workspace.exit_report("new")["code"] == 0


def test_an_ordered_stop_saves_whatever_the_deck_says(workspace):
    values = [*FOUR_RANKS, "train.steps=100000", "checkpoint.every=0"]
    job = start(workspace, "run", values)
    end = time.monotonic() + 60
    while not (workspace.run("run") / "metrics.h5").exists():
        assert job.poll() is None and time.monotonic() < end
        time.sleep(0.1)
    job.send_signal(signal.SIGUSR1)
    wait_for_end(job, 30)
    report = workspace.exit_report("run")
    assert job.returncode == 75 and report["code"] == 75
    assert names(workspace, "run") == ["LATEST", f"step-{report['step']:06d}"]
    values = [*FOUR_RANKS, f"train.steps={report['step'] + 1}", "checkpoint.every=0"]
    assert "resumed from" in workspace.train(4, VLM, "run", values, options=AUTO).stdout


def test_a_run_that_diverges_keeps_its_best_checkpoint_and_says_so(workspace):
    """Once, in the log: the checkpoint is among the newest when it is found to be the best. Later than in the first steps, in which the
    loss only grows, rounding decides which losses are low by chance."""
    values = [*TWO_RANKS, "train.steps=6", "checkpoint.every=1", "optimizer.learning_rate=1", "optimizer.warmup_steps=0"]
    log = workspace.train(2, VLM, "run", values).stdout
    noted = re.findall(r"step-(\d+) stays besides the newest 2", log)
    assert noted and len(set(noted)) == len(noted) and names(workspace, "run") == ["LATEST", f"step-{noted[-1]}", "step-000005", "step-000006"]


def test_a_dry_run_lists_every_rank_and_leaves_nothing(workspace):
    def places(ranks, *values):
        result = mpirun(ranks, "train", VLM, "--dry-run", *settings(["run.output=runs/dry", *values]), cwd=workspace.path)
        assert result.returncode == 0 and "nothing was trained" in result.stdout, result.stderr
        return re.findall(r"^ +(\d*) +(?:[\d.]+ MiB +(\S+) +)?(vision|language) +(\d of \d)$", result.stdout, re.MULTILINE)

    host = socket.gethostname()
    expected = [("0", host, "vision", "0 of 1"), *((str(r), host, "language", f"{r - 1} of 3") for r in (1, 2, 3))]
    assert places(4) == expected
    assert places(1) == [(rank, "-", section, replica) for rank, _, section, replica in expected]  # as if on four
    both = places(2, "section.vision.colocate_with=language", "section.vision.layout.dp=2", "section.language.layout.dp=2")
    assert both == [("0", host, "vision", "0 of 2"), ("", "", "language", "0 of 2"),
                    ("1", host, "vision", "1 of 2"), ("", "", "language", "1 of 2")]
    assert not (workspace.path / "runs").exists()
    places(4, "run.output=runs/dry/../odd/.")
    assert not (workspace.path / "runs").exists()
    # Where a run could not write, or holds one, a dry run says so as training would.
    (workspace.path / "file").write_text("")
    result = mpirun(1, "train", VLM, "--dry-run", "--set", "run.output=file/run", cwd=workspace.path)
    assert result.returncode == 73 and "file/run: cannot write there (Not a directory)" in result.stderr, result.stderr


def test_a_dry_run_for_another_machine_is_what_training_finds(workspace, monkeypatch):
    """The same memory as the ranks of this machine, and the checkpoints that are then written."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = (ROOT / "inputs/clusters/this_machine.toml").read_text()
    (workspace.path / "cluster.toml").write_text(text.replace("ranks_per_node = 2", "ranks_per_node = 4"))

    def dry(ranks, *options, expect=0, values=()):
        values = [*FOUR_RANKS, "run.output=runs/run", "train.steps=1", "checkpoint.every=1", *values]
        result = mpirun(ranks, "train", VLM, "--dry-run", *options, *settings(values), cwd=workspace.path)
        assert result.returncode == expect, result.stderr
        return json.loads(result.stdout.splitlines()[-1]) if expect in (0, 80) else result.stderr

    here, there = dry(4, "--json"), dry(1, "--json", "--cluster", "cluster.toml")
    for name in ("vision", "language"):
        for key in ("memory", "memory_bytes", "window", "fullest_rank", "checkpoint_bytes"):
            assert here["sections"][name][key] == there["sections"][name][key], (name, key)
        assert sum(there["sections"][name]["memory"].values()) == pytest.approx(there["sections"][name]["memory_bytes"])
    assert [row["memory_bytes"] for row in here["placement"]] == [row["memory_bytes"] for row in there["placement"]]
    assert there["fits"] and "step_s" in there and "step_s" not in here
    # What does not fit is told and refused, by --memory too.
    need = max(row["memory_bytes"] for row in there["placement"])
    small = dry(1, "--json", "--memory", str(int(need) - 1), expect=80)
    assert not small["fits"] and "MiB are free there" in small["shortage"] and "step_s" not in small
    assert dry(1, "--json", "--memory", str(int(need) + 1))["fits"]
    workspace.train(4, VLM, "run", [*FOUR_RANKS, "train.steps=1", "checkpoint.every=1"])
    files = [path for path in (workspace.run("run") / "checkpoints/step-000001").iterdir() if path.suffix == ".h5"]
    assert sum(path.stat().st_size for path in files) == pytest.approx(there["checkpoint_bytes"], abs=200)  # paths in the deck's settings
    assert (there["checkpoints"], there["disk_bytes"]) == (1, there["checkpoint_bytes"])
    assert "holds a run already" in dry(1, "--json", "--cluster", "cluster.toml", expect=73)
