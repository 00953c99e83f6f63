"""Sections that start from the folder of a published model, tests/golden/families, in any layout; and folders that are refused."""

import json
import shutil
import subprocess

import numpy as np
import pytest
from conftest import BINARY, ROOT, Workspace, mpirun, relative
from sample_file import Sample, SampleWriter
from test_storage import shim  # noqa: F401 (fixture)

FAMILIES = ROOT / "tests/golden/families"
DECK = """\
[run]
output = "run"
[data]
train = "samples.h5"
global_batch = 3
sequence_length = 64
[train]
steps = 3
[optimizer]
learning_rate = 1e-3
[schedule]
policy = "wavefront"
[model.text]
[[section]]
name = "text"
model = "text"
weights = "model"
[section.layout]
"""
# mpi.family_layouts_test compares gradients in more of them; these have edges between stages and sums over replicas.
LAYOUTS = {"pp 2, tp 2": (4, ["pp=2", "tp=2"]), "cp 2, dp 2": (4, ["cp=2", "dp=2"])}
EXPERT_LAYOUTS = {"pp 2, tp 2, ep 2": (4, ["pp=2", "tp=2", "ep=2"]), "dp 2, tp 2, etp 2": (4, ["dp=2", "tp=2", "etp=2"])}


def layouts_of(family):
    config = json.loads((FAMILIES / family / "config.json").read_text())
    return EXPERT_LAYOUTS if {"num_experts", "num_local_experts"} & set(config) else LAYOUTS


class Safetensors:
    def __init__(self, path):
        self.bytes = path.read_bytes()
        length = int.from_bytes(self.bytes[:8], "little")
        self.header, self.data = json.loads(self.bytes[8:8 + length]), self.bytes[8 + length:]

    def __getitem__(self, name):
        tensor = self.header[name]
        kind = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "U8": "u1"}[tensor["dtype"]]
        return np.frombuffer(self.data[slice(*tensor["data_offsets"])], kind).reshape(tensor["shape"])


@pytest.fixture(params=["llama", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("mistral", "qwen2", "qwen3")), "qwen3_moe"])
def family(request):
    return request.param


@pytest.fixture
def space(tmp_path, family):
    """A working directory with the folder "model", the deck, and the samples of the reference. The token space.end ends answers."""
    shutil.copytree(FAMILIES / family, tmp_path / "model")
    (tmp_path / "deck.toml").write_text(DECK)
    reference = Safetensors(FAMILIES / family / "reference.safetensors")
    tokens = [reference[f"tokens.{s}"].tolist() for s in range(3)]
    unused = next(t for t in range(48) if all(t not in sample for sample in tokens))
    end = tokens[0][2]
    tokenizer = json.dumps({"model": {"type": "BPE", "vocab": {f"t{t}": t for t in range(48)}, "merges": []}, "decoder": {"type": "ByteLevel"},
                            "added_tokens": [{"id": t, "content": f"t{t}", "special": True} for t in (end, unused)]})  # fmt: skip
    (tmp_path / "model/tokenizer.json").write_text(tokenizer)
    writer = SampleWriter(tmp_path / "samples.h5", vocabulary=48, marker=unused, tokenizer="huggingface", tokenizer_json=tokenizer.encode())
    for s, ids in enumerate(tokens):
        sample = Sample()
        for token, weight in zip(ids, reference[f"weights.{s}"].tolist()):
            sample.add([token], weight=weight)
        writer.add(sample)
    writer.close()
    space = Workspace(tmp_path)
    space.end = end
    return space


def train(space, ranks, name, layout=(), values=(), expect=0):
    return space.train(ranks, "deck.toml", name, [*(f"section.text.layout.{degree}" for degree in layout), *values], expect=expect)


def test_the_first_loss_is_that_of_transformers_in_every_layout(space, family):
    train(space, 1, "one")
    expected = Safetensors(FAMILIES / family / "reference.safetensors")["loss"]
    assert relative(space.losses("one")[:1], [expected]) <= 1e-6
    assert relative(space.losses("one")[2:], [expected]) > 1e-3, "trains too little for a difference to show"
    for name, (ranks, layout) in layouts_of(family).items():
        train(space, ranks, name, layout)
        assert relative(space.losses(name), space.losses("one")) <= 1e-5, name


