"""Evaluation: the same numbers on any number of ranks, one JSON object, and the exchange of pictures."""

import json

import numpy as np
from conftest import DISTILL, FOUR_RANKS, TEACHER, TWO_RANKS, VLM, mpirun, settings


def evaluate(workspace, ranks, deck, *arguments, expect=0, values=()):
    result = mpirun(ranks, "evaluate", deck, *arguments, *settings(values), cwd=workspace.path)
    assert result.returncode == expect, result.stdout + result.stderr
    return json.loads(result.stdout.splitlines()[-1]) if expect == 0 else result.stderr


def test_any_number_of_ranks_gives_the_same(workspace):
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=20"])
    found = [evaluate(workspace, ranks, VLM, "--checkpoint", "runs/run") for ranks in (1, 2, 3)]
    assert found[0]["names"] > 300 and 0 <= found[0]["exact_match"] <= 1
    for other in found[1:]:
        assert np.isclose(other["loss"], found[0]["loss"], rtol=1e-6)
        assert {**other, "loss": 0} == {**found[0], "loss": 0}
    assert evaluate(workspace, 2, VLM, "--checkpoint", "runs/run/checkpoints/step-000020") == found[1]


def test_exchanged_pictures_change_the_loss_but_not_the_text(workspace):
    workspace.train(4, VLM, "run", [*FOUR_RANKS, "train.steps=50"])
    seen = evaluate(workspace, 2, VLM, "--checkpoint", "runs/run")
    exchanged = evaluate(workspace, 2, VLM, "--checkpoint", "runs/run", "--exchange-images")
    assert seen["names"] == exchanged["names"] and exchanged["loss"] != seen["loss"]


def test_text_alone_has_no_names(workspace):
    workspace.train(2, TEACHER, "teacher", ["train.steps=10"])
    found = evaluate(workspace, 1, TEACHER, "--checkpoint", "runs/teacher")
    assert found["exact_match"] is None and found["names"] == 0 and found["loss"] > 0


def test_distillation_is_judged_by_its_student(workspace):
    workspace.train(3, DISTILL, "run", ["train.steps=4", "section.teacher.weights=random"])
    assert evaluate(workspace, 2, DISTILL, "--checkpoint", "runs/run")["loss"] > 0


def test_what_cannot_be_evaluated_is_refused(workspace):
    assert "runs/none" in evaluate(workspace, 2, VLM, "--checkpoint", "runs/none", expect=66)
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=1"])
    for deck, text in (("model.glyph-language.vocabulary=100", "beyond the vocabulary"), ("model.glyph-vision.channels=3", "channels")):
        assert text in evaluate(workspace, 1, VLM, "--checkpoint", "runs/run", expect=65, values=[deck])
    message = evaluate(workspace, 2, VLM, "--checkpoint", "runs/run", expect=65, values=["model.glyph-language.width=64"])
    assert message.count("the deck's model needs") == 1
