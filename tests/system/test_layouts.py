"""Tensor, context and pipeline parallelism and edges between any two layouts: the numbers of one rank, in every layout."""

import sys

import numpy as np
import pytest
from conftest import ROOT, Workspace, relative
from test_evaluate import evaluate

sys.path.insert(0, str(ROOT / "scripts/bench"))
import layout_cases  # noqa: E402
from layout_cases import CASES, vlm  # noqa: E402

DECK = str(ROOT / "inputs/layouts.toml")
STEPS = 8  # scripts/bench/layouts.py takes more
LOSS, NORM, GRADIENT = 1e-6, 1e-5, 2e-5  # measured, at most: see scripts/bench/layouts.py
# With experts, a row whose choice is nearly a tie may choose another one after some steps. None does here.
FREE_ROUTING = 1e-4
EXACT_TOLERANCE = 1e-11
# Layouts to save and to resume in.
CUBE, RINGS, PIPES, ONE = vlm("cp2r", "tp2 cp2r"), vlm("dp2 tp3", "cp3r"), vlm("pp2", "dp2 pp2 tp2"), vlm("", "", shared=True)
SHARED = vlm("dp4", "tp2 cp2r", shared=True)


@pytest.fixture(scope="module")
def references(tmp_path_factory, data):
    """A workspace and the runs of one rank in it, made when first asked for."""
    path = tmp_path_factory.mktemp("layouts")
    (path / "data").symlink_to(data)
    layout_cases.make_samples(path)
    return Workspace(path), {}


def train(workspace, case, name, values=(), **options):
    deck = str(ROOT / f"inputs/{case.deck}.toml")
    return workspace.train(case.ranks, deck, name, [*case.values, f"train.steps={STEPS}", *values], **options)


@pytest.mark.parametrize("case", [pytest.param(case, marks=[] if case.quick else pytest.mark.nightly) for case in CASES if case.quick or not case.in_double], ids=lambda case: f"{case.deck}: {case.name}")
def test_numbers_are_those_of_one_rank(references, case):
    workspace, runs = references
    every = ["checkpoint.every=1", f"checkpoint.keep={STEPS}"]
    key = (case.deck, case.model)
    if key not in runs:
        runs[key] = f"reference-{len(runs)}"
        train(workspace, case.reference, runs[key], every)
    name = f"case-{CASES.index(case)}"
    train(workspace, case, name, every)
    found = layout_cases.differences(workspace.run(name), workspace.run(runs[key]), case.sections)
    alike = layout_cases.same_choices(workspace.run(name), workspace.run(runs[key]))
    loss, norm = (LOSS, NORM) if alike else (FREE_ROUTING, FREE_ROUTING)
    assert found["loss"] <= loss and found["grad_norm"] <= norm and found["gradient"] <= GRADIENT, found
    layout_cases.remove_checkpoints(workspace.run(name))


@pytest.mark.nightly
@pytest.mark.parametrize("case", [case for case in CASES if case.in_double], ids=lambda case: f"{case.deck}: {case.name}")
def test_in_double_precision_numbers_differ_by_rounding_alone(references, case):
    """A step's loss depends on all gradients before it, and its norm on those of the step."""
    workspace, runs = references
    key = ("fp64", case.deck, case.model)
    if key not in runs:
        runs[key] = f"reference-{len(runs)}"
        train(workspace, case.reference, runs[key], layout_cases.IN_DOUBLE)
    name = f"exact-{CASES.index(case)}"
    train(workspace, case, name, layout_cases.IN_DOUBLE)
    found = layout_cases.differences_of_steps(workspace.run(name), workspace.run(runs[key]))
    assert max(found.values()) <= EXACT_TOLERANCE, found


def test_a_run_in_one_layout_is_bitwise_reproducible(workspace):
    case = vlm("dp2 cp2r", "dp2 tp2 cp2a", *layout_cases.UNLIKE)
    for name in ("first", "second"):
        train(workspace, case, name, ["train.steps=8"])
    for key in ("loss", "grad_norm"):
        assert np.array_equal(workspace.steps("first")[key], workspace.steps("second")[key])
    for section in case.sections:
        first, second = (workspace.checkpoint(name, 8, section) for name in ("first", "second"))
        assert all(np.array_equal(first[group][name], second[group][name]) for group in first for name in first[group])


