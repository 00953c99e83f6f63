"""`maestro plan`: its figures are what `simulate` prints for the deck that it writes, which `train` accepts."""

import json
import re
import subprocess

import h5py
import pytest
from conftest import BINARY, FOUR_RANKS, ROOT, TWO_RANKS, VLM, mpirun, relative, settings

H100 = str(ROOT / "inputs/clusters/h100.toml")
CPUS = str(ROOT / "inputs/clusters/this_machine.toml")


@pytest.fixture
def maestro(workspace):
    def run(*arguments, code=0):
        result = subprocess.run([BINARY, *arguments], cwd=workspace.path, capture_output=True, text=True, timeout=300)
        assert result.returncode == code, result.stderr
        return result

    return run


def last_line(result):
    return json.loads(result.stdout.splitlines()[-1])


def test_the_written_deck_takes_the_time_that_was_promised(maestro, tmp_path):
    deck = tmp_path / "plan.toml"
    samples = settings(["data.global_batch=60"])
    result = maestro("plan", VLM, "--cluster", H100, "--ranks", "6", "--top", "2", "--fix", "section.language.layout.pp", *samples, "--out", deck)
    plan = last_line(result)
    best = plan["plans"][0]
    assert plan["proved"] and best["ranks"] <= 6 and len(plan["plans"]) == 2
    assert plan["bound_s"] == pytest.approx(best["step_s"])
    assert best["step_s"] <= plan["plans"][1]["step_s"]
    assert best["layout"]["language"]["pp"] == 1
    times = [last_line(maestro("simulate", deck, "--cluster", H100, "--step", str(k + 1)))["step_s"] for k in range(plan["steps"])]
    assert sum(times) / len(times) == pytest.approx(best["step_s"], rel=1e-12)
    # Everything but the keys of the plan and of --set stays as its author wrote it.
    before, after = (path.read_text().splitlines() for path in (ROOT / VLM, deck))
    comments = [line.split("#", 1)[1] for line in before if "#" in line]
    assert comments == [line.split("#", 1)[1] for line in after if "#" in line]
    assert "global_batch = 60" in [line.split("#")[0].rstrip() for line in after]
    facts = last_line(maestro("train", deck, "--dry-run", "--cluster", H100, "--json"))
    for name, section in facts["sections"].items():
        assert section["memory_bytes"] == pytest.approx(best["memory_bytes"][name], abs=1)
    # What one layout for all sections takes in the order of the data, as simulate has it.
    one = plan["one_size"]["layout"]
    assert one["vision"]["dp"] == one["language"]["dp"] and one["language"]["colocate_with"] == "vision"
    assert plan["one_size"]["step_s"] >= plan["one_size"]["wavefront_step_s"] >= best["step_s"]


def test_pictures_that_ranks_share_take_the_time_that_was_promised(maestro, tmp_path):
    deck, values = tmp_path / "plan.toml", settings(["section.vision.layout.cp=2", "section.vision.micro_batch=6", "data.global_batch=60"])
    fixed = [word for key in ("vision.layout", "vision.micro_batch", "language.colocate_with") for word in ("--fix", f"section.{key}")]
    plan = last_line(maestro("plan", VLM, "--cluster", H100, "--ranks", "4", *fixed, *values, "--out", deck))
    steps = [last_line(maestro("simulate", deck, "--cluster", H100, "--step", str(k + 1))) for k in range(plan["steps"])]
    assert sum(step["step_s"] for step in steps) / len(steps) == pytest.approx(plan["plans"][0]["step_s"], rel=1e-12)
    assert plan["plans"][0]["layout"]["vision"]["cp"] == 2
    # The bound is that of the times with which the micro-batches run.
    assert min(step["gap"] for step in steps) >= 0


def test_as_few_layers_recompute_as_fit(maestro, tmp_path):
    deck, cluster = tmp_path / "plan.toml", tmp_path / "small.toml"
    cluster.write_text(open(H100).read().replace("memory = 80e9", "memory = 1.6e9"))
    fixed = [word for key in ("vision", "language.layout", "language.micro_batch", "language.colocate_with") for word in ("--fix", f"section.{key}")]
    values = settings(["section.language.layout.dp=1", "section.language.micro_batch=40", "section.language.window=0", "model.glyph-language.layers=9"])
    result = maestro("plan", VLM, "--cluster", cluster, "--ranks", "2", *fixed, *values, "--out", deck)
    plan = last_line(result)
    language = plan["plans"][0]["layout"]["language"]
    assert language["recompute"] == "cheap" and 0 < language["recompute_layers"] < 9
    assert "in which all layers of a section recompute or none" in result.stdout
    times = [last_line(maestro("simulate", deck, "--cluster", cluster, "--step", str(k + 1)))["step_s"] for k in range(plan["steps"])]
    assert sum(times) / len(times) == pytest.approx(plan["plans"][0]["step_s"], rel=1e-12)
    assert plan["proved"] and plan["bound_s"] <= plan["plans"][0]["step_s"]
    # With a layer less it does not fit.
    fewer = settings([f"section.language.recompute_layers={language['recompute_layers'] - 1}"])
    assert "MiB are free there" in maestro("train", deck, "--dry-run", "--cluster", cluster, *fewer, code=80).stderr


