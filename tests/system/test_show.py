"""maestro evaluate --show: prompts, answers that are decoded with a cache, and targets, as text, the same in every layout."""

import json
import re
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest
from conftest import DISTILL, FOUR_RANKS, ROOT, TEACHER, VLM, Workspace, mpirun, settings
from test_folders import DECK, FAMILIES

sys.path.insert(0, str(ROOT / "scripts/data"))
from sample_file import Sample, SampleWriter  # noqa: E402

GOLDEN = ROOT / "tests/golden/tokenizers"
CHATS = ["data.train=runs/chats.h5", "data.validation=runs/chats.h5", "data.global_batch=8", "model.text-teacher.vocabulary=284"]


def show(workspace, ranks, deck, count, values=(), *, run="run", expect=0, options=()):
    """Returns what is printed, without the line that has the time; or the error."""
    result = mpirun(ranks, "evaluate", deck, "--checkpoint", f"runs/{run}", "--show", count, *options, *settings(values), cwd=workspace.path)
    assert result.returncode == expect, result.stdout + result.stderr
    if expect:
        return result.stderr
    lines = result.stdout.splitlines()
    json.loads(lines[-1])
    return [line for line in lines[:-1] if "exact," not in line]


def column(lines, label):
    """The text behind a label, by sample."""
    found, current = [], None
    for line in lines:
        if match := re.fullmatch(r"  (prompt|answer|target|      ) \| (.*)", line):
            current = match[1] if match[1].strip() else current
            if current == label:
                if match[1].strip():
                    found.append([])
                found[-1].append(match[2])
    return ["\n".join(each) for each in found]


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("glyphs")
    (path / "data").symlink_to(data)
    workspace = Workspace(path)
    workspace.train(4, VLM, "run", [*FOUR_RANKS, "train.steps=40"])
    return workspace


def write_chats(path, tokenizer, **changes):
    """Two conversations of two turns, in the tokens of a tokenizer without normalization."""
    ids = {case["text"]: case["ids"] for case in json.loads((GOLDEN / "byte_level_cases.json").read_text())}
    special = {token["content"]: [token["id"]] for token in tokenizer["added_tokens"]}
    begin, end = special["<|im_start|>"], special["<|im_end|>"]
    prompts = ["Grüße aus Köln: 12 € für 3 Äpfel", "def f(x):\n\treturn x ** 2\r\n"]
    answers = ["🙂👩‍💻 done", "世界は 広い。"]
    writer = SampleWriter(path, vocabulary=284, marker=special["two words"][0], tokenizer="huggingface",
                          tokenizer_json=json.dumps({**tokenizer, **changes}).encode())  # fmt: skip
    for i in range(12):
        sample = Sample()
        for turn in range(2):
            sample.add(begin + ids[prompts[i % 2]] + end + begin, weight=0.0)
            sample.add(ids[answers[(i + turn) % 2]] + end)
        writer.add(sample)
    writer.close()
    return prompts, answers


@pytest.fixture
def tokenizer():
    return json.loads((GOLDEN / "byte_level.json").read_text())


def test_answers_are_those_that_the_model_has_learned_in_every_layout(workspace, tokenizer):
    prompts, answers = write_chats(workspace.path / "runs/chats.h5", tokenizer)
    workspace.train(2, TEACHER, "run", [*CHATS, "train.steps=80"])
    found = show(workspace, 1, TEACHER, 2, CHATS)
    escaped = [prompt.replace("\t", "\\t").replace("\r", "\\r") for prompt in prompts]
    assert column(found, "prompt") == [f"<|im_start|>{prompt}<|im_end|><|im_start|>" for prompt in escaped]
    expected = [answer + "<|im_end|>" for answer in answers]  # of the first turn
    assert column(found, "target") == expected and column(found, "answer") == expected
    assert sum("answers with the target" in line for line in found) == 2
    for ranks, layout in ((3, []), (4, ["layout.tp=2"])):
        assert show(workspace, ranks, TEACHER, 2, [*CHATS, *(f"section.teacher.{key}" for key in layout)]) == found, layout
    bf16 = show(workspace, 2, TEACHER, 2, [*CHATS, "run.precision=bf16"])
    assert column(bf16, "answer") == expected


