"""The files of model folders: one or several, in and out by every layout, bit for bit; and files that are refused."""

import copy
import json
import os
import subprocess

import numpy as np
import pytest
from conftest import BINARY
from test_folders import FAMILIES, Safetensors, change, export
from test_folders import space as text_space  # noqa: F401  (a fixture)
from test_folders import train as train_text
from test_vision_folders import same, tensors
from test_vision_folders import space as vision_space  # noqa: F401
from test_vision_folders import train as train_vision

INDEX = "model.safetensors.index.json"
TEXT_LAYOUTS = {
    "tp 2": (2, ["tp=2"]), "pp 2": (2, ["pp=2"]), "cp 2": (2, ["cp=2"]), "dp 2": (2, ["dp=2"]), "tp 2 x pp 2": (4, ["tp=2", "pp=2"]),
    "tp 2 x cp 2": (4, ["tp=2", "cp=2"]), "cp 2 x pp 2 x dp 2": (8, ["cp=2", "pp=2", "dp=2"]),
}  # fmt: skip
EXPERT_LAYOUTS = {"tp 2 x pp 2": (4, ["tp=2", "pp=2", "ep=2"]), "tp 2 x cp 2, ep 2 x etp 2": (4, ["tp=2", "cp=2", "ep=2", "etp=2"])}
VISION_LAYOUTS = {
    "tp 2 x pp 2": (6, ["vision.layout.tp=2", "language.layout.tp=2", "language.layout.pp=2", "language.layout.stages=[2,1]"]),
    "cp 2 x dp 2": (8, [f"{section}.layout.{degree}=2" for section in ("vision", "language") for degree in ("cp", "dp")]),
}  # fmt: skip
VISION_EXPERT_LAYOUTS = {"tp 2 x pp 2": (6, [*VISION_LAYOUTS["tp 2 x pp 2"][1], "language.layout.ep=2"]),
                         "cp 2 x dp 2, etp 2": (8, [*VISION_LAYOUTS["cp 2 x dp 2"][1], "language.layout.etp=2"])}  # fmt: skip
BIAS_LAYOUTS = {name: TEXT_LAYOUTS[name] for name in ("tp 2 x pp 2", "tp 2 x cp 2")}
CASES = {"llama": (train_text, TEXT_LAYOUTS), "qwen3": (train_text, TEXT_LAYOUTS), "qwen3_moe": (train_text, EXPERT_LAYOUTS),
         "qwen3_vl": (train_vision, VISION_LAYOUTS), "qwen2": (train_text, BIAS_LAYOUTS),
         "qwen3_vl_moe": (train_vision, VISION_EXPERT_LAYOUTS)}  # fmt: skip
QUICK = ("llama", "qwen3", "qwen3_moe", "qwen3_vl")
EVERY_LAYOUT = [pytest.param(family, layout, marks=[] if family in QUICK and layout == "tp 2 x pp 2" else pytest.mark.nightly,
                             id=f"{family}, {layout}") for family, (_, layouts) in CASES.items() for layout in layouts]  # fmt: skip


@pytest.fixture
def space(request, family):
    return request.getfixturevalue("vision_space" if "_vl" in family else "text_space")