def test_fine_tuning_is_that_of_transformers(space, family):
    train(space, 2, "tuned", ["tp=2"], ["train.steps=20", "optimizer.weight_decay=0.1", "optimizer.clip=0", "checkpoint.every=0"])
    expected = Safetensors(FAMILIES / family / "reference.safetensors")["losses"]
    assert expected[-1] < 0.8 * expected[0], "trains too little for a difference to show"
    assert relative(space.losses("tuned"), expected) <= 1e-4
    print(relative(space.losses("tuned"), expected))


def change(space, **keys):
    path = space.path / "model/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


@pytest.mark.parametrize("family", ["qwen3"], indirect=True)
def test_folders_that_do_not_fit_are_refused(space):
    refused = train(space, 1, "run", values=["model.text.width=32"], expect=78)
    assert "--set model.text.width: 32 here, but 24 in model/config.json; leave the key out" in refused.stderr
    change(space, model_type="bloom")
    assert "model/config.json: model_type: 'bloom' is not built; allowed: llama, " in train(space, 1, "run", expect=65).stderr
    change(space, model_type="qwen3", attention_bias=True)
    assert "attention_bias: true is not built" in train(space, 1, "run", expect=65).stderr
    change(space, attention_bias=False, intermediate_size=48)
    refused = train(space, 2, "run", ["tp=2"], expect=65)
    assert '"model.layers.0.mlp.gate_proj.weight" has the shape [40, 24], but by config.json [48, 24]' in refused.stderr
    change(space, intermediate_size=40, num_hidden_layers=1)
    refused = train(space, 1, "run", expect=65)
    assert 'tensor "model.layers.1.' in refused.stderr and "is not part of a model of family qwen3" in refused.stderr
    change(space, num_hidden_layers=3)
    assert "model.layers.2." in train(space, 1, "run", expect=65).stderr
    change(space, num_hidden_layers=2)
    (space.path / "model/model.safetensors").unlink()
    assert "model.safetensors" in train(space, 1, "run", expect=66).stderr
    moved = train(space, 1, "run", values=["section.text.weights=moved"], expect=78)
    assert "--set section.text.weights: there is no moved/config.json, from which [model.text] could take its missing keys" in moved.stderr
    assert not space.run("run").exists() or not list(space.run("run").glob("checkpoints/*"))


def test_a_folder_without_weights_is_simulated_and_emulated(space):
    """Sizes are enough, so that a layout can be tried before a large model is downloaded."""
    (space.path / "model/model.safetensors").unlink()
    cluster = ROOT / "inputs/clusters/h100.toml"
    simulated = mpirun(1, "simulate", "deck.toml", "--cluster", cluster, "--set", "section.text.layout.tp=2", cwd=space.path)
    assert simulated.returncode == 0 and json.loads(simulated.stdout.splitlines()[-1])["ranks"] == 2, simulated.stderr
    train(space, 2, "emulated", ["tp=2"], ["run.device=emulated", f"emulated.cluster={cluster}"])
    assert list(space.losses("emulated")) == sorted(space.losses("emulated"), reverse=True) and len(space.losses("emulated")) == 3


def export(space, ranks, *arguments, expect=0):
    result = mpirun(ranks, "export", *arguments, cwd=space.path)
    assert result.returncode == expect, result.stdout + result.stderr
    return result


def test_a_teacher_and_its_student_from_one_folder_agree(space, family):
    """The divergence is 0, so that half of the loss is left: the teacher's head has reached the student's ranks."""
    section = DECK[DECK.index("[[section]]"):].replace("[section.layout]\n", "")
    teacher = section.replace('"text"', '"teacher"', 1) + 'mode = "forward"\n'
    edge = '[[edge]]\nfrom = "teacher"\nto = "text"\ntensor = "hidden"\n'
    (space.path / "deck.toml").write_text(DECK[:DECK.index("[[section]]")] + teacher + section + edge)
    train(space, 3, "distilled", ["dp=1"], ["train.steps=1", "section.text.layout.tp=2", "section.text.distill.alpha=0.5"])
    expected = Safetensors(FAMILIES / family / "reference.safetensors")["loss"]
    assert relative(space.losses("distilled"), [expected / 2]) <= 1e-6


