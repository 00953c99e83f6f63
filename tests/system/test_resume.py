"""A resumed run equals the uninterrupted one; in another layout to rounding."""

import shutil

import numpy as np
import pytest
from conftest import FOUR_RANKS, TWO_RANKS, VLM, assert_resume_is_bit_for_bit, relative


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resume_equals_uninterrupted_bit_for_bit(workspace, precision):
    assert_resume_is_bit_for_bit(workspace, 4, [*FOUR_RANKS, "checkpoint.every=6", f"run.precision={precision}"], 12)


def test_resume_in_another_layout(workspace):
    workspace.train(4, VLM, "four", [*FOUR_RANKS, "train.steps=16", "checkpoint.every=8"])
    shutil.copytree(workspace.run("four"), workspace.run("two"))
    shutil.rmtree(workspace.run("two") / "checkpoints/step-000016")
    workspace.train(2, VLM, "two", [*TWO_RANKS, "train.steps=16", "checkpoint.every=8"], options=["--resume", "auto"])
    assert relative(workspace.losses("two"), workspace.losses("four")) <= 1e-5


def test_resume_with_another_deck_is_refused(workspace):
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=3"])
    before = (workspace.run("run") / "metrics.h5").read_bytes()
    for options in (["--resume", "auto"], ["--resume", "auto", "--dry-run"]):
        result = workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=6", "optimizer.clip=2", "data.train=data/text-only.h5"],
                                 options=options, expect=78)
        for text in ("optimizer.clip: 1 in the checkpoint, 2 now", "data.train: data/text-only.h5"):
            assert result.stderr.count(text) == 1, result.stderr
    assert (workspace.run("run") / "metrics.h5").read_bytes() == before


def test_resume_with_the_samples_moved(workspace):
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=3"])
    shutil.copyfile(workspace.path / "data/glyphs-train.h5", workspace.path / "moved.h5")
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=4", "data.train=moved.h5"], options=["--resume", "auto"])
    assert list(workspace.steps("run")["step"]) == [1, 2, 3, 4]


def test_going_on_from_an_older_checkpoint_sets_the_newer_aside(workspace):
    keep = ["checkpoint.every=1", "checkpoint.keep=9"]
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=4", *keep])
    older = str(workspace.run("run") / "checkpoints/step-000002")
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=3", *keep], options=["--resume", older])
    names = sorted(path.name for path in (workspace.run("run") / "checkpoints").glob("step-*"))
    assert names == ["step-000001", "step-000002", "step-000003", "step-000003.abandoned", "step-000004.abandoned"]
    assert list(workspace.steps("run")["step"]) == [1, 2, 3]


def test_a_checkpoint_of_another_run_does_not_take_over_a_run(workspace):
    for name in ("a", "b"):
        workspace.train(2, VLM, name, [*TWO_RANKS, "train.steps=2"])
    before = (workspace.run("b") / "metrics.h5").read_bytes()
    workspace.train(2, VLM, "b", [*TWO_RANKS, "train.steps=4"], options=["--resume", "runs/a"], expect=73)
    assert (workspace.run("b") / "metrics.h5").read_bytes() == before
    workspace.train(2, VLM, "c", [*TWO_RANKS, "train.steps=4"], options=["--resume", "runs/a"])
    assert list(workspace.steps("c")["step"]) == [1, 2, 3, 4]
    # One that ended before its first checkpoint, as on a full disk, may begin again in the same way.
    shutil.rmtree(workspace.run("b") / "checkpoints")
    workspace.train(2, VLM, "b", [*TWO_RANKS, "train.steps=4"], options=["--resume", "runs/a"])
    assert (workspace.run("b") / "metrics.h5.abandoned").read_bytes() == before
    assert np.array_equal(workspace.losses("b"), workspace.losses("c"))


def test_rows_after_the_checkpoint_are_cut_and_a_finished_run_is_success(workspace):
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=6", "checkpoint.every=4"])
    shutil.rmtree(workspace.run("run") / "checkpoints/step-000006")
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=5", "checkpoint.every=4"], options=["--resume", "auto"])
    assert list(workspace.steps("run")["step"]) == [1, 2, 3, 4, 5]
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=5"], options=["--resume", "auto"])
    assert list(workspace.steps("run")["step"]) == [1, 2, 3, 4, 5]


def test_a_directory_that_holds_a_run_is_refused(workspace):
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=2"])
    result = workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=2"], expect=73)
    assert result.stderr.count("--resume") == 1
