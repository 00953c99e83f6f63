"""Jobs on two nodes, whose ranks mpirun or srun starts."""

import numpy as np
import pytest
from conftest import DECK, slurm

TWO = ["--nodes=2", "--ntasks-per-node=2"]


def test_two_nodes_train_as_one_does(queue):
    """Gradients are summed within each node first, so that the last bits are not those of one node; every run on two nodes has the same."""
    one = queue.train("train_srun", DECK, "train.steps=8", name="one", options=["--nodes=1"])
    assert one.wait_for_end(120) == ("COMPLETED", 0), one.log()
    losses = []
    for script in ("train", "train_srun"):
        two = queue.train(script, DECK, "train.steps=8", name=script, options=TWO)
        assert two.wait_for_end(120) == ("COMPLETED", 0), two.log()
        assert "edge vision-language: by messages, because its ranks are on north, south" in two.log()
        losses.append(two.losses())
        assert np.allclose(one.losses(), losses[-1], rtol=1e-6, atol=0)
    assert np.array_equal(*losses)


@pytest.mark.parametrize("script, signal", [("train", ["--batch", "--signal=USR1"]), pytest.param("train_srun", ["--signal=USR1"], marks=pytest.mark.nightly)])
def test_a_signal_saves_and_requeues(queue, script, signal):
    """What Slurm sends before the wall time ends reaches the ranks of both nodes."""
    job = queue.train(script, DECK, "train.steps=100000", options=TWO)
    job.wait_for_steps()
    slurm("scancel", *signal, job.number)
    job.wait("requeue", lambda: job.field("Restarts") == "1", 60)
    report = job.exit_report()  # the job starts again only after some seconds
    assert report["code"] == 75 and job.checkpoints() == [report["step"]], job.log()


def test_a_planned_run_goes_on_without_a_node(queue):
    """A job that may have one or two nodes begins on two. One of them takes no more jobs, and the job goes on with the other."""
    job = queue.train_planned("train.steps=100000", ranks=0, options=["--nodes=1-2", "--exclusive"])
    job.wait_for_steps()
    assert job.field("NumNodes") == "2", job.log()
    slurm("scontrol", "update", "NodeName=south", "State=DRAIN", "Reason=test")
    try:
        slurm("scancel", "--signal=USR1", job.number)
        job.wait("requeue", lambda: job.field("Restarts") == "1", 60)
        stopped = job.exit_report()["step"]
        job.wait("resumption", lambda: f"resumed from runs/run/checkpoints/step-{stopped:06d} after step {stopped}" in job.log(), 60)
        job.wait("step", lambda: job.steps() > stopped, 60)
        assert job.field("NumNodes") == "1" and job.log().count("wrote runs/run/plan.toml") == 2
        assert "on up to 4 ranks" in job.log() and "on up to 2 ranks" in job.log()
        slurm("scancel", job.number)
        assert job.wait_for_end()[0] == "CANCELLED"
    finally:
        slurm("scontrol", "update", "NodeName=south", "State=RESUME")
    job.losses()  # of every step once
