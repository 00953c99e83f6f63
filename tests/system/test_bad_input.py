"""Bad input: refused by one rank, with the exit code of the design and what to do; nothing half written."""

import os
import shutil
import subprocess

import h5py
import numpy as np
import pytest
from conftest import DISTILL, ROOT, TWO_RANKS, VLM, mpirun, settings

LAYOUTS = str(ROOT / "inputs/layouts.toml")


def refuse(workspace, code, *expected, ranks=2, deck=VLM, values=(), layout=TWO_RANKS):
    result = mpirun(ranks, "train", deck, *settings(["run.output=runs/refused", *layout, "train.steps=2", *values]), cwd=workspace.path)
    messages = [line for line in result.stderr.splitlines() if line.startswith("maestro: ") or ": " in line]
    assert result.returncode == code, f"exit {result.returncode}, not {code}\n{result.stdout}\n{result.stderr}"
    for text in expected:
        assert text in result.stderr, result.stderr
        assert result.stderr.count(text) == 1, f"more than one rank reports:\n{result.stderr}"
    assert messages
    assert not (workspace.run("refused") / "metrics.h5").exists()
    return result


def edited(workspace, *changes):
    text = open(VLM).read()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = workspace.path / "deck.toml"
    path.write_text(text)
    return path


def test_unknown_key_names_the_nearest(workspace):
    deck = edited(workspace, ("[train]", "[train]\nstepz = 3"))
    refuse(workspace, 78, "train.stepz", "train.steps", deck=deck)


def test_wrong_type(workspace):
    deck = edited(workspace, ('recompute = "none"', "recompute = 3"))
    refuse(workspace, 78, "train.recompute", deck=deck)


def test_cycle(workspace):
    deck = edited(workspace, ("[[edge]]", '[[edge]]\nfrom = "language"\nto = "vision"\ntensor = "embeddings"\n\n[[edge]]'))
    refuse(workspace, 78, "cycle", deck=deck)


@pytest.mark.parametrize("key, values", [("run.precision: fp64", ["run.precision=fp64", "run.device=cpu", "checkpoint.every=0"]),
                                         ("run.device: emulated", ["run.device=emulated", f"emulated.cluster={ROOT}/inputs/clusters/h100.toml"])])
def test_a_limit_of_hours_for_a_run_that_saves_nothing(workspace, key, values):
    result = mpirun(2, "train", VLM, "--max-hours", "1", *settings(["run.output=runs/refused", *values, *TWO_RANKS]), cwd=workspace.path)
    assert result.returncode == 78 and result.stderr.count(f"{key} saves nothing") == 1, result.stderr
    assert not workspace.run("refused").exists()


def test_fanout_that_is_not_whole(workspace):
    refuse(workspace, 78, "fanout", ranks=5, layout=["section.vision.layout.dp=2", "section.language.layout.dp=3"])


@pytest.mark.parametrize("ranks", [1, 3])
def test_wrong_number_of_ranks(workspace, ranks):
    refuse(workspace, 78, "mpirun -n 2", ranks=ranks)


@pytest.mark.parametrize("values,text", [
    (["section.vision.name=train"], "names a file of every checkpoint"),
    (["section.vision.name=../x"], "is not a valid section name"),
    (["section.vision.micro_batch=1", "section.vision.window=3"], "allowed: at least 4"),
    (["section.vision.window=70000"], "out of range"),
])
def test_values_that_would_fail_later(workspace, values, text):
    refuse(workspace, 78, text, values=values)


DEGREES = [
    (["section.language.layout.tp=5"], "section.language.layout.tp", ["cannot split the 12 heads", "nearest that can: 4 or 6"]),
    (["section.vision.layout.tp=24"], "section.vision.layout.tp", ["cannot split the 12 heads", "nearest that can: 12"]),
    (["model.language-12.kv_heads=4", "section.language.layout.tp=6"], "section.language.layout.tp",
     ["cannot split the 4 kv_heads", "nearest that can: 4 or 12"]),
    (["section.language.layout.tp=2", "section.language.layout.cp=4", "section.language.layout.cp_kind=all-to-all"], "section.language.layout.cp",
     ["the 6 heads and 6 kv_heads that tp = 2 leaves", "nearest that can: 3 or 6", 'or cp_kind = "ring", which allows any']),
    (["section.language.layout.pp=3"], "section.language.layout.pp", ["3 stages are more than the 2 layers of model.language-12", "at most 2 (pp x chunks)"]),
    (["section.language.layout.pp=2", "section.language.layout.stages=[1, 2]"], "section.language.layout.stages",
     ["[1, 2] have 3 layers", "needed: the 2 of model.language-12, at least 1 each"]),
    (["section.language.layout.pp=2", "section.language.layout.stages=[1, 1, 1]"], "section.language.layout.stages",
     ["[1, 1, 1] are 3 stages; needed: 2 (pp x chunks)"]),
    (["section.language.layout.chunks=2"], "section.language.layout.chunks", ["2 chunks divide the stages of a pipeline"]),
    (["section.language.layout.pp=2", "section.language.layout.chunks=1048576"], "section.language.layout.chunks",
     ["pp x chunks are 2097152 stages; allowed: at most 4096"]),
    (["section.language.layout.pp=2", "section.language.layout.chunks=2"], "section.language.layout.chunks", ["4 stages are more than the 2 layers"]),
    (["section.language.layout.stages=[0, 2]"], "section.language.layout.stages", ["0 is out of range"]),
    (["section.vision.layout.ep=2"], "section.vision.layout.ep", ["2, but model.vision-12 has no experts; allowed: 1"]),
    (["section.vision.layout.dp=3", "section.vision.layout.cp=2", "section.language.layout.pp=2", "section.language.layout.tp=3", "section.language.colocate_with=vision"],
     "section.language.layout.dp", ["lanes of 6 ranks hold all of that, and need dp of 'language' to be a multiple of 2; it is 1"]),
    (["section.language.layout.first_rank=2"], "section.language.layout.first_rank", ["but the deck needs 3 ranks; allowed: 0, 1, or -1"]),
    (["section.language.layout.first_rank=-2"], "section.language.layout.first_rank", ["out of range", "from -1 to 1048576"]),
    (["section.vision.layout.first_rank=0", "section.language.layout.first_rank=0"], "section.language.layout.first_rank",
     ["'vision' has rank 0; allowed: 1, or -1"]),
    (["section.language.layout.first_rank=0", "section.language.colocate_with=vision"], "section.language.layout.first_rank",
     ["'language' is colocated with 'vision', which has -1; allowed: -1"]),
]


