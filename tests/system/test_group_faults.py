"""A rank of a tensor- or context-parallel group is killed or stopped: the others notice, and the job ends in time."""

import os
import re
import signal
import time

import pytest
from conftest import TEACHER
from launched import ranks_of
from test_faults import start, wait_for_end
from test_layouts import CUBE, DECK

ENDLESS = ["train.steps=100000", "checkpoint.every=0", "run.timeout_s=5"]


EXPERTS = [f"model.text-teacher.{key}" for key in ("experts=8", "experts_per_token=8", "expert_mlp=64")]
GROUPS = {  # settings of a group of two ranks, and its name
    "tp": (["section.teacher.layout.tp=2"], "section teacher, replica 0, tp ranks"),
    "cp": (["section.teacher.layout.cp=2"], "section teacher, replica 0, cp ranks"),
    "ep": (["section.teacher.layout.cp=2", "section.teacher.layout.ep=2", *EXPERTS], "section teacher, (replica 0, cp|ranks that share experts, group 0)"),
}


@pytest.mark.parametrize("degree", ["tp", pytest.param("cp", marks=pytest.mark.nightly), "ep"])
def test_a_stopped_follower_is_missed_by_its_group(workspace, degree):
    """One section alone, so that no other rank can wait for it over an edge first."""
    layout, group = GROUPS[degree]
    values = ["section.teacher.layout.dp=1", *layout, *ENDLESS]
    job = start(workspace, "stopped", values, ranks=2, deck=TEACHER)
    workspace.wait_for_metrics("stopped", job)
    time.sleep(1)
    os.kill(ranks_of(job)[1], signal.SIGSTOP)
    wait_for_end(job, 60)
    output = job.stdout.read()
    assert job.returncode == 76, output
    report = workspace.exit_report("stopped")
    assert report["code"] == 76 and report["rank"] == 0
    # Timing decides where the other rank waits for it: nearly always in a layer, seldom between two steps.
    assert re.search(rf"waiting for .* of ({group}|teacher|lane|world)", report["reason"]), report
    assert "; no answer from rank 1 (" in report["reason"], report


# Ranks 0 and 1: the ring of the vision section; ranks 2 to 5: cp x tp of the language section, whose leader is 2.
@pytest.mark.nightly
@pytest.mark.parametrize("rank", [1, 3, 4])
def test_a_stopped_follower_ends_the_job_in_time(workspace, rank):
    job = start(workspace, "stopped", [*CUBE.values, *ENDLESS], ranks=CUBE.ranks, deck=DECK)
    workspace.wait_for_metrics("stopped", job)
    time.sleep(1)
    os.kill(ranks_of(job)[rank], signal.SIGSTOP)
    wait_for_end(job, 60)
    output = job.stdout.read()
    assert job.returncode == 76 and "waiting for " in output, output
    report = workspace.exit_report("stopped")
    assert report["code"] == 76 and report["rank"] != rank
    assert f"; no answer from rank {rank} (" in report["reason"], report


@pytest.mark.nightly
def test_a_killed_follower_ends_the_job(workspace):
    job = start(workspace, "killed", [*CUBE.values, *ENDLESS], ranks=CUBE.ranks, deck=DECK)
    workspace.wait_for_metrics("killed", job)
    os.kill(ranks_of(job)[3], signal.SIGKILL)
    wait_for_end(job, 10)
    assert job.returncode != 0