def test_an_imported_deck_trains(space, family):
    result = mpirun(1, "import", "model", "--out", "decks/imported.toml", cwd=space.path)
    assert result.returncode == 0 and "decks/imported.toml: a deck" in result.stdout, result.stderr
    again = mpirun(1, "import", "model", "--out", "decks/imported.toml", cwd=space.path)
    assert again.returncode == 73 and "decks/imported.toml: exists already" in again.stderr
    values = ["data.train=samples.h5", "data.global_batch=3", "data.sequence_length=64", "train.steps=2", "run.precision=fp32",
              "section.language.layout.tp=2"]
    space.train(2, "decks/imported.toml", "imported", values)
    expected = Safetensors(FAMILIES / family / "reference.safetensors")["loss"]
    assert relative(space.losses("imported")[:1], [expected]) <= 1e-6


def ends_of(folder):
    ends = json.loads((folder / "generation_config.json").read_text()).get("eos_token_id", [])
    return ends if isinstance(ends, list) else [ends]


def test_an_export_is_the_folder_again(space, family, shim):  # noqa: F811
    """Without learning, bit for bit, from and by any number of ranks; with it, a folder that training goes on from. With the ends of answers."""
    train(space, 2, "same", ["tp=2"], ["train.steps=1", "optimizer.learning_rate=0"])
    export(space, 3, "runs/same", "--to", "exported")
    source, exported = (Safetensors(space.path / folder / "model.safetensors") for folder in ("model", "exported"))
    names = set(source.header) - {"__metadata__"}
    assert set(exported.header) == {"__metadata__", *names} and exported.header["__metadata__"] == {"format": "pt"}
    assert all(exported.header[name]["dtype"] == source.header[name]["dtype"] for name in names)
    assert all(np.array_equal(exported[name], source[name]) for name in names)
    assert all((space.path / "exported" / name).read_bytes() == (space.path / "model" / name).read_bytes() for name in ("config.json", "tokenizer.json"))
    assert ends_of(space.path / "exported") == [*ends_of(space.path / "model"), space.end]
    train(space, 1, "one")
    for file, flip, what in (("model.safetensors", 4096, 'tensor "model.embed'), ("generation_config.json", 20, "what was read back is not")) if family == "llama" else ():
        bad_disk = {"LD_PRELOAD": shim, "SHIM_PATH": f"changed/{file}.partial", "SHIM_CALLS": "write", "SHIM_FLIP": flip}
        failed = mpirun(1, "export", "runs/one", "--to", "changed", cwd=space.path, exports=bad_disk)
        assert failed.returncode == 74 and f"changed/{file}.partial: " in failed.stderr and what in failed.stderr, failed.stderr
        assert not [*space.path.glob("changed/model*"), *space.path.glob("changed/*.partial")]
    export(space, 1, "runs/one", "--section", "text", "--to", "trained")
    train(space, 1, "two", values=["section.text.weights=trained"])
    assert space.losses("two")[0] < space.losses("one")[-1]
    assert "the folder holds weights already" in export(space, 1, "runs/one", "--to", "trained", expect=73).stderr
    assert "has no section 'vision'; give --section, one of text" in export(space, 1, "runs/one", "--section", "vision", "--to", "x", expect=64).stderr


@pytest.mark.parametrize("family", ["qwen3"], indirect=True)
def test_ranks_that_see_other_folders_export_nothing(space):
    """The second rank works in another directory, as where a node sees a network file system of before."""
    train(space, 1, "run", values=["train.steps=1"])
    other = space.path / "other"
    other.mkdir()
    (other / "runs").symlink_to(space.path / "runs")
    command = ["-n", "1", BINARY, "export", "runs/run", "--to", str(space.path / "exported")]

    def refused(code):
        done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", *command, ":", "-wdir", str(other), *command], cwd=space.path,
                              capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert done.returncode == code and not list(space.path.glob("exported/*")), done.stdout + done.stderr
        lines = [line for line in done.stderr.splitlines() if line.startswith("maestro: ")]
        assert len(lines) == 1, done.stderr
        return lines[0]

    assert "model: the folder that section text started from is missing" in refused(66)
    shutil.copytree(space.path / "model", other / "model")
    header = b'{"__metadata__":{"format":"pt"}}'  # before the tensors have arrived
    (other / "model/model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert "model: ranks see different files there; wait until the network file system" in refused(74)
