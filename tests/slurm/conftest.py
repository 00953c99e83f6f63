"""Submits the scripts of scripts/slurm to the Slurm that cluster.py has started."""

import json
import os
import pathlib
import subprocess
import sys
import time

import h5py
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from built import BINARY, ROOT, data  # noqa: E402, F401  (data is a fixture)

DECK = ROOT / "inputs/vlm_glyphs.toml"
CPUS = ROOT / "inputs/clusters/this_machine.toml"
SCRIPTS = ROOT / "scripts/slurm"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}


def slurm(*command):
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, f"{command}: {result.stderr}"
    return result.stdout


class Job:
    def __init__(self, number, log, run):
        self.number, self.log_file, self.run = number, log, run

    def field(self, name):
        words = slurm("scontrol", "show", "job", "--oneliner", self.number).split()
        return next(word.partition("=")[2] for word in words if word.startswith(name + "="))

    def log(self):
        return self.log_file.read_text() if self.log_file.exists() else ""

    def wait(self, what, ready, limit):
        end = time.monotonic() + limit
        while not ready():
            state = self.field("JobState")
            assert time.monotonic() < end, f"job {self.number} ({state}): no {what} in {limit} s\n{self.log()[-3000:]}"
            time.sleep(0.2)

    def wait_for_end(self, limit=60):
        """The final state and the batch script's exit code."""
        self.wait("end", lambda: self.field("JobState") in ENDED, limit)
        return self.field("JobState"), int(self.field("ExitCode").partition(":")[0])

    def wait_for_steps(self):
        self.wait("step", lambda: self.steps() > 0, 60)

    def steps(self):
        """How many steps the run has recorded: 0 while it holds the lock of the file to append some."""
        if not (self.run / "metrics.h5").exists():
            return 0
        try:
            with h5py.File(self.run / "metrics.h5") as file:
                return len(file["steps/step"])
        except BlockingIOError:
            return 0

    def losses(self):
        with h5py.File(self.run / "metrics.h5") as file:
            assert list(file["steps/step"]) == list(range(1, len(file["steps/step"]) + 1))
            return file["steps/loss"][:]

    def exit_report(self):
        return json.loads((self.run / "exit.json").read_text())

    def checkpoints(self):
        return sorted(int(path.name[5:]) for path in self.run.glob("checkpoints/step-??????"))

    def processes(self):
        """Command lines of the job's ranks that are alive."""
        lines = []
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.append(entry.read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return [line for line in lines if line.startswith(BINARY) and str(self.run) in line]


class Queue:
    """Jobs of one test, with the test's folder as their working directory."""

    def __init__(self, folder):
        self.folder, self.numbers = folder, []

    def submit(self, script, deck, *arguments, name="run", ranks=4, options=()):
        log = self.folder / f"{name}-{script}.log"
        tasks = [f"--ntasks={ranks}"] if ranks else []
        output = slurm("sbatch", "--parsable", *tasks, f"--output={log}", f"--chdir={self.folder}", *options,
                       SCRIPTS / f"{script}.sbatch", deck, *arguments)
        self.numbers.append(output.strip())
        return Job(output.strip(), log, self.folder / "runs" / name)

    def train(self, script, deck, *values, name="run", options=()):
        """Ends by itself after a while, whatever happens to the test."""
        values = [f"run.output={self.folder}/runs/{name}", "checkpoint.every=1000", *values]
        settings = [word for value in values for word in ("--set", value)]
        return self.submit(script, deck, "--max-hours", "0.03", *settings, name=name, options=options)

    def train_planned(self, *values, ranks=4, cluster=CPUS, options=()):
        """Trains runs/run on a plan for the job's ranks. Fixed keys make the search short."""
        values = ["data.global_batch=24", "checkpoint.every=1000", *values]
        settings = [word for value in values for word in ("--set", value)]
        fixed = [word for section in ("vision", "language") for key in ("micro_batch", "layout.tp", "layout.cp", "layout.pp", "recompute")
                 for word in ("--fix", f"section.{section}.{key}")]
        return self.submit("train_planned", DECK, cluster, "runs/run", *settings, *fixed, ranks=ranks, options=options)

    def clear(self):
        slurm("scancel", "--quiet", *self.numbers)
        end = time.monotonic() + 60
        while slurm("squeue", "--noheader") and time.monotonic() < end:
            time.sleep(0.2)


@pytest.fixture
def queue(tmp_path, data, monkeypatch):
    """sbatch hands this environment on; mpirun refuses root, which a private Slurm is run by, without being told twice."""
    if "maestro-slurm" not in os.environ.get("SLURM_CONF", ""):
        pytest.skip("start by: cluster.py python3 -m pytest tests/slurm")
    monkeypatch.setenv("MAESTRO", BINARY)
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    (tmp_path / "data").symlink_to(data)
    queue = Queue(tmp_path)
    yield queue
    queue.clear()
