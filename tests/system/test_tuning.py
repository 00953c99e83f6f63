"""Frozen parts of sections, and their rates. test_layouts.py has frozen parts in several layouts."""

import sys

import numpy as np
from conftest import ROOT, TWO_RANKS, VLM
from test_emulated import EMULATED, SMALL, closed_form
from test_evaluate import evaluate

sys.path.insert(0, str(ROOT / "scripts/bench"))
from layout_cases import FROZEN_FRONT, TUNED, deep, stages, vlm  # noqa: E402


def train(workspace, case, name, values, **options):
    return workspace.train(case.ranks, str(ROOT / f"inputs/{case.deck}.toml"), name, [*case.values, *values], **options)


def test_a_resumed_run_is_bit_for_bit_the_same_and_frozen_weights_stay(workspace):
    tuned = {"vision": ("patch.", "layers.0.", "merger."), "language": ("layers.0.attention.", "norm.")}
    front = {"language": ("embedding.", *(f"layers.{i}." for i in range(5)))}
    # In bf16, where frozen weights have no masters in fp32, the first stage has nothing to train.
    for precision, case, frozen in (("fp32", vlm("cp2r", "tp2", model=TUNED), tuned),
                                    ("bf16", deep("", "pp2", stages("language", [5, 3]), model=FROZEN_FRONT), front)):  # fmt: skip
        name, as_run = case.deck, f"run.precision={precision}"
        train(workspace, case, f"{name}-whole", ["train.steps=6", as_run])
        train(workspace, case, f"{name}-cut", ["train.steps=3", as_run, "checkpoint.every=3", "checkpoint.keep=9"])
        train(workspace, case, f"{name}-cut", ["train.steps=6", as_run, "checkpoint.every=3", "checkpoint.keep=9"], options=["--resume", "auto"])
        for key in ("loss", "grad_norm"):
            assert np.array_equal(workspace.steps(f"{name}-whole")[key], workspace.steps(f"{name}-cut")[key])
        for section, prefixes in frozen.items():
            before, after = (workspace.checkpoint(f"{name}-cut", step, section) for step in (3, 6))
            trained = {key for key in before["weights"] if not key.startswith(prefixes)}
            assert before["adam_m"].keys() == before["adam_v"].keys() == trained and len(trained) < len(before["weights"])
            for key, value in before["weights"].items():
                assert np.array_equal(after["weights"][key], value) == (key not in trained), f"{section}.{key}"
        deck = str(ROOT / f"inputs/{case.deck}.toml")
        one, here = (evaluate(workspace, of.ranks, deck, "--checkpoint", f"runs/{name}-whole", values=[*of.values, as_run]) for of in (case.reference, case))
        assert np.isclose(one["loss"], here["loss"], rtol=1e-6 if precision == "fp32" else 1e-2)


def test_a_rate_of_zero_is_a_frozen_section(workspace):
    few = [*TWO_RANKS, "schedule.policy=fifo", "optimizer.clip=0", "optimizer.warmup_steps=2", "train.steps=6", "checkpoint.every=0"]
    workspace.train(2, VLM, "base", few)
    workspace.train(2, VLM, "same", [*few, "section.vision.learning_rate=2e-3", "section.vision.weight_decay=0.05"])
    workspace.train(2, VLM, "zero", [*few, "section.vision.learning_rate=0"])
    workspace.train(2, VLM, "frozen", [*few, "section.vision.mode=forward", "section.vision.weights=random"])
    assert np.array_equal(workspace.losses("same"), workspace.losses("base"))
    assert np.array_equal(workspace.losses("zero"), workspace.losses("frozen"))
    assert not np.array_equal(workspace.losses("zero"), workspace.losses("base"))


def test_an_emulated_run_freezes_parts(workspace):
    """Of two stages the first has nothing to train."""
    values = [*SMALL[:1], "section.vision.layout.dp=1", "section.language.layout.dp=1", "section.language.layout.pp=2", "data.global_batch=24",
              "section.vision.mode=forward", "section.vision.weights=random", "train.steps=2", 'section.language.freeze=["embedding","layers.0-1"]',
              "section.language.layout.stages=[2,2]",
              "model.llm.layers=4", "model.vit.layers=2"]  # fmt: skip
    workspace.train(3, EMULATED, "run", values)
    np.testing.assert_allclose(workspace.losses("run"), closed_form(2), rtol=1e-12)