def test_the_fullest_rank_of_a_section_may_be_that_of_another(maestro, tmp_path):
    """Both ranks have a replica of the encoder, and the second one has the larger stage of the language model."""
    deck = tmp_path / "plan.toml"
    layout = [f"section.{key}" for key in ("vision.layout.dp=2", "language.layout.pp=2", "language.layout.stages=[1, 7]", "language.colocate_with=vision")]
    command = ["plan", str(ROOT / "inputs/layouts_deep.toml"), "--cluster", H100, "--ranks", "2", "--fix", "section", *settings(layout), "--out", deck]
    plan = last_line(maestro(*command))
    facts = last_line(maestro("train", deck, "--dry-run", "--cluster", H100, "--json"))
    first, second = (rank["memory_bytes"] for rank in facts["placement"])
    assert plan["plans"][0]["memory_bytes"] == {"vision": second, "language": second} and second > first


def test_what_is_fixed_stays(maestro, tmp_path):
    deck = tmp_path / "plan.toml"
    fixed = ["--fix", "section.vision", "--fix", "section.language.colocate_with"]
    plan = last_line(maestro("plan", VLM, "--cluster", H100, "--ranks", "4", *fixed, "--set", "run.name=2024", "--out", deck))
    assert all("colocate_with" not in layout for p in plan["plans"] for layout in p["layout"].values())
    lines = deck.read_text().splitlines()
    block = lines[lines.index('name = "vision"'):lines.index('name = "language"')]
    original = (ROOT / "inputs/vlm_glyphs.toml").read_text().splitlines()
    assert block == original[original.index('name = "vision"'):original.index('name = "language"')]
    assert [line for line in lines if line.startswith("name = \"2024\"")]
    assert last_line(maestro("simulate", deck, "--cluster", H100))["ranks"] == plan["plans"][0]["ranks"]


def test_a_range_of_ranks_is_compared_by_tokens_per_rank_hour(maestro):
    command = ["plan", VLM, "--cluster", H100, "--ranks", "1-3", *settings(["data.global_batch=30"])]
    result = maestro(*command)
    # The same each time, but for the time that it took.
    without_time = [re.sub(r',"search_s":[^,}]+', "", r.stdout.splitlines()[-1]) for r in (result, maestro(*command))]
    assert without_time[0] == without_time[1] and len(json.loads(without_time[0])) == len(last_line(result)) - 1
    plan = last_line(result)
    ranks = [p["ranks"] for p in plan["frontier"]]
    assert ranks == sorted(ranks) and ranks[0] == 1 and ranks[-1] <= 3
    assert all(a["step_s"] > b["step_s"] for a, b in zip(plan["frontier"], plan["frontier"][1:]))
    best = max(p["tokens_per_rank_hour"] for p in plan["frontier"])
    assert plan["plans"][0]["tokens_per_rank_hour"] == best
    # Beside each the best one layout of as many ranks, which is that of a search for this number alone.
    for entry in plan["frontier"]:
        one = entry["one_size"]
        assert one["ranks"] <= entry["ranks"] and entry["step_s"] * (1 - 1e-12) <= min(one["step_s"], one["wavefront_step_s"])
        hour = one["tokens_per_rank_hour"] * one["step_s"] * entry["ranks"]  # its tokens: idle ranks are paid
        assert hour == pytest.approx(entry["tokens_per_rank_hour"] * entry["step_s"] * entry["ranks"])
        alone = last_line(maestro("plan", VLM, "--cluster", H100, "--ranks", str(entry["ranks"]), *settings(["data.global_batch=30"])))
        assert alone["one_size"] == one and alone["plans"][0]["step_s"] == entry["step_s"]
        if entry["ranks"] == plan["plans"][0]["ranks"]:
            assert plan["one_size"] == one


