"""A tower and a language model that start from one folder (Qwen3-VL), in any layout, and the folder that comes out."""

import shutil

import numpy as np
import pytest
from conftest import Workspace, mpirun, relative
from sample_file import Sample, SampleWriter
from test_folders import DECK, FAMILIES, Safetensors, change

MARKER = 45  # image_token_id
VL_DECK = DECK[:DECK.index("[model.text]")] + """\
[model.vision]
kind = "vision"
[model.language]
kind = "language"
[[section]]
name = "vision"
model = "vision"
weights = "model"
[[section]]
name = "language"
model = "language"
weights = "model"
[[edge]]
from = "vision"
to = "language"
"""
TUNING = ["train.steps=20", "optimizer.weight_decay=0.1", "optimizer.clip=0", "checkpoint.every=0"]
LAYOUTS = {
    "tp 2 and 2": (4, ["vision.layout.tp=2", "language.layout.tp=2"]),
    "cp 2, pp 2": (4, ["vision.layout.cp=2", "language.layout.pp=2", "language.layout.stages=[2,1]"]),
    "tp 2 x cp 2, tp 2 x cp 2": (8, [f"{section}.layout.{degree}=2" for section in ("vision", "language") for degree in ("tp", "cp")]),
    "dp 2, pp 2 x dp 2": (6, ["vision.layout.dp=2", "language.layout.pp=2", "language.layout.dp=2"]),
    "on the same ranks": (2, ["vision.layout.tp=2", "language.layout.tp=2", "language.colocate_with=vision"]),
}


def make_workspace(path, family="qwen3_vl"):
    """A working directory with the folder "model", the deck, and the samples of the reference."""
    shutil.copytree(FAMILIES / family, path / "model")
    (path / "deck.toml").write_text(VL_DECK)
    reference = Safetensors(FAMILIES / family / "reference.safetensors")
    writer = SampleWriter(path / "samples.h5", vocabulary=48, marker=MARKER, channels=3)
    for s in range(3):
        sample, pictures = Sample(), 0
        for token, weight in zip(reference[f"tokens.{s}"].tolist(), reference[f"weights.{s}"].tolist()):
            if token == MARKER:
                sample.add_picture(MARKER, reference[f"picture.{s}.{pictures}"])
                pictures += 1
            else:
                sample.add([token], weight=weight)
        writer.add(sample)
    writer.close()
    return Workspace(path)


@pytest.fixture(params=["qwen3_vl"])
def family(request):
    return request.param


@pytest.fixture
def space(tmp_path, family):
    return make_workspace(tmp_path, family)


BOTH = pytest.mark.parametrize("family", ["qwen3_vl", pytest.param("qwen3_vl_moe", marks=pytest.mark.nightly)], indirect=True)


def train(space, ranks, name, layout=(), values=(), expect=0):
    return space.train(ranks, "deck.toml", name, [*(f"section.{degree}" for degree in layout), *values], expect=expect)


@BOTH
def test_every_layout_has_the_losses_of_transformers(space, family):
    """With torch's AdamW over 20 steps on two ranks, and the first steps of these in other layouts."""
    train(space, 2, "two", values=TUNING)
    expected = Safetensors(FAMILIES / family / "reference.safetensors")["losses"]
    assert expected[-1] < 0.8 * expected[0], "trains too little for a difference to show"
    print(relative(space.losses("two"), expected))
    assert relative(space.losses("two"), expected) <= 1e-4
    for name, (ranks, layout) in LAYOUTS.items():
        train(space, ranks, name, layout, [*TUNING, "train.steps=3"])
        assert relative(space.losses(name), space.losses("two")[:3]) <= 1e-5, name


def tensors(path):
    file = Safetensors(path / "model.safetensors")
    return {name: (entry["dtype"], entry["shape"], file[name]) for name, entry in file.header.items() if name != "__metadata__"}


def same(one, other):
    return one.keys() == other.keys() and all(a[:2] == b[:2] and np.array_equal(a[2], b[2]) for a, b in ((one[name], other[name]) for name in one))


def export(space, ranks, *arguments):
    result = mpirun(ranks, "export", *arguments, cwd=space.path)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def test_an_export_is_the_folder_again(space):
    train(space, 3, "same", ["vision.layout.tp=2"], ["train.steps=1", "optimizer.learning_rate=0"])
    export(space, 2, "runs/same", "--to", "exported")
    assert same(tensors(space.path / "exported"), tensors(space.path / "model"))


def test_a_frozen_tower_is_exported_from_its_folder(space):
    train(space, 2, "run", ["vision.mode=forward"])
    export(space, 1, "runs/run", "--to", "trained")
    before, after = tensors(space.path / "model"), tensors(space.path / "trained")
    changed = {name for name in before if not np.array_equal(before[name][2], after[name][2])}
    assert before.keys() == after.keys() and changed == {name for name in before if "visual" not in name}


