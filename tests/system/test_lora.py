"""LoRA on models of tests/golden/families in any layout, against PEFT (make_lora.py); exports, and what is refused."""

import json
import shutil

import numpy as np
import pytest
from conftest import ONE_RANK, VLM, mpirun, relative
from test_folders import DECK, FAMILIES, Safetensors, export, family, layouts_of, space, train  # noqa: F401  (family and space are fixtures)
from test_storage import shim  # noqa: F401 (a fixture)

PEFT = "section.text.lora.weights=adapter"
SIZES = dict(kind="language", family="qwen3", layers=2, width=24, heads=4, kv_heads=2, head_dim=16, mlp=40, vocabulary=48, rope_theta=5000)
MODEL = [f"model.text.{key}={value}" for key, value in SIZES.items()]  # of qwen3, for sections that start from a checkpoint


def lora(family):
    """The configuration that PEFT has written beside the reference's adapter."""
    return json.loads((FAMILIES / f"{family}_lora/adapter_config.json").read_text())


@pytest.fixture
def adapted(space, family):  # noqa: F811
    """The working directory with the deck of a section with LoRA as deck.toml, that without as plain.toml, and the reference's adapter."""
    (space.path / "plain.toml").write_text(DECK)
    (space.path / "deck.toml").write_text(
        DECK + "[section.lora]\nrank = {r}\nalpha = {lora_alpha}\ntargets = {target_modules}\n".format(**lora(family)))
    shutil.copytree(FAMILIES / f"{family}_lora", space.path / "adapter")
    return space


def test_fine_tuning_is_that_of_peft(adapted, family):  # noqa: F811
    train(adapted, 2, "tuned", ["tp=2"], ["train.steps=20", "optimizer.weight_decay=0.1", "optimizer.clip=0", "checkpoint.every=0", PEFT])
    expected = Safetensors(FAMILIES / f"{family}_lora" / "reference.safetensors")["losses"]
    assert expected[-1] < 0.9 * expected[0], "trains too little for a difference to show"
    assert relative(adapted.losses("tuned"), expected) <= 1e-4
    print(relative(adapted.losses("tuned"), expected))


def test_losses_do_not_depend_on_the_layout(adapted, family):  # noqa: F811
    """Of adapters that Maestro draws: the first loss is that of the model without them."""
    values = ["optimizer.learning_rate=0.01", "train.steps=4"]
    train(adapted, 1, "one", values=values)
    expected = Safetensors(FAMILIES / family / "reference.safetensors")["loss"]
    assert relative(adapted.losses("one")[:1], [expected]) <= 1e-6
    assert relative(adapted.losses("one")[3:], [expected]) > 1e-2, "trains too little for a difference to show"
    for name, (ranks, layout) in layouts_of(family).items():
        train(adapted, ranks, name, layout, [*values, "run.tp_overlap=always"])
        assert relative(adapted.losses(name), adapted.losses("one")) <= 1e-5, name
    for recompute in ("cheap", "layer"):
        train(adapted, 1, recompute, values=[*values, f"train.recompute={recompute}"])
        assert np.array_equal(adapted.losses(recompute), adapted.losses("one")), recompute


def test_bf16_trains_as_fp32(adapted, family):  # noqa: F811
    values = ["optimizer.learning_rate=0.01", "train.steps=4", PEFT]
    train(adapted, 1, "fp32", values=values)
    train(adapted, 2, "bf16", ["tp=2"], [*values, "run.precision=bf16"])
    assert relative(adapted.losses("bf16"), adapted.losses("fp32")) <= 0.02


