"""[data.lengths]: decks without a sample file are simulated, planned and run on emulated devices as with one."""

import json
import re
import subprocess

import h5py
import numpy as np
import pytest
from conftest import BINARY, ROOT, VLM, mpirun, settings

H100 = str(ROOT / "inputs/clusters/h100.toml")
EMULATED = str(ROOT / "inputs/emulated_vlm.toml")
PLAN_VLM, PLAN_DISTILL = (str(ROOT / f"inputs/plan_{name}.toml") for name in ("vlm", "distill"))
CLUSTER = f"emulated.cluster={H100}"
TWO = [CLUSTER, "section.vision.layout.dp=1", "section.language.layout.dp=1", "data.global_batch=8", "emulated.time_scale=0.1"]
DRAWN = ["data.train=", "data.lengths.samples=50", "data.lengths.distribution=lognormal", "data.lengths.tokens=300", "data.lengths.spread=0.8",
         "data.lengths.most_tokens=2000", "data.lengths.picture_share=0.5", "data.lengths.pictures=2", "data.lengths.picture_height=[112,448]",
         "data.lengths.picture_width=[224]", "data.lengths.picture_unit=28"]


def write_lengths(samples, path):
    """The sizes of the samples of a file, by the arrays of docs/file_formats.md."""
    with h5py.File(samples) as file:
        marker, weights = file.attrs["marker"], file["loss_weight"][:]
        tokens, pictures = file["index/sample_offsets"][:], file["index/picture_offsets"][:]
        shapes, all_tokens = file["index/picture_shape"][:], file["tokens"][:]
    rows = ["tokens,pictures,targets"]
    for begin, end, first, last in zip(tokens, tokens[1:], pictures, pictures[1:]):
        text = int((all_tokens[begin:end] != marker).sum())
        targets = int((weights[begin:end] > 0).sum())
        rows.append(f"{text},{';'.join(f'{h}x{w}' for h, w in shapes[first:last])},{targets}")
    path.write_text("\n".join(rows) + "\n")


def output(workspace, command, deck, *arguments, code=0):
    result = subprocess.run([BINARY, command, deck, *arguments], cwd=workspace.path, capture_output=True, text=True, timeout=120)
    assert result.returncode == code, result.stdout[-2000:] + result.stderr[-2000:]
    return result.stdout if code == 0 else result.stderr


def same_text(text):
    """Without what differs from run to run: how long planning took, and the free space of the disk."""
    return re.sub(r'"schedule_ms":[\d.e-]+|"disk_free_bytes":\d+|[\d.]+ \wB are free', "", text)


@pytest.mark.parametrize("deck, values", [
    (VLM, []),
    (VLM, ["section.language.layout.cp=2", "section.language.layout.dp=1", "section.vision.layout.tp=3"]),
    (EMULATED, []),
])
def test_a_csv_of_the_lengths_of_a_file_gives_the_same(workspace, deck, values):
    samples = "glyphs-train" if deck == VLM else "mixed"
    write_lengths(workspace.path / f"data/{samples}.h5", workspace.path / "lengths.csv")
    lengths = settings(["data.train=", "data.lengths.file=lengths.csv"])
    values = ["--cluster", H100, *settings(values)]
    of_file, of_csv = (output(workspace, "simulate", deck, *values, *more) for more in ([], lengths))
    assert same_text(of_csv) == same_text(of_file)
    # Nothing is saved, so that the deck, which checkpoints hold, does not count for the disk.
    emulated = settings(["run.device=emulated", CLUSTER])
    of_file, of_csv = (output(workspace, "train", deck, "--dry-run", "--json", *values, *emulated, *more) for more in ([], lengths))
    assert same_text(of_csv) == same_text(of_file)
    # On a real device it says in addition that train would refuse the deck.
    if deck == VLM:
        notes = output(workspace, "train", deck, "--dry-run", *values, *lengths).splitlines()
        assert [line for line in notes if "without contents: train would refuse them (78)" in line]