def test_a_run_goes_on_with_other_ranks(workspace, maestro):
    values = [*FOUR_RANKS, "optimizer.betas=[0.9, 0.96]", "checkpoint.every=4"]
    workspace.train(4, VLM, "whole", [*values, "train.steps=8"])
    workspace.train(4, VLM, "four", [*values, "train.steps=4"])
    workspace.run("four").rename(workspace.run("moved"))
    fixed = ["--fix", "section.vision.micro_batch", "--fix", "section.language.micro_batch"]
    plan = last_line(maestro("plan", "--from", "runs/moved", "--cluster", CPUS, "--ranks", "2", *fixed, "--set", "train.steps=8", "--out", "two.toml"))
    # The run's deck with the values that it was started with: the same batch, and its own directory.
    lines = [line.split("#")[0].rstrip() for line in (workspace.path / "two.toml").read_text().splitlines()]
    for line in ("global_batch = 24", "betas = [0.9, 0.96]", "steps = 8", 'output = "runs/moved"', "every = 4"):
        assert line in lines
    assert "\n# --set" not in (workspace.path / "two.toml").read_text()
    ranks = plan["plans"][0]["ranks"]
    assert ranks <= 2
    result = mpirun(ranks, "train", "two.toml", "--resume", "auto", cwd=workspace.path)
    assert result.returncode == 0, result.stderr
    assert "resumed from runs/moved/checkpoints/step-000004 after step 4" in result.stdout
    assert list(workspace.steps("moved")["step"]) == list(range(1, 9))
    assert relative(workspace.losses("moved"), workspace.losses("whole")) <= 1e-5
    # What it measures are the tasks since it began again, without the first steps.
    measured = maestro("plan", "--from", "runs/moved", "--measured", "runs/moved", "--cluster", CPUS, "--ranks", "2", "--fix", "section")
    assert "runs/moved: recorded steps that count: 1, from 8 to 8" in measured.stdout
    # That deck is now the run's.
    again = last_line(maestro("plan", "--from", "runs/moved", "--cluster", CPUS, "--ranks", "2", *fixed))
    assert again["plans"] == plan["plans"]


def test_a_run_corrects_what_is_predicted(workspace, maestro):
    """Its own step is predicted better, by tasks that take as long as in the run; another layout counts as not measured."""
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=12", "checkpoint.every=0"])
    with h5py.File(workspace.run("run") / "metrics.h5") as file:
        task = {key: file["timeline"][key][:] for key in file["timeline"]}
    measured_s = (task["end_s"] - task["start_s"] - task["weights_s"])[(task["section"] == 1) & (task["step"] > 3)].sum()
    real = workspace.steps("run")["time_s"][3:].mean()

    def simulated(*more):
        steps = [last_line(maestro("simulate", VLM, "--cluster", CPUS, *settings(TWO_RANKS), "--step", str(step), *more)) for step in range(4, 13)]
        return sum(step["step_s"] for step in steps) / len(steps), sum(step["sections"]["language"]["work_s"] for step in steps)

    before, plain_s = simulated()
    after, work_s = simulated("--measured", "runs/run")
    assert abs(after / real - 1) < abs(before / real - 1)
    assert work_s == pytest.approx(measured_s, rel=0.1) != pytest.approx(plain_s, rel=0.1)

    def share(*layout):
        command = ["plan", VLM, "--cluster", CPUS, *settings([*TWO_RANKS, *layout]), "--ranks", "4", "--fix", "section.vision", "--fix", "section.language"]
        assert "measured_share" not in last_line(maestro(*command))
        result = maestro(*command, "--measured", "runs/run")
        found = last_line(result)["measured_share"]
        assert f"{100 * found:.0f}% of the time of its tasks is of measured shapes" in result.stdout
        return found

    assert share() > 0.9
    assert 0 < share("section.language.layout.tp=2") < 0.5  # the encoder's
    assert "its model has width 128, the deck's 64" in maestro(
        "simulate", VLM, "--cluster", CPUS, *settings([*TWO_RANKS, "model.glyph-language.width=64", "model.glyph-vision.width=192"]),
        "--measured", "runs/run", code=65).stderr


def test_what_is_no_run_is_refused(workspace, maestro):
    cluster = ["--cluster", H100]
    for option in (["--from"], [VLM, "--measured"]):
        assert f"{option[-1]} runs/none: there is no runs/none/metrics.h5" in maestro("plan", *option, "runs/none", *cluster, code=66).stderr
    (workspace.path / "runs/bad").mkdir(parents=True)
    (workspace.path / "runs/bad/metrics.h5").write_text("no HDF5 file")
    for option in (["--from"], [VLM, "--measured"]):
        assert "runs/bad/metrics.h5: not a readable HDF5 file" in maestro("plan", *option, "runs/bad", *cluster, code=65).stderr
    with h5py.File(workspace.path / "runs/bad/metrics.h5", "w") as file:
        file.attrs["format"] = "another"
    assert "runs/bad/metrics.h5: " in maestro("plan", "--from", "runs/bad", *cluster, code=65).stderr
    assert "either a deck or --from RUN" in maestro("plan", VLM, "--from", "runs/bad", *cluster, code=64).stderr
    assert "plan needs a deck, or --from RUN" in maestro("plan", *cluster, code=64).stderr