def test_exports_have_the_losses_of_the_run(adapted, family, shim):  # noqa: F811
    values = ["optimizer.learning_rate=0.01", PEFT]
    train(adapted, 1, "long", values=[*values, "train.steps=4"])
    train(adapted, 4, "short", ["pp=2", "tp=2"], values)
    export(adapted, 3, "runs/short", "--to", "merged")
    export(adapted, 2, "runs/short", "--to", "tuned", "--adapter")
    # The weights with the adapters are a model without adapters, and the adapters are those of the run.
    adapted.train(1, "plain.toml", "merged", ["section.text.weights=merged", "train.steps=1"])
    train(adapted, 1, "tuned", values=["section.text.lora.weights=tuned", "train.steps=1"])
    assert relative(adapted.losses("merged"), adapted.losses("long")[3:]) <= 1e-5
    assert relative(adapted.losses("tuned"), adapted.losses("long")[3:]) <= 1e-5
    assert relative(adapted.losses("merged"), adapted.losses("long")[:1]) > 1e-2
    # What has no adapter is as it was, and the same adapters are merged to the same bytes by any number of ranks.
    source, merged = (Safetensors(adapted.path / folder / "model.safetensors") for folder in ("model", "merged"))
    unchanged = {name for name in merged.header if name != "__metadata__" and np.array_equal(merged[name], source[name])}
    expected = {name for name in merged.header if name.split(".")[-2:] not in [[target, "weight"] for target in lora(family)["target_modules"]]} - {"__metadata__"}
    assert unchanged == expected
    export(adapted, 1, "runs/short", "--to", "again")
    assert (adapted.path / "again/model.safetensors").read_bytes() == (adapted.path / "merged/model.safetensors").read_bytes()
    ours, peft = (Safetensors(adapted.path / folder / "adapter_model.safetensors") for folder in ("tuned", "adapter"))
    shapes = [{name: tensor["shape"] for name, tensor in file.header.items() if name != "__metadata__"} for file in (ours, peft)]
    assert shapes[0] == shapes[1]
    assert "the folder holds weights already" in export(adapted, 1, "runs/short", "--to", "tuned", "--adapter", expect=73).stderr
    # A disk that changes what it stores.
    file = "changed/adapter_model.safetensors.partial"
    failed = mpirun(1, "export", "runs/short", "--to", "changed", "--adapter", cwd=adapted.path,
                    exports={"LD_PRELOAD": shim, "SHIM_PATH": file, "SHIM_CALLS": "write", "SHIM_FLIP": 64})  # fmt: skip
    assert failed.returncode == 74 and f"{file}: " in failed.stderr and "read back" in failed.stderr, failed.stderr
    assert not list(adapted.path.glob("changed/adapter*"))


@pytest.mark.parametrize("family", ["qwen3"], indirect=True)
def test_checkpoints_with_other_adapters_are_refused(adapted):
    train(adapted, 1, "lora")
    other = adapted.train(1, "deck.toml", "x", ["section.text.weights=runs/lora", "section.text.lora.alpha=99", *MODEL], expect=65)
    assert "its adapters have rank 3, alpha 4, targets q_proj" in other.stderr
    assert "adapter of layers.0.attention.qkv.weight" in adapted.train(1, "plain.toml", "x", ["section.text.weights=runs/lora", *MODEL], expect=65).stderr
    # A section starts from a checkpoint with the same adapters or none.
    train(adapted, 2, "further", ["dp=2"], ["section.text.weights=runs/lora"] + MODEL)
    adapted.train(1, "plain.toml", "plain", ["train.steps=1", "optimizer.learning_rate=0"])
    train(adapted, 1, "fresh", values=["section.text.weights=runs/plain"] + MODEL)
    assert adapted.losses("further")[0] < adapted.losses("lora")[-1] < adapted.losses("lora")[0]
    assert np.array_equal(adapted.losses("fresh"), adapted.losses("lora"))
    assert "has no adapter; leave --adapter out" in export(adapted, 1, "runs/plain", "--to", "y", "--adapter", expect=64).stderr
    # A run goes on with its adapters.
    resumed = adapted.train(1, "deck.toml", "lora", ["section.text.lora.rank=8", "train.steps=4"], options=["--resume", "auto"], expect=78)
    assert "section.text.lora.rank: 3 in the checkpoint, 8 now" in resumed.stderr
    adapted.train(1, "deck.toml", "lora", ["train.steps=4"], options=["--resume", "auto"])
    train(adapted, 1, "whole", values=["train.steps=4"])
    assert np.array_equal(adapted.losses("lora"), adapted.losses("whole"))
    assert "r is 3, but by the deck 5" in train(adapted, 1, "z", values=["section.text.lora.rank=5", PEFT], expect=65).stderr


def test_only_adapters_have_optimizer_states(workspace):
    """Of a vision section; the section behind it trains all of its weights."""
    values = [*ONE_RANK, "train.steps=3", "section.vision.weights=random", "section.vision.lora.rank=2", "section.vision.lora.alpha=8"]
    workspace.train(1, VLM, "lora", values)
    workspace.train(1, VLM, "cp", [*values, "section.vision.layout.cp=1", "section.vision.lora.targets=[\"q_proj\"]", "train.recompute=layer"])
    of_vision, of_language = (workspace.checkpoint("lora", 3, section) for section in ("vision", "language"))
    assert set(of_language["adam_m"]) == set(of_language["weights"])
    assert set(of_vision["adam_m"]) == {name for name in of_vision["weights"] if ".lora_" in name}
    assert len(of_vision["adam_m"]) == 8 * len({name.split(".")[1] for name in of_vision["weights"] if name.startswith("layers.")})
