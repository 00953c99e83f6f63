"""Evaluation: the same numbers in the deck's layouts and on any other number of ranks, one JSON object, and the exchange of pictures."""

import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import DISTILL, FOUR_RANKS, ROOT, TEACHER, VLM, Workspace, mpirun, settings

sys.path.insert(0, str(ROOT / "scripts/bench"))
from layout_cases import vlm  # noqa: E402
from sample_file import Sample, SampleWriter  # noqa: E402

LAYOUTS = str(ROOT / "inputs/layouts.toml")


def evaluate(workspace, ranks, deck, *arguments, expect=0, values=()):
    result = mpirun(ranks, "evaluate", deck, *arguments, *settings(values), cwd=workspace.path)
    assert result.returncode == expect, result.stdout + result.stderr
    return json.loads(result.stdout.splitlines()[-1]) if expect == 0 else result.stderr


def assert_same(found, expected):
    assert np.isclose(found["loss"], expected["loss"], rtol=1e-5)
    assert {**found, "loss": 0} == {**expected, "loss": 0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data):
    """A workspace with a run of the vision-language deck, for tests that only read it."""
    path = tmp_path_factory.mktemp("trained")
    (path / "data").symlink_to(data)
    workspace = Workspace(path)
    workspace.train(4, VLM, "run", [*FOUR_RANKS, "train.steps=20"])
    return workspace


def test_any_number_of_ranks_gives_the_same(trained):
    """On 4 ranks the sections of this deck run in its layouts, on others each rank runs them all."""
    found = [evaluate(trained, ranks, VLM, "--checkpoint", "runs/run") for ranks in (1, 2, 3, 4)]
    assert found[0]["names"] > 300 and 0 <= found[0]["exact_match"] <= 1
    for other in found[1:]:
        assert_same(other, found[0])
    assert evaluate(trained, 4, VLM, "--checkpoint", "runs/run/checkpoints/step-000020", values=["schedule.dispatch=ready"]) == found[3]


def test_every_layout_gives_the_same(workspace):
    one = vlm("", "", shared=True)
    workspace.train(1, LAYOUTS, "run", [*one.values, "train.steps=3"])
    cases = [vlm("tp2", "dp2"), vlm("cp2a", "tp2", shared=True), vlm("cp2r", "tp2")]
    for options, tried in (((), cases), (("--exchange-images",), cases[-1:])):
        arguments = ("--checkpoint", "runs/run", *options)
        expected = evaluate(workspace, 1, LAYOUTS, *arguments, values=one.values)
        assert expected["names"] > 300
        for case in tried:
            assert_same(evaluate(workspace, case.ranks, LAYOUTS, *arguments, values=case.values), expected)
        assert_same(evaluate(workspace, 2, LAYOUTS, *arguments, values=cases[-1].values), expected)


def test_few_samples_are_evaluated_on_more_ranks(workspace):
    """One sample without a picture: the vision section has nothing to do, nor have ranks beyond the first."""
    one = vlm("", "", shared=True)
    workspace.train(1, LAYOUTS, "run", [*one.values, "train.steps=1"])
    tool = [sys.executable, str(ROOT / "scripts/data/make_mixed.py"), "runs/one.h5", "--samples", "1", "--share", "0"]
    subprocess.run(tool, cwd=workspace.path, check=True, capture_output=True)
    values = ["data.validation=runs/one.h5"]
    arguments = ("--checkpoint", "runs/run", "--exchange-images")
    expected = evaluate(workspace, 1, LAYOUTS, *arguments, values=[*values, *one.values])
    assert expected["tokens"] > 0 and expected["exact_match"] is None
    case = vlm("dp2", "dp2 tp2")
    for ranks in (case.ranks, 3):
        assert_same(evaluate(workspace, ranks, LAYOUTS, *arguments, values=[*values, *case.values]), expected)


def test_exchanged_pictures_change_the_loss_but_not_the_text(trained):
    seen = evaluate(trained, 2, VLM, "--checkpoint", "runs/run")
    exchanged = evaluate(trained, 2, VLM, "--checkpoint", "runs/run", "--exchange-images")
    assert seen["names"] == exchanged["names"] and exchanged["loss"] != seen["loss"]


