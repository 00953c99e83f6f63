"""The same deck gives the same numbers on any placement and under any policy."""

import numpy as np
import pytest
from conftest import DISTILL, FOUR_RANKS, ONE_RANK, SMALL, TEACHER, TWO_RANKS, VLM, relative

LAYOUTS = {"one": (1, ONE_RANK), "two": (2, TWO_RANKS), "four": (4, FOUR_RANKS)}
STEPS = ["train.steps=12", "optimizer.warmup_steps=10", "checkpoint.every=0"]
ALPHA = 0.9  # in the deck of the student
MIDDLE = "data.global_batch=34"  # no multiple of the micro-batches


def assert_same_gradients(workspace, a, b, sections):
    """Adam's first moment after one step is the clipped gradient times 1 - beta1."""
    for section in sections:
        left, right = workspace.checkpoint(a, 1, section)["adam_m"], workspace.checkpoint(b, 1, section)["adam_m"]
        assert left.keys() == right.keys() and left
        for name in left:
            norm = np.linalg.norm(left[name].astype(np.float64))
            assert norm > 0, f"{section}.{name} has no gradient"
            assert np.linalg.norm(left[name].astype(np.float64) - right[name]) <= 1e-5 * norm, f"{section}.{name}"


def test_layouts_and_policies_of_the_vision_language_deck(workspace):
    tight = [MIDDLE, "section.vision.window=2"]  # of three micro-batches
    for name, (ranks, values) in LAYOUTS.items():
        workspace.train(ranks, VLM, name, [*values, *tight, *STEPS])
        workspace.train(ranks, VLM, f"{name}-gradient", [*values, *tight, "train.steps=1", "checkpoint.every=1"])
    workspace.train(4, VLM, "measured-costs", [*tight, "schedule.costs=measured", *STEPS])
    for policy in ("fifo", "lpt"):
        workspace.train(4, VLM, policy, [*tight, f"schedule.policy={policy}", *STEPS])
        workspace.train(4, VLM, f"{policy}-gradient", [*tight, f"schedule.policy={policy}", "train.steps=1", "checkpoint.every=1"])
    reference = workspace.losses("one")
    assert len(reference) == 12 and reference[-1] < 0.8 * reference[0], "trains too little for a difference to show"
    assert relative(workspace.losses("measured-costs"), reference) <= 1e-5
    for name in ("two", "four", "fifo", "lpt"):
        assert relative(workspace.losses(name), reference) <= 1e-5, name
        assert_same_gradients(workspace, "one-gradient", f"{name}-gradient", ["vision", "language"])


def test_every_parameter_moves(workspace):
    workspace.train(2, VLM, "moved", [*TWO_RANKS, "train.steps=12", "checkpoint.every=1", "checkpoint.keep=12"])
    for section in ("vision", "language"):
        first, last = (workspace.checkpoint("moved", step, section)["weights"] for step in (1, 12))
        for name in first:
            assert np.linalg.norm(last[name] - first[name]) > 1e-4 * np.linalg.norm(last[name]), f"{section}.{name}"


def test_distillation_across_placements(workspace):
    workspace.train(2, TEACHER, "teacher", ["train.steps=30", SMALL])
    values = ["section.teacher.weights=runs/teacher", "data.global_batch=18"]
    workspace.train(3, DISTILL, "three", [*values, *STEPS])
    workspace.train(1, DISTILL, "one", [*values, *STEPS, "section.student.colocate_with=teacher", "section.student.layout.dp=1"])
    workspace.train(2, DISTILL, "two", [*values, *STEPS, "section.student.layout.dp=1"])
    for name in ("two", "three"):
        assert relative(workspace.losses(name), workspace.losses("one")) <= 1e-5, name
    for name in ("one", "two", "three"):
        terms = workspace.terms(name)
        assert terms.keys() == {"cross_entropy", "forward_kl"}
        assert relative(ALPHA * terms["forward_kl"] + (1 - ALPHA) * terms["cross_entropy"], workspace.losses(name)) <= 1e-12
        for term, values in terms.items():
            assert relative(values, workspace.terms("one")[term]) <= 1e-5, (name, term)


@pytest.mark.nightly
def test_an_untrained_teacher_needs_no_file(workspace):
    values = ["section.teacher.weights=random", "data.global_batch=18", "train.steps=6", "checkpoint.every=6"]
    for policy in ("wavefront", "fifo"):
        workspace.train(3, DISTILL, policy, [*values, f"schedule.policy={policy}"])
    assert relative(workspace.losses("fifo"), workspace.losses("wavefront")) <= 1e-5
    assert not workspace.checkpoint("fifo", 6, "teacher").get("adam_m"), "a frozen section has no moments"
    assert_same_weights(workspace, "wavefront", "fifo", 6, "teacher")


def assert_same_weights(workspace, a, b, step, section):
    left, right = (workspace.checkpoint(name, step, section)["weights"] for name in (a, b))
    assert left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def test_recomputation_changes_nothing(workspace):
    """Under fifo, whose order does not follow the costs, which know of the recomputation."""
    modes = {mode: [f"train.recompute={mode}"] for mode in ("none", "cheap", "layer")}
    modes["some"] = ["section.vision.recompute=cheap", "section.language.recompute=layer", "section.language.recompute_layers=2"]
    for mode, values in modes.items():
        workspace.train(2, VLM, mode, [*TWO_RANKS, "schedule.policy=fifo", "train.steps=10", "checkpoint.every=10", *values])
    for mode in ("cheap", "layer", "some"):
        assert np.array_equal(workspace.losses("none"), workspace.losses(mode))
        for section in ("vision", "language"):
            assert_same_weights(workspace, "none", mode, 10, section)


@pytest.mark.nightly
def test_bf16_follows_fp32(workspace):
    for precision in ("fp32", "bf16"):
        workspace.train(2, VLM, precision, [*TWO_RANKS, "train.steps=40", "checkpoint.every=0", f"run.precision={precision}"])
    exact, rounded = workspace.losses("fp32"), workspace.losses("bf16")
    assert not np.array_equal(exact, rounded)
    # Training amplifies rounding, whatever multiplies: later on single steps say less than their mean.
    assert relative(rounded[:20], exact[:20]) <= 2e-3, list(zip(exact, rounded))
    assert relative(rounded[-10:].mean(), exact[-10:].mean()) <= 0.02 and rounded[-1] < 0.6 * rounded[0], list(zip(exact, rounded))


def test_planned_runs_are_bitwise_reproducible(workspace):
    for name in ("first", "second"):
        workspace.train(4, VLM, name, [MIDDLE, "train.steps=8", "checkpoint.every=0"])
    assert np.array_equal(workspace.losses("first"), workspace.losses("second"))


@pytest.mark.parametrize("ranks,values", LAYOUTS.values(), ids=LAYOUTS)
def test_steps_without_a_picture_run_no_vision_task(workspace, ranks, values):
    import h5py

    workspace.train(ranks, VLM, "text", [*values, "data.train=data/text-only.h5", "train.steps=4", "checkpoint.every=0"])
    with h5py.File(workspace.run("text") / "metrics.h5") as file:
        assert set(file["timeline/section"][:]) == {1}, "only the language section (colour 1) has tasks"