def test_a_folder_answers_as_transformers_does_and_ends_with_its_eos_token(workspace, tokenizer):
    """The line of generated.txt in which the folder's eos_token_id occurs. The learning rate leaves the weights as they are."""
    shutil.copytree(FAMILIES / "llama", workspace.path / "model")
    (workspace.path / "deck.toml").write_text(DECK)
    eos = json.loads((workspace.path / "model/generation_config.json").read_text())["eos_token_id"]
    lines = [[list(map(int, part.split())) for part in line.split(" : ")] for line in (workspace.path / "model/generated.txt").read_text().splitlines()]
    prompt, generated = next(line for line in lines if eos in line[1])
    expected = generated[: generated.index(eos) + 1]
    writer = SampleWriter(workspace.path / "samples.h5", vocabulary=48, marker=47, tokenizer="huggingface",
                          tokenizer_json=json.dumps({**tokenizer, "decoder": {"type": "WordPiece"}}).encode())  # fmt: skip
    for _ in range(3):
        sample = Sample()
        sample.add(prompt, weight=0.0)
        sample.add([7] * 8)  # whose last token is no end, because others are the same
        writer.add(sample)
    writer.close()
    values = ["run.device=cpu", "data.validation=samples.h5"]
    (workspace.path / "model/tokenizer.json").write_text(json.dumps(tokenizer, indent=1))  # the same in another form
    log = workspace.train(1, "deck.toml", "run", [*values, "train.steps=1", "optimizer.learning_rate=1e-12"]).stdout
    assert "could not be checked" not in log
    found = show(workspace, 1, "deck.toml", 1, values)
    assert column(found, "answer") == [" ".join(map(str, expected))] and f"{len(expected)} tokens" in "".join(found)
    assert show(workspace, 2, "deck.toml", 1, [*values, "section.text.layout.tp=2"]) == found
    tokenizer["added_tokens"][0]["content"] = "<|end|>"
    (workspace.path / "model/tokenizer.json").write_text(json.dumps(tokenizer))
    refused = mpirun(2, "train", "deck.toml", "--dry-run", *settings([*values, "section.text.layout.tp=2"]), cwd=workspace.path)
    assert refused.returncode == 65 and refused.stderr.count("the first id that differs is 280: '<|im_start|>' and '<|end|>'") == 1, refused.stderr
    assert "made with another tokenizer than that of model" in show(workspace, 1, "deck.toml", 1, values, expect=65)


def test_answers_to_pictures_are_the_same_in_every_layout(glyphs):
    found = show(glyphs, 4, VLM, 9, FOUR_RANKS)
    with h5py.File(glyphs.path / "data/glyphs-validation.h5") as file:
        offsets, shapes, tokens = file["index/sample_offsets"][:], file["index/picture_shape"][:], file["tokens"][:]
        owner = file["index/picture_offsets"][:]
    prompts, targets = column(found, "prompt"), column(found, "target")
    assert len(prompts) == len(targets) == len(column(found, "answer")) == 9
    with_picture = 0
    for i, (prompt, target) in enumerate(zip(prompts, targets)):
        sample = tokens[offsets[i] : offsets[i + 1]]
        if owner[i + 1] > owner[i]:
            height, width = shapes[owner[i]]
            assert prompt == f"<begin>[picture {width} x {height}]"
            with_picture += 1
            sample = sample[2:]
        else:
            assert prompt == "<begin>"
            sample = sample[1:]
        stop = next(j for j, token in enumerate(sample) if token > 255)
        text = bytes(sample[:stop].astype(np.uint8)).decode("utf-8", "replace")
        assert target == text + ("<end>" if sample[stop] == 258 else "")
    assert 0 < with_picture < 9
    for ranks, layout in ((1, []), (2, []), (5, ["vision.layout.tp=3", "language.layout.tp=2", "language.layout.dp=1"]),
                          (5, ["vision.layout.cp=3", "language.layout.tp=2", "language.layout.dp=1"])):  # fmt: skip
        values = [*FOUR_RANKS, *(f"section.{key}" for key in layout)]
        assert show(glyphs, ranks, VLM, 9, values) == found, (ranks, layout)