def assert_same_checkpoints(workspace, a, b, step, tolerance):
    for section in ("vision", "language"):
        left, right = workspace.checkpoint(a, step, section), workspace.checkpoint(b, step, section)
        assert left.keys() == right.keys() == {"weights", "adam_m", "adam_v"}
        for group in left:
            assert left[group].keys() == right[group].keys()
            for name, value in left[group].items():
                apart = np.linalg.norm(value.astype(np.float64) - right[group][name]) / np.linalg.norm(right[group][name].astype(np.float64))
                # Biases begin as zeros: they are sums of updates, as moments are of gradients.
                limit = tolerance if group == "weights" and not name.endswith(".bias") else 2e-5
                assert apart <= limit, f"{section} {group}/{name}: {apart:.1e}"


def test_checkpoints_go_from_layout_to_layout(workspace):
    """Saved in one, resumed in the next, as if it had never stopped; back in the first too."""
    # With a smaller eps, a weight whose gradient is but rounding moves as far as any other: which of them has one depends on the machine.
    every = ["checkpoint.every=2", "checkpoint.keep=9", "optimizer.eps=1e-6"]
    train(workspace, ONE, "whole", ["train.steps=10", *every])
    train(workspace, CUBE, "cube", ["train.steps=10", *every])
    for step, case in zip((2, 4, 6, 8, 10), (CUBE, PIPES, SHARED, RINGS, CUBE)):
        train(workspace, case, "wandering", [f"train.steps={step}", *every], options=[] if step == 2 else ["--resume", "auto"])
    for name in ("cube", "wandering"):
        assert relative(workspace.losses(name), workspace.losses("whole")) <= 1e-6
        assert_same_checkpoints(workspace, name, "whole", 2, 1e-6)
        assert_same_checkpoints(workspace, name, "whole", 10, 2e-6)


def test_checkpoints_of_experts_go_from_layout_to_layout(workspace):
    """With the biases that balance them, which checkpoints hold as well."""
    every = ["checkpoint.every=2", "checkpoint.keep=9", "model.language-12.balance=bias", "model.language-12.balance_strength=0.05"]
    one = layout_cases.moe("", "", shared=True)
    train(workspace, one, "whole", ["train.steps=6", *every])
    for step, case in zip((2, 4, 6), (layout_cases.moe("", "tp2 ep2"), layout_cases.moe("", "dp2 tp2 etp2"), one)):
        train(workspace, case, "wandering", [f"train.steps={step}", *every], options=[] if step == 2 else ["--resume", "auto"])
    assert relative(workspace.losses("wandering"), workspace.losses("whole")) <= FREE_ROUTING
    found, expected = (workspace.checkpoint(name, 6, "language")["weights"] for name in ("wandering", "whole"))
    biases = [name for name in expected if name.endswith("router.bias")]
    assert len(biases) == 2 and all(np.abs(expected[name]).max() >= 0.1 for name in biases)
    for name, value in expected.items():
        assert np.linalg.norm(found[name].astype(np.float64) - value) <= FREE_ROUTING * np.linalg.norm(value.astype(np.float64)), name


def test_resumed_in_the_same_layout_it_is_bit_for_bit_the_same(workspace):
    train(workspace, CUBE, "whole", ["train.steps=8"])
    train(workspace, CUBE, "cut", ["train.steps=3"])
    train(workspace, CUBE, "cut", ["train.steps=8"], options=["--resume", "auto"])
    assert np.array_equal(workspace.losses("whole"), workspace.losses("cut"))


@pytest.mark.nightly
def test_what_ranks_trained_together_is_evaluated_on_any_number(workspace):
    train(workspace, CUBE, "cube", ["train.steps=6"])
    train(workspace, ONE, "one", ["train.steps=6"])
    one = evaluate(workspace, 1, DECK, "--checkpoint", "runs/one")
    for ranks in (1, 3):
        found = evaluate(workspace, ranks, DECK, "--checkpoint", "runs/cube", values=CUBE.values)
        assert np.isclose(found["loss"], one["loss"], rtol=1e-6) and found["names"] == one["names"] > 0
    for case in (PIPES, SHARED):
        found = evaluate(workspace, case.ranks, DECK, "--checkpoint", "runs/cube", values=case.values)
        assert np.isclose(found["loss"], one["loss"], rtol=1e-6) and found["names"] == one["names"]
