"""The scripts of scripts/slurm: to the end, across the wall time, cancelled."""

import json
import re

import numpy as np
import pytest
from conftest import CPUS, DECK, SCRIPTS, slurm

TRAIN = ["train", "train_srun"]
FOREVER = "train.steps=100000"


def test_train_and_evaluate(queue):
    jobs = []
    for script in TRAIN:
        job = queue.train(script, DECK, "train.steps=8", name=script)
        assert job.wait_for_end() == ("COMPLETED", 0), job.log()
        assert job.exit_report()["code"] == 0 and job.checkpoints() == [8]
        jobs.append(job)
    assert len(jobs[0].losses()) == 8
    assert np.allclose(jobs[0].losses(), jobs[1].losses(), rtol=1e-5, atol=0)

    evaluation = queue.submit("evaluate", DECK, "--checkpoint", jobs[0].run, ranks=2)
    assert evaluation.wait_for_end() == ("COMPLETED", 0), evaluation.log()
    assert json.loads(evaluation.log().splitlines()[-1])["loss"] > 0


def test_a_planned_run_goes_on_with_the_ranks_that_there_are(queue):
    whole = queue.submit("train_srun", DECK, *(word for value in ("train.steps=8", "data.global_batch=24", "run.output=runs/whole")
                                               for word in ("--set", value)), name="whole")
    assert whole.wait_for_end() == ("COMPLETED", 0), whole.log()
    job = queue.train_planned("train.steps=4", ranks=4)
    assert job.wait_for_end() == ("COMPLETED", 0), job.log()
    assert job.checkpoints() == [4] and job.log().count("wrote runs/run/plan.toml") == 1
    for _ in range(2):  # the second time nothing has changed, and nothing is left to do
        job = queue.train_planned("train.steps=8", ranks=2)
        assert job.wait_for_end() == ("COMPLETED", 0), job.log()
        assert job.log().count("wrote runs/run/plan.toml") == 2 and job.checkpoints() == [4, 8]
    assert "resumed from runs/run/checkpoints/step-000004" in job.log()
    assert re.search(r"(?m)^steps = 8\b", (job.run / "plan.toml").read_text())
    assert np.allclose(job.losses(), whole.losses(), rtol=1e-5, atol=0)

    small = queue.folder / "small.toml"
    small.write_text(CPUS.read_text().replace("memory = 1.24e+10", "memory = 1e6"))
    job = queue.train_planned("train.steps=8", ranks=2, cluster=small)
    assert job.wait_for_end() == ("FAILED", 78), job.log()
    assert "fits into memory: a rank needs at least" in job.log() and "no plan for 2 ranks, exit code 78" in job.log()


@pytest.mark.nightly
@pytest.mark.parametrize("script", TRAIN)
def test_wall_time_requeues_and_resumes(queue, script):
    # The script's own signal, but later. Slurm looks at the limits every 30 s: it comes 20 to 50 s before the minute ends.
    header = re.search(r"(?m)^#SBATCH --signal=(\S+)@\d+$", (SCRIPTS / f"{script}.sbatch").read_text())
    options = ["--time=1", f"--signal={header[1]}@20"]
    deck = queue.folder / "deck.toml"

    def write(steps):
        text, count = re.subn(r"(?m)^steps = \d+", f"steps = {steps}", DECK.read_text())
        assert count == 1
        deck.write_text(text)

    write(100000)
    job = queue.train(script, deck, options=options)
    job.wait("requeue", lambda: job.field("Restarts") == "1", 80)
    stopped = job.exit_report()
    assert stopped["code"] == 75 and job.checkpoints() == [stopped["step"]], job.log()
    write(stopped["step"] + 4)  # the job starts again only after some seconds

    assert job.wait_for_end() == ("COMPLETED", 0), job.log()
    assert f"after step {stopped['step']}\n" in job.log() and "resumed from" in job.log()
    assert job.exit_report()["code"] == 0
    assert len(job.losses()) == stopped["step"] + 4


@pytest.mark.parametrize("script", [pytest.param("train", marks=pytest.mark.nightly), "train_srun"])
def test_a_cancelled_job_is_not_requeued(queue, script):
    job = queue.train(script, DECK, FOREVER)
    job.wait_for_steps()
    slurm("scancel", job.number)
    assert job.wait_for_end()[0] == "CANCELLED"
    assert job.field("Restarts") == "0" and "queue" not in job.log()
    assert not job.processes()


def test_terminating_the_batch_shell_stops_in_order_and_for_good(queue):
    job = queue.train("train", DECK, FOREVER)
    job.wait_for_steps()
    slurm("scancel", "--batch", "--signal=TERM", job.number)
    assert job.wait_for_end() == ("FAILED", 75), job.log()
    report = job.exit_report()
    assert report["code"] == 75 and job.checkpoints() == [report["step"]]
    assert job.field("Restarts") == "0"