def test_a_student_decodes_and_its_teacher_does_not(workspace):
    values = ["section.teacher.weights=random"]
    workspace.train(3, DISTILL, "run", ["train.steps=4", *values])
    found = show(workspace, 3, DISTILL, 1, values)
    assert "section student answers with" in "".join(found)
    assert show(workspace, 1, DISTILL, 1, values) == found


@pytest.mark.nightly
def test_layouts_and_devices_that_cannot_decode_are_refused(glyphs):
    for ranks, layout, keys in ((3, ["dp=1", "pp=2"], "layout.pp = 2"), (4, ["dp=1", "cp=3"], "layout.cp = 3")):
        values = [*FOUR_RANKS, *(f"section.language.layout.{key}" for key in layout)]
        message = show(glyphs, ranks, VLM, 1, values, expect=78)
        assert keys in message and f"--set section.language.layout.{layout[1][:2]}=1" in message and message.count("--show") == 1
        assert show(glyphs, 1, VLM, 1, values)  # whole on one rank
    assert "an emulated device computes nothing" in show(glyphs, 4, VLM, 1, [*FOUR_RANKS, "run.device=emulated", f"emulated.cluster={ROOT}/inputs/clusters/h100.toml"], expect=78)
    assert "not negative" in show(glyphs, 1, VLM, -1, expect=64)


def test_tokens_without_a_known_tokenizer_are_shown_by_their_ids(workspace, tokenizer):
    write_chats(workspace.path / "runs/chats.h5", tokenizer, decoder={"type": "WordPiece"})
    workspace.train(2, TEACHER, "run", [*CHATS, "train.steps=1"])
    found = show(workspace, 1, TEACHER, 1, CHATS)
    assert "by their ids" in found[0] and "'WordPiece' is not built" in found[0] and "runs/chats.h5" in found[0]
    assert all(re.fullmatch(r"\d+( \d+)*", text) for label in ("prompt", "answer", "target") for text in column(found, label))


def test_samples_without_targets_are_left_out(workspace):
    tool = [sys.executable, str(ROOT / "scripts/data/make_mixed.py"), "runs/one.h5", "--samples", "1", "--share", "0", "--tokens", "2", "--longest", "2"]
    (workspace.path / "runs").mkdir()
    subprocess.run(tool, cwd=workspace.path, check=True, capture_output=True)
    workspace.train(2, TEACHER, "run", ["train.steps=1"])
    found = show(workspace, 1, TEACHER, 5, ["data.validation=runs/one.h5"])
    assert len(column(found, "target")) == 1  # fewer than asked for


def test_a_long_answer_is_no_hang(workspace, monkeypatch):
    """Two of four ranks decode it, with messages that take their time, for longer than the deadline of the others."""
    writer = SampleWriter(workspace.path / "long.h5", vocabulary=260, marker=256)
    sample = Sample()
    sample.add([257, 65], weight=0.0)
    sample.add([66] * 500)
    for _ in range(4):
        writer.add(sample)
    writer.close()
    values = ["data.train=long.h5", "data.validation=long.h5", "data.global_batch=4", "data.sequence_length=600"]
    workspace.train(2, TEACHER, "run", [*values, "train.steps=1", "checkpoint.every=1"])
    subprocess.run(["mpicc", "-O1", "-shared", "-fPIC", "-o", "delay_shim.so", str(ROOT / "tests/system/delay_shim.c"), "-ldl"], cwd=workspace.path, check=True)
    monkeypatch.setenv("LD_PRELOAD", str(workspace.path / "delay_shim.so"))
    assert len(column(show(workspace, 4, TEACHER, 1, [*values, "section.teacher.layout.tp=2", "run.timeout_s=1"]), "answer")) == 1