@pytest.mark.parametrize("arguments, code, words", [
    (["--ranks", "8"], 64, "plan needs --cluster"),
    (["--measured", "runs/run"], 64, "plan needs --cluster"),
    (["--cluster", H100, "--measured"], 64, "--measured"),
    (["--cluster", H100, "--ranks", "8-"], 64, "--ranks 8-: write a number of ranks up to 16384"),
    (["--cluster", H100, "--fix", "section.audio"], 64, "--fix section.audio: a plan sets no such key; allowed: section.NAME"),
    (["--cluster", H100, "--top", "0"], 64, "--top"),
    (["--cluster", H100, *settings(["run.precision=fp64", "run.device=cpu"])], 78, "fp64, for which cluster files have no rates"),
])
def test_refusals(maestro, arguments, code, words):
    assert words in maestro("plan", VLM, *arguments, code=code).stderr


def test_what_does_not_fit_into_memory_is_said(maestro, tmp_path):
    cluster = tmp_path / "small.toml"
    cluster.write_text(open(H100).read().replace("memory = 80e9", "memory = 7e8"))
    result = maestro("plan", VLM, "--cluster", cluster, "--ranks", "2", code=78)
    assert "no layout of section vision on up to 2 ranks fits into memory: a rank needs at least" in result.stderr
    for lack, section in zip(last_line(result)["impossible"], ("vision", "language"), strict=True):
        assert (lack["constraint"], lack["section"]) == ("memory", section) and lack["need"] > lack["have"]
        assert any(change.startswith("ranks with ") for change in lack["changes"])


def test_changes_that_help_are_named(maestro):
    # The deck's three replicas need more ranks than there are.
    fixed = ["--fix", "section.language.layout.dp"]
    command = ["plan", VLM, "--cluster", H100]
    result = maestro(*command, *fixed, "--ranks", "1", code=78)
    assert "no layout of all sections fits 1 ranks" in result.stderr
    assert "a plan fits with any one of: --ranks 4 (" in result.stderr
    (lack,) = last_line(result)["impossible"]
    assert lack == {"constraint": "ranks", "need": None, "have": 1, "changes": ["--ranks 4", "no --fix section.language.layout.dp"]}
    # Each of them does.
    assert last_line(maestro(*command, *fixed, "--ranks", "4"))["plans"]
    assert last_line(maestro(*command, "--ranks", "1"))["plans"]


def test_the_worst_loss_is_that_on_other_rates(maestro, tmp_path):
    """Of the printed plans, each is simulated by hand where the network is half as fast, and where operations take twice the time."""
    text = open(H100).read().replace("ranks_per_node = 8", "ranks_per_node = 2\nnode_hour_price = 20")
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(text)
    command = ["plan", VLM, "--ranks", "4", "--top", "5", *settings(["data.global_batch=256"]), "--cluster", cluster]
    plan = last_line(maestro(*command))
    assert all(p["worst"] >= 0 for p in plan["plans"]) and min(p["worst"] for p in plan["plans"]) < 0.2
    best = plan["plans"][0]
    assert best["price_per_million_tokens"] == pytest.approx(20 * 2 / 4 / best["tokens_per_rank_hour"] * 1e6)
    robust = last_line(maestro(*command, "--robust"))["plans"]
    losses = [max(p["worst"], p["step_s"] / best["step_s"] - 1) for p in robust]
    assert losses == sorted(losses)
    assert sorted(p["step_s"] for p in robust) == [p["step_s"] for p in plan["plans"]]
    decks = []
    for p in plan["plans"]:
        values = {f"section.{name}.{key if key in ('micro_batch', 'recompute', 'window', 'colocate_with') else 'layout.' + key}": value
                  for name, layout in p["layout"].items() for key, value in {"colocate_with": "", **layout}.items()}
        decks.append(settings([f"{key}={value}" for key, value in values.items()] + ["data.global_batch=256"]))
    for old, new in (("bandwidth = 4.5e10", "bandwidth = 2.25e10"), ("operation_s = 5e-6", "operation_s = 1e-5")):
        assert old in text
        cluster.write_text(text.replace(old, new))
        times = [last_line(maestro("simulate", VLM, "--cluster", cluster, *deck))["step_s"] for deck in decks]
        for p, time in zip(plan["plans"], times):
            assert p["worst"] >= (time / min(times) - 1) * (1 - 1e-9)
