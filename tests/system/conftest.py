"""Runs the built program under mpirun on small sample files that the data tools make once per session."""

import json
import pathlib
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from built import BINARY, ROOT, data  # noqa: E402, F401  (data is a fixture)

sys.path.insert(0, str(ROOT / "scripts/data"))

VLM = str(ROOT / "inputs/vlm_glyphs.toml")
DISTILL = str(ROOT / "inputs/distill.toml")
TEACHER = str(ROOT / "inputs/teacher.toml")

# The vision-language deck by number of ranks, with a quarter of its samples.
SMALL = "data.global_batch=24"
ONE_RANK = [SMALL, "section.language.colocate_with=vision", "section.language.layout.dp=1"]
TWO_RANKS = [SMALL, "section.language.layout.dp=1"]
FOUR_RANKS = [SMALL]


def mpirun(ranks, *arguments, cwd, timeout=300, exports=()):
    """Runs maestro on `ranks` ranks with the variables `exports`; returns the finished process with stdout and stderr as text."""
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
    command += [word for name, value in dict(exports).items() for word in ("-x", f"{name}={value}")] + [BINARY, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)


def adhash64(data):
    """The hash of a file in a checkpoint, see src/base/adhash.hpp."""
    words = np.frombuffer(data + bytes(-len(data) % 4), "<u4").astype(np.uint64)
    z = words + np.arange(1, len(words) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return int(np.sum(z ^ (z >> np.uint64(31)), dtype=np.uint64))


def publish(checkpoint):
    """Writes the manifest for the files as they are."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for entry in manifest["files"]:
        data = (checkpoint / entry["file"]).read_bytes()
        entry.update(bytes=len(data), adhash64=f"{adhash64(data):016x}")
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def settings(values):
    return [word for value in values for word in ("--set", value)]


class Workspace:
    """A working directory with data/ beside it and runs/ below."""

    def __init__(self, path):
        self.path = path

    def train(self, ranks, deck, name, values=(), *, options=(), expect=0, timeout=300):
        result = mpirun(ranks, "train", deck, *options, *settings([f"run.output=runs/{name}", *values]), cwd=self.path,
                        timeout=timeout)
        assert result.returncode == expect, f"exit {result.returncode}, not {expect}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
        return result

    def run(self, name):
        return self.path / "runs" / name

    def steps(self, name):
        with h5py.File(self.run(name) / "metrics.h5") as file:
            return {key: file["steps"][key][:] for key in file["steps"]}

    def losses(self, name):
        return self.steps(name)["loss"]

    def terms(self, name):
        """{term: values} of the losses of the run's sections together, one for each step."""
        with h5py.File(self.run(name) / "metrics.h5") as file:
            table, steps = {key: file["losses"][key][:] for key in file["losses"]}, file["steps/step"][:]
        rows = {term: table["name"] == term for term in np.unique(table["name"])}
        return {term.decode(): np.array([table["value"][here & (table["step"] == step)].sum() for step in steps])
                for term, here in rows.items()}

    def checkpoint(self, name, step, section):
        """{group: {parameter: array}} of a section file, groups weights, adam_m and adam_v."""
        found = {}

        def visit(path, item):
            if isinstance(item, h5py.Dataset):
                group, _, parameter = path.partition("/")
                found.setdefault(group, {})[parameter] = item[...]

        with h5py.File(self.run(name) / f"checkpoints/step-{step:06d}/{section}.h5") as file:
            file.visititems(visit)
        return found

    def wait_for_metrics(self, name, job, limit=90):
        """Until the run has begun its steps."""
        end = time.monotonic() + limit
        while not (self.run(name) / "metrics.h5").exists():
            assert job.poll() is None and time.monotonic() < end
            time.sleep(0.1)

    def exit_report(self, name):
        return json.loads((self.run(name) / "exit.json").read_text())


@pytest.fixture
def workspace(tmp_path, data):
    (tmp_path / "data").symlink_to(data)
    return Workspace(tmp_path)


def assert_resume_is_bit_for_bit(workspace, ranks, values, steps):
    """A run that ends and is resumed in the middle of `steps` equals runs/whole, which goes through."""
    workspace.train(ranks, VLM, "whole", [f"train.steps={steps}", *values])
    workspace.train(ranks, VLM, "cut", [f"train.steps={steps // 2}", *values])
    workspace.train(ranks, VLM, "cut", [f"train.steps={steps}", *values], options=["--resume", "auto"])
    assert np.array_equal(workspace.losses("whole"), workspace.losses("cut"))
    whole, cut = workspace.terms("whole"), workspace.terms("cut")
    assert whole.keys() == cut.keys() and all(np.array_equal(whole[term], cut[term]) for term in whole)
    for section in ("vision", "language"):
        whole, cut = workspace.checkpoint("whole", steps, section), workspace.checkpoint("cut", steps, section)
        for group in ("weights", "adam_m", "adam_v"):
            for name in whole[group]:
                assert np.array_equal(whole[group][name], cut[group][name]), f"{section} {group}/{name}"


def relative(a, b):
    """Largest relative difference of two series of losses."""
    return float(np.max(np.abs(a - b) / np.abs(b)))