def write_file(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def split(folder, files):
    """Deals the tensors of model.safetensors out to several files, so that those of a fused parameter lie in different ones."""
    whole = Safetensors(folder / "model.safetensors")
    names = [name for name in whole.header if name != "__metadata__"]
    weight_map = {name: f"model-{i % files + 1:05}-of-{files:05}.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        header, data = {}, b""
        for name in (name for name in names if weight_map[name] == file):
            part = whole.data[slice(*whole.header[name]["data_offsets"])]
            header[name] = {**whole.header[name], "data_offsets": [len(data), len(data) + len(part)]}
            data += part
        write_file(folder / file, header, data)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": len(whole.data)}, "weight_map": weight_map}))
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize("family", QUICK)
def test_five_files_train_as_one(space, family):
    run, layouts = CASES[family]
    ranks, layout = layouts["tp 2 x pp 2"]
    run(space, ranks, "one", layout)
    split(space.path / "model", 5)
    run(space, ranks, "five", layout)
    assert np.array_equal(space.losses("one"), space.losses("five"))


def fuse_experts(folder):
    """Writes the matrices of all experts of a layer as one tensor, as models of transformers 5 have them."""
    whole = Safetensors(folder / "model.safetensors")
    experts = 1 + max(int(name.split(".experts.")[1].split(".")[0]) for name in whole.header if ".experts." in name)
    header, data = {}, b""
    for name in (name for name in whole.header if name != "__metadata__"):
        values = whole[name]
        if ".experts." in name:
            layer, _, rest = name.partition(".experts.")
            if not rest.startswith("0.") or rest == "0.up_proj.weight":
                continue
            kinds = ("gate_proj", "up_proj") if "gate" in rest else ("down_proj",)
            name = f"{layer}.experts.{'gate_up_proj' if 'gate' in rest else 'down_proj'}"
            values = np.stack([np.concatenate([whole[f"{layer}.experts.{e}.{kind}.weight"] for kind in kinds]) for e in range(experts)])
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.tobytes()
    write_file(folder / "model.safetensors", header, data)


@pytest.mark.parametrize("family", ["qwen3_moe"])
def test_fused_experts_train_as_separate_ones(space):
    ranks, layout = EXPERT_LAYOUTS["tp 2 x pp 2"]
    before = tensors(space.path / "model")
    train_text(space, ranks, "separate", layout)
    fuse_experts(space.path / "model")
    assert len(tensors(space.path / "model")) < len(before)
    train_text(space, ranks, "fused", layout)
    assert np.array_equal(space.losses("fused"), space.losses("separate"))
    train_text(space, ranks, "same", layout, ["train.steps=1", "optimizer.learning_rate=0"])
    export(space, 2, "runs/same", "--to", "exported")
    assert same(tensors(space.path / "exported"), before), "exported as published"
    # A layer with both forms would have two models.
    fused = Safetensors(space.path / "model/model.safetensors")
    name = "model.layers.1.mlp.experts.0.up_proj.weight"
    kind, shape, values = before[name]
    begin, extra = len(fused.data), values.tobytes()
    header = {**fused.header, name: {"dtype": kind, "shape": shape, "data_offsets": [begin, begin + len(extra)]}}
    write_file(space.path / "model/model.safetensors", header, fused.data + extra)
    refused(space, 65, f'tensor "{name}" is not part of a model of family qwen3_moe')


@pytest.mark.parametrize("family, name", EVERY_LAYOUT)
def test_every_layout_exports_the_folder_again(space, family, name):
    """Without learning, from one file and from five."""
    run, layouts = CASES[family]
    ranks, layout = layouts[name]
    before = tensors(space.path / "model")
    for files in (1, 5):
        if files > 1:
            split(space.path / "model", files)
        run(space, ranks, f"from-{files}", layout, ["train.steps=1", "optimizer.learning_rate=0", "optimizer.weight_decay=0.1"])
        export(space, files % 4 + 1, f"runs/from-{files}", "--to", f"exported-{files}")
        assert same(tensors(space.path / f"exported-{files}"), before)


def refused(space, code, *words):
    """Starts one rank, which has to refuse its folder without memory for what a file only claims to hold."""
    with open(space.path / "output", "w+", encoding="utf-8", errors="replace") as output:
        job = subprocess.Popen([BINARY, "train", "deck.toml"], cwd=space.path, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        _, status, usage = os.wait4(job.pid, 0)
        job.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    assert job.returncode == code, f"exit {job.returncode}, not {code}\n{text}"
    assert all(word in text for word in words) and len(text) < 1500, text
    assert "\x1b" not in text and usage.ru_maxrss < 300 << 10, f"{usage.ru_maxrss >> 10} MiB"


@pytest.mark.parametrize("family", ["qwen3"])
def test_hostile_configurations_are_refused(space):
    path = space.path / "model/config.json"
    good = path.read_text()
    for key, value, why in (
        ("num_hidden_layers", -1, "a whole number from 1 on"), ("num_hidden_layers", 2.5, "a whole number"), ("hidden_size", "24", "a whole number"),
        ("vocab_size", 1e300, "a whole number"), ("num_attention_heads", 0, "a whole number from 1 on"), ("intermediate_size", None, "is missing; take"),
        ("rms_norm_eps", "x", "a number"), ("tie_word_embeddings", 1, "true or false"), ("model_type", ["qwen3"], "a text"),
        ("model_type", None, "is missing"), ("model_type", "\x1b[2J" + "x" * 5000, "is not built"), ("hidden_act", "gelu", "allowed: silu"),
        ("layer_types", ["sliding_attention"], '"full_attention"'), ("use_sliding_window", True, "allowed: false"), ("attention_bias", True, "allowed: false"),
        ("attention_dropout", 0.1, "allowed: 0"), ("auto_map", {"AutoModel": "code.Model"}, "is not built"),
        ("quantization_config", {"quant_method": "fp8"}, "use the unquantized model"),
    ):  # fmt: skip
        change(space, **{key: value})
        refused(space, 65, f"model/config.json: {key}: ", why)
        path.write_text(good)
    change(space, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4})
    refused(space, 65, "model/config.json: rope_parameters.rope_type: 'yarn' is not built; allowed: default, llama3")
    path.write_text(good)
    change(space, vocab_size=1 << 24)  # 3 GB of weights, gradients and moments
    refused(space, 65, 'tensor "model.embed_tokens.weight" has the shape [48, 24], but by config.json [16777216, 24]')
    path.write_text(good)
    change(space, num_hidden_layers=2**31)
    refused(space, 78, "model/config.json: model.text.layers: 2147483648 is out of range; allowed: a whole number from 1 to 1000")
    for text in (b"", b'{"a":"' + b"x" * (2 << 20) + b'"}'):
        path.write_bytes(text)
        refused(space, 65, f"model/config.json: it has {len(text)} bytes, so it is no model's configuration")
    nested = b"[" * 400_000 + b"]" * 400_000
    for text in (b'{"model_type":"qwen3","a":' + nested + b"}", b'{"model_type":"qwen3","layer_types":' + nested + b"}"):
        path.write_bytes(text)
        refused(space, 65, "model/config.json: its JSON has more than 16 levels")
    for text in (b"[]", b"{", b'{"a":"\xff"}'):
        path.write_bytes(text)
        refused(space, 65, "model/config.json: not a JSON object; download or convert the model again")
    path.unlink()
    refused(space, 66, "model/config.json: it is missing; download the whole model folder")
    os.mkfifo(path)
    refused(space, 65, "model/config.json: it is not a regular file")
    path.unlink()
    path.symlink_to("/dev/zero")
    refused(space, 65, "model/config.json: it is not a regular file")
    path.unlink()
    (space.path / "model/model.safetensors").rename(space.path / "model/adapter_model.safetensors")
    (space.path / "model/adapter_config.json").write_text("{}")
    refused(space, 65, "model: it holds a LoRA adapter and no model; name it in")
    (space.path / "model").rename(space.path / "elsewhere")
    refused(space, 78, "there is no model/config.json, from which [model.text] could take its missing keys")


@pytest.mark.parametrize("family", ["qwen3"])
def test_hostile_weights_are_refused(space):
    path, name = space.path / "model/model.safetensors", "model.layers.1.mlp.down_proj.weight"
    good = Safetensors(path)
    begin, end = good.header[name]["data_offsets"]

    def with_tensor(**members):
        header = copy.deepcopy(good.header)
        header[name].update(members)
        return header

    claimed = {"shape": [1 << 30, 256], "data_offsets": [begin, begin + (1 << 40)]}
    for header, data, *words in (
        (with_tensor(**claimed), good.data, f'tensor "{name}"', "the file is cut off"),
        (with_tensor(shape=[-24, 40]), good.data, f'tensor "{name}"', "not a list of sizes"),
        (with_tensor(dtype="I32"), good.data, f'tensor "{name}"', "its dtype is I32", "take the model that was not quantized"),
        (with_tensor(dtype="F8_E4M3", shape=[24, 160]), good.data, f'tensor "{name}"', "its dtype is F8_E4M3", "take the model that was not quantized"),
        (with_tensor(shape=[40, 24]), good.data, f'tensor "{name}" has the shape [40, 24], but by config.json [24, 40]'),
        (good.header, good.data[:begin] + b"\0\0\xc0\x7f" + good.data[begin + 4:], f'tensor "{name}": element [0, 0]', "is NaN or Inf"),
        ({**good.header, "lm_head.weight": {"dtype": "F32", "shape": [48, 24], "data_offsets": [len(good.data), len(good.data) + 4608]}},
         good.data + bytes(4608), '"lm_head.weight" differs from "model.embed_tokens.weight"', "set tie_word_embeddings to false"),
        ({**good.header, "\x1b[2J" + "y" * 3000: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}, good.data, "is not part of a model"),
    ):  # fmt: skip
        write_file(path, header, data)
        refused(space, 65, "model", *words)
    path.unlink()
    (space.path / "blob").write_bytes((FAMILIES / "qwen3/model.safetensors").read_bytes())
    path.symlink_to("../blob")
    train_text(space, 1, "linked")
    path.rename(space.path / "model/a.safetensors")
    weight_map = {tensor: "a.safetensors" for tensor in good.header if tensor != "__metadata__"}
    for file, code, why in (("../blob.safetensors", 65, "which is no file of this folder"), ("b.safetensors", 66, "download the whole model folder")):
        (space.path / "model" / INDEX).write_text(json.dumps({"weight_map": {**weight_map, name: file}}))
        refused(space, code, file, why)
    (space.path / "model" / INDEX).unlink()
    (space.path / "model/a.safetensors").rename(space.path / "model/pytorch_model.bin")
    refused(space, 65, "its weights are pickled (*.bin)", "save_pretrained()")