@pytest.mark.parametrize("values,key,texts", [pytest.param(*case, marks=[] if i % 4 == 0 else pytest.mark.nightly) for i, case in enumerate(DEGREES)])
def test_degrees_that_the_model_or_the_build_does_not_allow(workspace, values, key, texts):
    refuse(workspace, 78, f"{key}: ", *texts, deck=LAYOUTS, layout=[], values=values)


@pytest.mark.parametrize("ranks", [7, 9])
def test_wrong_number_of_ranks_for_lanes(workspace, ranks):
    """2 x 1 x 1 of vision and 1 x 2 x 3 of language."""
    refuse(workspace, 78, "mpirun -n 8", ranks=ranks, deck=LAYOUTS, layout=[],
           values=["section.vision.layout.cp=2", "section.language.layout.tp=2", "section.language.layout.cp=3"])


def test_a_teacher_cannot_train_over_hidden_states(workspace):
    refuse(workspace, 78, "hidden states carry none back", ranks=3, deck=DISTILL, layout=[],
           values=["section.teacher.mode=train", "section.teacher.weights=random"])


def test_missing_sample_file(workspace):
    refuse(workspace, 66, "data/none.h5", values=["data.train=data/none.h5"])


def damaged(workspace, change):
    source = (workspace.path / "data").resolve() / "glyphs-train.h5"
    target = workspace.path / "damaged.h5"
    shutil.copyfile(source, target)
    change(target)
    return ["data.train=damaged.h5"]


def test_truncated_sample_file(workspace):
    refuse(workspace, 65, "damaged.h5", values=damaged(workspace, lambda p: os.truncate(p, p.stat().st_size // 2)))


@pytest.mark.parametrize("name,change,what", [("pixels", lambda pixels: 255 - pixels, "checksum"), ("tokens", lambda tokens: tokens + 300, "outside the vocabulary")])
def test_tampered_samples_stop_the_run(workspace, name, change, what):
    def tamper(path):
        with h5py.File(path, "r+") as file:
            file[name][...] = change(file[name][...])

    values = damaged(workspace, tamper)
    result = mpirun(2, "train", VLM, *settings(["run.output=runs/refused", *TWO_RANKS, "train.steps=2", *values]), cwd=workspace.path)
    assert result.returncode == 65, result.stderr
    assert what in result.stderr and "damaged.h5" in result.stderr and "make the file again" in result.stderr


def test_token_beyond_the_vocabulary(workspace):
    refuse(workspace, 65, "vocabulary", values=["model.glyph-language.vocabulary=200"])


def test_unwritable_output(workspace):
    (workspace.path / "file").write_text("not a directory")
    refuse(workspace, 73, "file/run", values=["run.output=file/run"])


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_full_output_directory(workspace):
    small = workspace.path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(small)]).returncode != 0:
        pytest.skip("this container may not mount a file system")
    try:
        result = mpirun(2, "train", VLM, *settings([*TWO_RANKS, "train.steps=2", "run.output=small/run"]), cwd=workspace.path)
        assert result.returncode in (73, 74), result.stderr
        assert not list(small.glob("run/checkpoints/step-??????")), "nothing under its final name"
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_more_memory_than_there_is(workspace):
    refuse(workspace, 80, "MiB are free there", "section vision", values=["model.glyph-vision.width=8192", "model.glyph-vision.layers=1000"])


@pytest.mark.parametrize("words,code", [((), 64), (("teach", VLM), 64), (("train", "none.toml"), 66), (("train", VLM, "--what"), 64),
                                        (("train", VLM, "--set", "run.device=cuda"), 78),
                                        (("train", VLM, "--set", "section.language.layout.ep=2"), 78)])
def test_command_line(workspace, words, code):
    assert mpirun(1, *words, cwd=workspace.path).returncode == code