def test_mergers_alone_are_trained(space):
    """Those of inner layers too, though no layer behind them is. The language model has adapters."""
    values = ["section.vision.freeze=['patch', 'position', 'layers']", "section.language.lora.rank=4"]
    train(space, 2, "one", values=values)
    train(space, 6, "other", ["vision.layout.tp=2", "language.layout.tp=2", "language.layout.cp=2"], values)
    assert relative(space.losses("other"), space.losses("one")) <= 1e-5 < relative(space.losses("one")[2:], space.losses("one")[:1])
    export(space, 2, "runs/one", "--to", "trained")
    before, after = tensors(space.path / "model"), tensors(space.path / "trained")
    changed = {name for name in before if not np.array_equal(before[name][2], after[name][2])}
    assert before.keys() == after.keys() and changed == {name for name in before if "merger" in name or "_proj" in name and "visual" not in name}


def test_an_imported_deck_trains(space):
    result = mpirun(1, "import", "model", "--out", "imported.toml", cwd=space.path)
    assert result.returncode == 0, result.stderr
    space.train(2, "imported.toml", "imported", ["data.train=samples.h5", "data.global_batch=3", "data.sequence_length=64", "train.steps=1",
                                                 "run.precision=fp32"])
    assert relative(space.losses("imported")[:1], [Safetensors(FAMILIES / "qwen3_vl/reference.safetensors")["loss"]]) <= 1e-6


def test_what_does_not_fit_is_refused(space):
    change(space, image_token_id=44)
    assert "samples.h5: token 45 marks pictures, in model.language it is 44" in train(space, 2, "run", expect=65).stderr
    change(space, image_token_id=MARKER)
    refused = train(space, 3, "run", ["language.layout.pp=2", "language.layout.stages=[1,2]"], expect=78)
    assert "the first stage has 1 layers, but 'vision' delivers rows for 2 (deepstack)" in refused.stderr
    assert "section.vision.layout.pp: 2 stages of an encoder with deepstack" in train(space, 3, "run", ["vision.layout.pp=2"], expect=78).stderr


ALPHA = {"qwen3_vl": 3, "qwen3_vl_moe": 4}  # of make_lora.py


@BOTH
def test_adapters_of_both_models_train_as_by_peft(space, family):
    """All linear layers of both have one (make_lora.py). Losses of other layouts, merged weights, and the adapter that comes out."""
    shutil.copytree(FAMILIES / f"{family}_lora", space.path / "adapter")
    lora = [f"section.{section}.lora.{key}" for section in ("vision", "language") for key in ("rank=2", f"alpha={ALPHA[family]}", "weights=adapter")]
    train(space, 4, "four", ["vision.layout.tp=2", "language.layout.tp=2"], [*TUNING, *lora])
    expected = Safetensors(FAMILIES / f"{family}_lora/reference.safetensors")["losses"]
    assert expected[-1] < 0.9 * expected[0], "trains too little for a difference to show"
    print(relative(space.losses("four"), expected))
    assert relative(space.losses("four"), expected) <= 1e-4
    values = [*lora, "train.steps=4", "optimizer.learning_rate=0.01"]
    train(space, 2, "two", values=values)
    train(space, 6, "other", ["vision.layout.tp=2", "language.layout.tp=2", "language.layout.pp=2", "language.layout.stages=[2,1]"], values)
    assert relative(space.losses("other"), space.losses("two")) <= 1e-5 < relative(space.losses("two")[3:], space.losses("two")[:1])
    train(space, 2, "short", values=[*values, "train.steps=3"])
    export(space, 3, "runs/short", "--to", "merged")
    space.train(2, "deck.toml", "merged", [f"section.{section}.weights=merged" for section in ("vision", "language")] + ["train.steps=1"])
    export(space, 2, "runs/short", "--to", "tuned", "--adapter")
    train(space, 2, "tuned", values=[*(value.replace("=adapter", "=tuned") for value in lora), "train.steps=1"])
    for name in ("merged", "tuned"):
        assert relative(space.losses(name), space.losses("two")[3:]) <= 1e-5, name
    ours, peft = (Safetensors(space.path / folder / "adapter_model.safetensors") for folder in ("tuned", "adapter"))
    shapes = [{name: tensor["shape"] for name, tensor in file.header.items() if name != "__metadata__"} for file in (ours, peft)]
    assert shapes[0] == shapes[1] and any("visual" in name for name in shapes[0])
    # One folder of PEFT has one rank.
    train(space, 2, "unlike", values=["section.vision.lora.rank=2", "section.language.lora.rank=4", "train.steps=1"])
    refused = mpirun(1, "export", "runs/unlike", "--to", "unlike", "--adapter", cwd=space.path)
    assert refused.returncode == 64 and "unlike rank or alpha" in refused.stderr
    export(space, 1, "runs/unlike", "--section", "vision", "--to", "unlike", "--adapter")