def test_text_alone_has_no_names_and_a_step_without_targets_no_loss(workspace):
    """Each epoch of three steps has one with the only sample that has targets."""
    (workspace.path / "runs").mkdir()
    for name, targets in (("one", 1), ("none", 0)):
        writer = SampleWriter(workspace.path / f"runs/{name}.h5", vocabulary=260, marker=256)
        for i in range(12):
            sample = Sample()
            sample.add([257], weight=0.0)
            sample.add([97, 98, 258], weight=float(i < targets))
            writer.add(sample)
        writer.close()
    values = ["data.train=runs/one.h5", "data.global_batch=4", "train.steps=6", "train.log_every=1"]
    log = workspace.train(2, TEACHER, "teacher", values).stdout
    none = np.isnan(workspace.losses("teacher"))
    assert none[:3].sum() == none[3:].sum() == 2 and log.count("loss none (no targets)") == 4
    assert log.count("warning: step") == 3 and "warning: 4 of 6 steps had no targets" in log
    found = evaluate(workspace, 1, TEACHER, "--checkpoint", "runs/teacher")
    assert found["exact_match"] is None and found["names"] == 0 and found["loss"] > 0
    none = "data.validation=runs/none.h5"
    for refused in (evaluate(workspace, 1, TEACHER, "--checkpoint", "runs/teacher", values=[none], expect=65),
                    workspace.train(2, TEACHER, "none", [*values, none], options=["--dry-run"], expect=65).stderr):  # fmt: skip
        assert refused.count("runs/none.h5: no token of its 12 samples has a loss weight") == 1


def test_distillation_is_judged_by_its_student(workspace):
    workspace.train(3, DISTILL, "run", ["train.steps=4", "section.teacher.weights=random"])
    alone = evaluate(workspace, 2, DISTILL, "--checkpoint", "runs/run")
    assert alone["loss"] > 0
    assert_same(evaluate(workspace, 3, DISTILL, "--checkpoint", "runs/run"), alone)


def test_sections_that_are_too_large_for_a_rank_are_evaluated_in_their_layout(workspace, monkeypatch):
    """40 MiB hold the weights of the 60 layers once, but not with gradients, nor once for each of four ranks."""
    values = ["model.language-12.layers=60", "data.validation=runs/few.h5"]
    tool = [sys.executable, str(ROOT / "scripts/data/make_mixed.py"), "runs/few.h5", "--samples", "4", "--share", "0.5", "--tokens", "30", "--pixels", "3000", "--longest", "90",
            "--largest", "160"]  # fmt: skip
    (workspace.path / "runs").mkdir()
    subprocess.run(tool, cwd=workspace.path, check=True, capture_output=True)
    case = vlm("", "tp2")
    workspace.train(case.ranks, LAYOUTS, "run", [*values, *case.values, "train.steps=1"])
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "memory_shim.so", str(ROOT / "tests/system/memory_shim.c"), "-ldl"],
                   cwd=workspace.path, check=True)  # fmt: skip
    (workspace.path / "meminfo").write_text(f"MemAvailable: {40 << 10} kB\n")
    monkeypatch.setenv("LD_PRELOAD", str(workspace.path / "memory_shim.so"))
    monkeypatch.setenv("SHIM_MEMINFO", str(workspace.path / "meminfo"))
    arguments = ("--checkpoint", "runs/run")
    assert evaluate(workspace, case.ranks, LAYOUTS, *arguments, values=[*values, *case.values])["loss"] > 0
    message = evaluate(workspace, 4, LAYOUTS, *arguments, values=[*values, *case.values], expect=80)
    assert f"run on {case.ranks} ranks, in the deck's layouts" in message and "40 MiB are free there" in message


@pytest.mark.nightly
def test_what_cannot_be_evaluated_is_refused(trained):
    assert "runs/none" in evaluate(trained, 2, VLM, "--checkpoint", "runs/none", expect=66)
    for deck, text in (("model.glyph-language.vocabulary=100", "beyond the vocabulary"), ("model.glyph-vision.channels=3", "channels")):
        assert text in evaluate(trained, 1, VLM, "--checkpoint", "runs/run", expect=65, values=[deck])
    for ranks in (2, 4):
        message = evaluate(trained, ranks, VLM, "--checkpoint", "runs/run", expect=65, values=["model.glyph-language.width=64"])
        assert message.count("the deck's model needs") == 1
