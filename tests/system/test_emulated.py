"""device = "emulated": the real program on an emulated cluster."""

import csv
import json
import re
import shutil
import subprocess

import h5py
import numpy as np
import pytest
from conftest import BINARY, ROOT, VLM, mpirun, settings
from oracle import in_order

EMULATED = str(ROOT / "inputs/emulated_vlm.toml")
CLUSTER = f"emulated.cluster={ROOT}/inputs/clusters/h100.toml"
SMALL = [CLUSTER, "section.vision.layout.dp=1", "section.language.layout.dp=3", "data.global_batch=24", "emulated.time_scale=1", "train.steps=4"]


def closed_form(steps):
    return 1 + 3 / (1 + 0.05 * np.arange(steps))


def simulated(workspace, step, values):
    command = [BINARY, "simulate", EMULATED, "--cluster", ROOT / "inputs/clusters/h100.toml", "--step", str(step), *settings(values)]
    result = subprocess.run(command, cwd=workspace.path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def timeline(workspace, name, table="timeline"):
    with h5py.File(workspace.run(name) / "metrics.h5") as file:
        return {key: file[table][key][:] for key in file[table]}


def check_syncs(rows, syncs, steps):
    """The sums of each rank begin before its last task ends, and its gathers after they end and before those of the next step."""
    assert len(syncs["step"]) == len(set(zip(*(syncs[key] for key in ("section", "rank", "step", "kind")), strict=True)))
    for section, rank in sorted(set(zip(rows["section"][rows["phase"] == 1], rows["rank"][rows["phase"] == 1]))):
        mine = (syncs["section"] == section) & (syncs["rank"] == rank)
        assert sorted(zip(syncs["step"][mine], syncs["kind"][mine])) == [(step, kind) for step in range(1, steps + 1) for kind in (0, 1)]
        sums, weights = ({key: syncs[key][mine & (syncs["kind"] == kind)] for key in syncs} for kind in (0, 1))
        for step, sum_s, sum_end_s, gather_s, gather_end_s in zip(sums["step"], sums["start_s"], sums["end_s"], weights["start_s"], weights["end_s"]):
            tasks = (rows["rank"] == rank) & (rows["step"] == step)
            assert rows["start_s"][tasks].min() <= sum_s <= rows["end_s"][tasks].max()
            assert sum_s <= sum_end_s <= gather_s <= gather_end_s
            assert (gather_end_s <= sums["end_s"][sums["step"] == step + 1]).all()
        assert (weights["groups"] == sums["groups"]).all() and (sums["groups"] >= 1).all()
    assert ((0 <= syncs["busy_s"]) & (syncs["busy_s"] <= syncs["end_s"] - syncs["start_s"] + 1e-9)).all()
    assert ((0 <= rows["weights_s"]) & (rows["weights_s"] <= (rows["end_s"] - rows["start_s"]) * (rows["phase"] == 0) + 1e-9)).all()


@pytest.mark.parametrize("values, ranks", [
    ([], 4),
    pytest.param(["schedule.policy=fifo"], 4, marks=pytest.mark.nightly),
    (["schedule.dispatch=ready", "section.vision.window=0"], 4),
    pytest.param(["section.vision.mode=forward", "section.vision.weights=random"], 4, marks=pytest.mark.nightly),
    (["section.language.layout.dp=1", "section.language.colocate_with=vision", "section.language.micro_batch=3"], 1),
    pytest.param(["emulated.message_scale=0.1", "run.precision=fp32"], 4, marks=pytest.mark.nightly),
    pytest.param(["section.vision.layout.dp=3", "section.language.layout.dp=1"], 4, marks=pytest.mark.nightly),
])
def test_tasks_take_the_models_time_and_losses_the_steps(workspace, values, ranks):
    values = [*SMALL, *values]
    result = workspace.train(ranks, EMULATED, "run", values)
    np.testing.assert_allclose(workspace.losses("run"), closed_form(4), rtol=1e-12)
    rows, steps = timeline(workspace, "run"), workspace.steps("run")
    for step in (1, 4):
        paper = simulated(workspace, step, values)
        mine = rows["step"] == step
        assert steps["tokens"][step - 1] == paper["tokens"]
        for colour, name in enumerate(("vision", "language")):
            of_section = mine & (rows["section"] == colour)
            worked = (rows["end_s"] - rows["start_s"])[of_section].sum()
            # A task that sleeps is never early; how late it is depends on the machine.
            assert worked >= 0.97 * paper["sections"][name]["work_s"] * paper["sections"][name]["ranks"]
        assert rows["end_s"][mine].max() - rows["start_s"][mine].min() >= 0.97 * paper["lower_bound_s"]
    assert "nothing is learned" in result.stdout
    check_syncs(rows, timeline(workspace, "run", "syncs"), 4)


def test_corrections_of_the_cluster_file_scale_tasks_here_and_on_paper(workspace):
    base = (ROOT / "inputs/clusters/h100.toml").read_text()
    for part in ("first", "layer", "last"):
        base += ('\n[[correction]]\nsection = "language"\nprecision = "bf16"\nwidth = 2048\n'
                 f'part = "{part}"\nrows = 1000\nlength = 1000\nforward_s = 1\nbackward_s = 1\nforward = 3\nbackward = 2\n')
    (workspace.path / "corrected.toml").write_text(base)
    values = [*SMALL, "train.steps=2", "emulated.cluster=corrected.toml"]
    command = [BINARY, "simulate", EMULATED, "--cluster", "corrected.toml", *settings(values)]
    result = subprocess.run(command, cwd=workspace.path, capture_output=True, text=True, check=True)
    paper, plain = json.loads(result.stdout.splitlines()[-1])["sections"], simulated(workspace, 1, SMALL)["sections"]
    assert paper["vision"]["work_s"] == pytest.approx(plain["vision"]["work_s"], rel=1e-12)
    assert 2 < paper["language"]["work_s"] / plain["language"]["work_s"] < 3
    workspace.train(4, EMULATED, "run", values)
    rows = timeline(workspace, "run")
    worked = (rows["end_s"] - rows["start_s"])[(rows["step"] == 1) & (rows["section"] == 1)].sum()
    assert worked >= 0.97 * paper["language"]["work_s"] * paper["language"]["ranks"]


@pytest.mark.parametrize("layout, kind, seconds", [(["tp=2", "dp=1"], "reduce_scatter", 1e-3), (["dp=2"], "all_gather", 0.02)])
def test_measured_collectives_take_their_time_here_and_on_paper(workspace, layout, kind, seconds):
    """Along tp within tasks, and at the end of a step where weights are gathered."""
    base = (ROOT / "inputs/clusters/h100.toml").read_text()
    (workspace.path / "cluster.toml").write_text(f'{base}\n[[collective]]\nkind = "{kind}"\nranks = 2\nbytes = 1e12\nseconds = {seconds}\n')
    values = [*SMALL, "data.global_batch=6", "train.steps=2", *(f"section.language.layout.{degree}" for degree in layout)]
    plain = simulated(workspace, 1, values)
    values.append("emulated.cluster=cluster.toml")
    command = [BINARY, "simulate", EMULATED, "--cluster", "cluster.toml", *settings(values)]
    result = subprocess.run(command, cwd=workspace.path, capture_output=True, text=True, check=True)
    paper = json.loads(result.stdout.splitlines()[-1])
    workspace.train(3, EMULATED, "run", values)
    rows, syncs = timeline(workspace, "run"), timeline(workspace, "run", "syncs")
    language = (rows["section"] == 1) & (rows["step"] == 1)
    worked = (rows["end_s"] - rows["start_s"])[language].sum()
    if kind == "reduce_scatter":
        assert paper["sections"]["language"]["work_s"] > plain["sections"]["language"]["work_s"] + 100 * seconds
        assert worked >= 0.97 * paper["sections"]["language"]["work_s"]
    else:
        assert paper["step_s"] > plain["step_s"] + 5 * seconds
        of_weights = (syncs["section"] == 1) & (syncs["step"] == 1) & (syncs["kind"] == 1)
        assert (syncs["busy_s"][of_weights] >= 0.97 * seconds * syncs["groups"][of_weights]).all()


def test_a_task_of_replicas_that_share_experts_takes_as_long_as_the_longest(workspace):
    # fifo gives each replica a sample of every micro-batch. What one without samples does for the others is not in the timeline.
    experts = ["model.llm.experts=12", "model.llm.experts_per_token=2", "model.llm.expert_mlp=1024", "section.language.layout.ep=3"]
    values = [*SMALL, *experts, "schedule.policy=fifo", "train.steps=2"]
    workspace.train(4, EMULATED, "run", values)
    np.testing.assert_allclose(workspace.losses("run"), closed_form(2), rtol=1e-12)
    rows = timeline(workspace, "run")
    language = (rows["section"] == 1) & (rows["step"] == 1)
    spent = {}  # by task: the seconds of its replicas
    for phase, batch, start_s, end_s in zip(*(rows[key][language] for key in ("phase", "micro_batch", "start_s", "end_s")), strict=True):
        spent.setdefault((phase, batch), []).append(end_s - start_s)
    assert {len(replicas) for replicas in spent.values()} == {3}
    work_s = simulated(workspace, 1, values)["sections"]["language"]["work_s"]
    assert sum(max(replicas) for replicas in spent.values()) >= 0.97 * work_s


def test_ready_ranks_keep_the_last_text_for_the_last_backward(workspace):
    # The language rank first waits for a picture; its text could start at once, but the plan has it cover the
    # encoder's last backward.
    values = ["section.vision.layout.dp=1", "section.language.layout.dp=1", "data.global_batch=3", "schedule.dispatch=ready"]
    command = [BINARY, "simulate", EMULATED, "--cluster", ROOT / "inputs/clusters/h100.toml", "--timeline", "paper.csv", *settings(values)]
    subprocess.run(command, cwd=workspace.path, check=True, capture_output=True)
    with open(workspace.path / "paper.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["phase"] == "forward"]
    pictures = {row["sample"] for row in rows if row["section"] == "vision"}
    paper = [row["sample"] for row in rows if row["section"] == "language"]
    assert float(next(row["start_s"] for row in rows if row["section"] == "language")) > 0
    assert paper[-1] not in pictures and pictures == set(paper[:-1])

    workspace.train(2, EMULATED, "run", [CLUSTER, *values, "train.steps=1", "emulated.time_scale=20"])
    with h5py.File(workspace.run("run") / "metrics.h5") as file:
        held = {key: file["assignment"][key][:] for key in file["assignment"]}
    sample_of = dict(zip(held["micro_batch"][held["section"] == 1], held["sample"][held["section"] == 1], strict=True))
    rows = timeline(workspace, "run")
    forwards = (rows["section"] == 1) & (rows["phase"] == 0)
    order = rows["micro_batch"][forwards][np.argsort(rows["start_s"][forwards])]
    assert [str(sample_of[batch]) for batch in order] == paper


def test_an_emulated_run_saves_nothing_and_starts_afresh(workspace):
    emulated = ["run.device=emulated", CLUSTER, "checkpoint.every=2"]
    first = workspace.train(4, VLM, "run", [*emulated, "train.steps=3"])
    assert first.stdout.count("checkpoints: none, because an emulated run has no weights") == 1, first.stdout
    assert not list((workspace.run("run") / "checkpoints").iterdir())
    again = workspace.train(3, VLM, "run", [*emulated, "train.steps=2", "section.language.layout.dp=2"], options=["--resume", "auto"])
    assert "a fresh start" in again.stdout and (workspace.run("run") / "metrics.h5.abandoned").exists()
    np.testing.assert_allclose(workspace.losses("run"), closed_form(2), rtol=1e-12)
    syncs = timeline(workspace, "run", "syncs")
    language = syncs["section"] == 1
    assert sorted(zip(syncs["step"][language], syncs["kind"][language])) == [
        (step, kind) for step in (1, 2) for kind in (0, 1) for _ in range(2)]


@pytest.mark.parametrize("code, expected, values", [
    (78, "emulated.cluster: missing", []),
    (66, "absent.toml", ["emulated.cluster=absent.toml"]),
    (78, "time_scale", [CLUSTER, "emulated.time_scale=0"]),
    (78, "message_scale", [CLUSTER, "emulated.message_scale=1.5"]),
    (78, "run.timeout_s", [CLUSTER, "emulated.time_scale=1e6"]),
    (80, "the emulated device of", [CLUSTER, "model.glyph-vision.width=8192", "model.glyph-vision.layers=1000"]),
])
def test_bad_requests_are_refused(workspace, code, expected, values):
    result = workspace.train(4, VLM, "run", ["run.device=emulated", "train.steps=1", *values], expect=code)
    assert expected in result.stderr and result.stderr.count("maestro:") <= 1, result.stderr
    assert not workspace.run("run").exists()


def test_nothing_is_evaluated_on_an_emulated_device(workspace):
    result = mpirun(1, "evaluate", EMULATED, "--checkpoint", "runs/none", *settings([CLUSTER, "data.validation=data/mixed.h5"]), cwd=workspace.path)
    assert result.returncode == 78 and "run.device" in result.stderr


def test_a_dry_run_tells_the_memory_on_paper(workspace):
    result = mpirun(1, "train", EMULATED, "--dry-run", *settings([CLUSTER]), cwd=workspace.path)
    assert result.returncode == 0, result.stderr
    found = re.findall(r"rank of (\w+) has window (\d+) and needs (\d+) MiB", result.stdout)
    paper = simulated(workspace, 1, [])["sections"]
    assert [name for name, _, _ in found] == ["vision", "language"]
    for name, window, mib in found:
        assert int(window) == paper[name]["window"]
        assert float(mib) * 2**20 == pytest.approx(paper[name]["memory_bytes"], rel=1e-3)


def replay_of_frozen(workspace, replay):
    frozen = ["section.vision.mode=forward", "section.vision.weights=random"]
    workspace.train(4, EMULATED, "frozen", [*SMALL, *frozen, "train.steps=2", "emulated.time_scale=2"])
    paper = json.loads(subprocess.run(
        [BINARY, "simulate", EMULATED, "--replay", "runs/frozen", *settings([*SMALL, *frozen])], cwd=workspace.path, capture_output=True,
        text=True, check=True).stdout.splitlines()[-1])
    model = simulated(workspace, 2, [*SMALL, *frozen])
    # In seconds of the cluster, though each took two here.
    assert 0.97 * model["makespan_s"] < paper["makespan_s"] < 1.5 * model["makespan_s"]
    return replay(run="runs/frozen", expect=65)


def damaged(workspace, name, change):
    """A copy of the run, its metrics changed by `change`; what replaying it says."""
    folder = workspace.path / "runs" / name
    folder.mkdir()
    shutil.copy(workspace.run("run") / "metrics.h5", folder)
    with h5py.File(folder / "metrics.h5", "r+") as file:
        change(file)
    result = subprocess.run([BINARY, "simulate", EMULATED, "--replay", folder, *settings(SMALL)], cwd=workspace.path,
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 65, (result.returncode, result.stderr)
    return result.stderr


def test_damaged_metrics_are_not_replayed(workspace):
    workspace.train(4, EMULATED, "run", [*SMALL, "train.steps=1"])

    def put(dataset, value, at=0):
        def change(file):
            file[dataset][at] = value
        return change

    def shorten(group):
        def change(file):
            for name in file[group]:
                file[group][name].resize(len(file[group][name]) - 1, axis=0)
        return change

    for number, (change, expected) in enumerate([
        (put("timeline/end_s", np.inf), "not a task"),
        (put("timeline/start_s", -np.inf), "not a task"),
        (put("timeline/end_s", np.nan), "not a task"),
        (put("timeline/section", 7), "not a task"),
        (put("timeline/weights_s", np.nan), "not a task"),
        (put("timeline/micro_batch", 9999), "holds no samples"),
        (put("assignment/section", -1), "not a sample"),
        (put("assignment/sample", 2**40), "must be the run's"),
        (put("assignment/sample", -5), "must be the run's"),
        (put("steps/time_s", -1.0), "a time that is not valid"),
        (shorten("timeline"), "lacks tasks"),
        (shorten("assignment"), "holds no samples"),
        (lambda file: file.attrs.__setitem__("time_scale", np.bytes_("0")), "time_scale"),
        (lambda file: file.attrs.__setitem__("windows", np.bytes_("16")), "a window for each section"),
        (lambda file: file.attrs.__setitem__("windows", np.bytes_("16\n-1")), "a window for each section"),
        (lambda file: file.attrs.__setitem__("windows", np.bytes_("16\nabc")), "a window for each section"),
        (lambda file: file.attrs.__setitem__("windows", np.bytes_("16\n70000")), "a window for each section"),
        (lambda file: file.attrs.__setitem__("windows", np.array([b"16"] * 100_000)), "is not one value"),
        (lambda file: file.attrs.__setitem__("sections", np.array([b"vision"] * 100_000)), "is not one value"),
        (lambda file: file.attrs.__setitem__("sections", np.bytes_("vision")), "the deck has others"),
        (lambda file: file["assignment"].__delitem__("replica"), "replica"),
    ]):
        assert expected in damaged(workspace, f"damaged-{number}", change), number


def test_a_replay_predicts_other_layouts_from_a_runs_tasks(workspace):
    """An independent machine in Python plays the recorded task times; a run is hardly faster than its replay."""
    values = [*SMALL, "schedule.policy=fifo", "train.steps=3", "section.vision.window=2"]
    workspace.train(4, EMULATED, "run", values)
    with h5py.File(workspace.run("run") / "metrics.h5") as file:
        tasks, held = ({key: file[name][key][:] for key in file[name]} for name in ("timeline", "assignment"))
    names = ("vision", "language")
    costs, place = {}, {}
    for step, section, replica, batch, sample in zip(*(held[k] for k in ("step", "section", "replica", "micro_batch", "sample"))):
        if step != 2:
            continue
        of_batch = (tasks["step"] == 2) & (tasks["section"] == section) & (tasks["replica"] == replica) & (tasks["micro_batch"] == batch)
        worked = tasks["end_s"] - tasks["start_s"] - tasks["weights_s"]
        costs[sample, names[section]] = [float(worked[of_batch & (tasks["phase"] == p)].sum()) for p in (0, 1)]
        if section == 1:
            place[sample] = batch * 3 + replica  # fifo deals them in the order of the data
    order = sorted(place, key=place.get)

    def replay(*options, expect=0, run="runs/run"):
        command = [BINARY, "simulate", EMULATED, "--replay", run, *settings(SMALL), *options]
        result = subprocess.run(command, cwd=workspace.path, capture_output=True, text=True)
        assert result.returncode == expect, result.stderr
        return json.loads(result.stdout.splitlines()[-1]) if expect == 0 else result.stderr

    of_step = tasks["step"] == 2
    elapsed_s = tasks["end_s"][of_step].max() - tasks["start_s"][of_step].min()
    same = replay("--step", "2", "--policy", "fifo", "--set", "section.vision.window=0")  # 0: that of the run
    assert same["measured_s"] == pytest.approx(elapsed_s)
    assert same["makespan_s"] == pytest.approx(in_order(costs, order, {s: i % 3 for i, s in enumerate(order)}, groups=1, fanout=3, window=2))
    # Rows are there a moment before the clock is read for the end of the task that sent them.
    assert 0.5 * elapsed_s < same["makespan_s"] <= 1.01 * elapsed_s and same["step_s"] >= same["makespan_s"]
    for fanout, window in ((2, 3), (5, 4)):
        other = replay("--step", "2", "--policy", "fifo", "--set", f"section.language.layout.dp={fanout}", "--set", f"section.vision.window={window}")
        lanes = {s: i % fanout for i, s in enumerate(order)}
        assert other["makespan_s"] == pytest.approx(in_order(costs, order, lanes, groups=1, fanout=fanout, window=window))
    assert replay("--step", "2")["makespan_s"] <= same["makespan_s"] * 1.001
    assert replay()["samples"] == 24  # the last step
    assert "step 9 is not recorded" in replay("--step", "9", expect=65)
    assert "run.seed" in replay("--set", "run.seed=5", expect=65)
    assert "section vision ran no backward there" in replay_of_frozen(workspace, replay)
    assert "runs/none" in replay(run="runs/none", expect=66)
    assert "--measured and --replay exclude each other" in replay("--measured", "runs/run", expect=64)