@pytest.mark.parametrize("ranks, values", [
    (2, []),
    (4, ["section.language.layout.tp=2", "section.vision.layout.dp=2", "schedule.dispatch=ready"]),
])
def test_emulated_runs_need_no_samples(workspace, ranks, values):
    values = [*TWO, *DRAWN, *values, "train.steps=2"]
    workspace.train(ranks, EMULATED, "run", values)
    np.testing.assert_allclose(workspace.losses("run"), [4, 1 + 3 / 1.05], rtol=1e-12)
    steps = workspace.steps("run")
    for step in (1, 2):
        paper = output(workspace, "simulate", EMULATED, "--cluster", H100, "--step", str(step), *settings(values))
        assert steps["tokens"][step - 1] == json.loads(paper.splitlines()[-1])["tokens"]
    # There is no checkpoint to go on from.
    workspace.train(ranks, EMULATED, "run", values, expect=73)
    resumed = workspace.train(ranks, EMULATED, "run", values, options=["--resume", "auto"])
    assert "nothing to resume" in resumed.stdout


@pytest.mark.parametrize("deck", [PLAN_VLM, PLAN_DISTILL])
def test_decks_of_published_sizes_are_simulated(workspace, deck):
    times = output(workspace, "simulate", deck, "--cluster", H100).splitlines()
    assert json.loads(times[-1])["fits"]
    facts = output(workspace, "train", deck, "--dry-run", "--json", "--cluster", H100).splitlines()
    assert json.loads(facts[-1])["step_s"] == json.loads(times[-1])["step_s"]


def test_lengths_are_planned(workspace):
    values = ["data.global_batch=24", "data.sequence_length=2048", *[v.replace("28", "16") for v in DRAWN]]
    text = output(workspace, "plan", VLM, "--cluster", H100, "--ranks", "2", "--out", "plan.toml", *settings(values))
    plan = json.loads(text.splitlines()[-1])
    assert plan["proved"]
    # The written deck has the lengths of --set.
    times = [json.loads(output(workspace, "simulate", "plan.toml", "--cluster", H100, "--step", str(k + 1)).splitlines()[-1])["step_s"]
             for k in range(plan["steps"])]
    assert np.mean(times) == pytest.approx(plan["plans"][0]["step_s"], rel=1e-12)


@pytest.mark.parametrize("command, values, code, words", [
    ("train", [], 78, ['data.lengths: a run on run.device = "cpu" reads the contents of its samples', "data.train"]),
    ("evaluate", ["data.validation="], 78, ["data.validation"]),
    ("simulate", ["data.global_batch=51"], 78, ["51 samples, but [data.lengths] holds 50"]),
    ("simulate", ["data.lengths.tokens=1500"], 65, ["[data.lengths]: sample ", "data.sequence_length is 512"]),
    ("simulate", ["data.lengths.samples=0"], 78, ["--set data.lengths.samples: 0 is out of range"]),
])
def test_what_lengths_are_refused_for(workspace, command, values, code, words):
    values = settings([*DRAWN, "section.language.colocate_with=vision", "section.language.layout.dp=1", "data.global_batch=24", *values])
    more = {"simulate": ["--cluster", H100], "evaluate": ["--checkpoint", "runs/none"]}.get(command, [])
    errors = output(workspace, command, VLM, *more, *values, code=code)
    assert all(word in errors for word in words), errors


def test_errors_of_a_csv_file_reach_all_ranks(workspace):
    (workspace.path / "lengths.csv").write_text("tokens,pictures\n100,\n50,448\n")
    values = [*TWO, "data.train=", "data.lengths.file=lengths.csv"]
    result = mpirun(2, "train", EMULATED, *settings(values), cwd=workspace.path)
    assert result.returncode == 65 and result.stderr.count("lengths.csv:3:4: pictures: '448' is no size of a picture") == 1
    result = mpirun(2, "train", EMULATED, *settings([*values, "data.lengths.file=none.csv"]), cwd=workspace.path)
    assert result.returncode == 66 and "none.csv" in result.stderr
