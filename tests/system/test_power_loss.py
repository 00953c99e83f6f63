"""Loss of power: from every state that POSIX lets a disk be in at sampled moments, a run goes on as if nothing had happened."""

import json
import pathlib
import random
import re
import shutil
import subprocess

import numpy as np
import pytest
from conftest import BINARY, TWO_RANKS, VLM, adhash64, settings
from power_loss import RENAME, SYNC_BEGIN, SYNC_END, Disk, read_records
from test_run_directory import AUTO, EVERY, finished, names, run  # noqa: F401 (fixtures)

HERE = pathlib.Path(__file__).parent
STEPS = 14  # after the eight of the fixture: two checkpoints in the background, and the one at the end


@pytest.fixture
def recorded(workspace, run, tmp_path_factory):  # noqa: F811
    """The directory before, the records of a run that goes on in it, and the losses of the whole."""
    folder = tmp_path_factory.mktemp("recorded")
    library = folder / "record_shim.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / "record_shim.c"), "-ldl"], check=True)
    shutil.copytree(run, folder / "before")
    exports = {"LD_PRELOAD": library, "SHIM_ROOT": run, "SHIM_RECORD": folder / "log"}
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", *(word for item in exports.items() for word in ("-x", "{}={}".format(*item))), "-n", "2",
               BINARY, "train", VLM, *AUTO, *settings(["run.output=runs/run", *TWO_RANKS, f"train.steps={STEPS}", *EVERY])]
    subprocess.run(command, cwd=workspace.path, check=True, capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
    return folder, read_records(folder / "log"), workspace.losses("run")


def moments_of(records, count, rng):
    """Record numbers: around every change of a checkpoint's name, where most can go wrong, then anywhere."""
    renames = [i for i, record in enumerate(records) if record.kind == RENAME and "step-" in record.other]
    near = [max(0, i + shift) for i in renames for shift in (-3, 0, 1, 2, 4)]
    rng.shuffle(near)
    return [*near[: count // 2], *(rng.randrange(len(records)) for _ in range(count - min(count // 2, len(near))))]


def promised(records):
    """The newest checkpoint whose name was synced."""
    named, newest = {}, 8
    for record in records:
        if record.kind == RENAME and (found := re.search(r"checkpoints/step-(\d{6})$", record.other)):
            named[int(found[1])] = False
        if record.kind == SYNC_END and record.path.endswith("/checkpoints"):
            newest = max([newest, *named])
    return newest


def is_whole(checkpoint):
    if not (checkpoint / "manifest.json").exists():
        return False
    text = (checkpoint / "manifest.json").read_text()
    return text != "" and all((checkpoint / entry["file"]).exists() and f"{adhash64((checkpoint / entry['file']).read_bytes()):016x}" == entry["adhash64"]
                              for entry in json.loads(text)["files"])


def test_each_sync_is_needed(run, recorded, tmp_path):  # noqa: F811
    """Without what it alone keeps, the checkpoint is lost: these are the syncs, and the states would tell if one were forgotten."""
    folder, records, _ = recorded
    last = f"step-{STEPS:06d}"
    forgotten = {"nothing": "none", "files of sections": r"\.partial/\w+\.h5$", "the manifest": r"manifest\.json\.partial$",
                 "names in the checkpoint": r"step-\d+\.partial$", "the name of the checkpoint": r"checkpoints$"}
    for number, (what, pattern) in enumerate(forgotten.items()):
        disk = Disk(folder / "before")
        disk.prefix = str(run)
        for record in records:
            if record.kind not in (SYNC_BEGIN, SYNC_END) or not re.search(pattern, record.path):
                disk.follow(record)
        state = tmp_path / f"state-{number}"
        disk.write(state, lambda: False)
        assert is_whole(state / "checkpoints" / last) == (what == "nothing"), f"syncs forgotten: {what}"


def test_what_has_the_name_of_a_checkpoint_is_whole(run, recorded, tmp_path):  # noqa: F811
    """The disk may keep a new name at once, and nothing else that is not synced."""
    folder, records, _ = recorded
    disk, number = Disk(folder / "before"), 0
    disk.prefix = str(run)
    for record in records:
        disk.follow(record)
        if record.kind != RENAME or not re.search(r"checkpoints/step-\d+$", record.other):
            continue
        state, number = tmp_path / f"state-{number}", number + 1
        disk.settle(str(pathlib.Path(record.other).parent))
        disk.write(state, lambda: False)
        assert is_whole(state / "checkpoints" / pathlib.Path(record.other).name), "a checkpoint got its name before its contents were synced"
    assert number == 3


@pytest.mark.parametrize("count", [5, pytest.param(60, marks=pytest.mark.nightly)])
def test_every_state_that_a_loss_of_power_leaves_goes_on(workspace, run, recorded, count):  # noqa: F811
    folder, records, whole = recorded
    assert sum(record.kind == RENAME and re.search(r"step-\d{6}$", record.other) is not None for record in records) == 3
    rng = random.Random(count)
    for trial, moment in enumerate(moments_of(records, count, rng)):
        disk = Disk(folder / "before")
        disk.prefix = str(run)
        for record in records[:moment]:
            disk.follow(record)
        share = (0, 1, 0.5, 0.9)[trial % 4]  # of the unsynced changes that are there
        shutil.rmtree(run)
        disk.write(run, lambda: rng.random() < share)
        there = names(workspace, "run")
        result = workspace.train(2, VLM, "run", [*TWO_RANKS, f"train.steps={STEPS}", *EVERY], options=AUTO)
        from_step = int(re.search(r"resumed from .* after step (\d+)", result.stdout)[1])
        assert from_step >= promised(records[:moment]), f"moment {moment}, share {share}: {there}\n{result.stdout}"
        rows = workspace.steps("run")  # those up to the checkpoint may be lost, which the log says
        assert np.array_equal(rows["loss"], whole[rows["step"] - 1]) and rows["step"][-1] == STEPS
        assert len(rows["step"]) == STEPS or "are lost" in result.stdout
