"""`maestro simulate --costs`: its timelines keep the rules of the machine, checked here from the files alone, and the
baselines are what an independent simulation makes of their definitions."""

import csv
import json
import random
import re
import subprocess
import tomllib

import pytest
from conftest import BINARY, ROOT, TWO_RANKS, VLM, mpirun, settings
from oracle import in_order

DECK = """
[[section]]
name = "vision"
{mode}
micro_batch = {batch}
window = {window}
  [section.layout]
  dp = {groups}
[[section]]
name = "language"
micro_batch = {language_batch}
  [section.layout]
  dp = {replicas}
[[edge]]
from = "vision"
to = "language"
"""


def write_case(folder, *, seed=1, groups=1, fanout=4, per_replica=6, share=0.4, window=0, batch=1, language_batch=1, frozen=False):
    """A deck and a costs file in `folder`; returns {(sample, section): (forward, backward)}."""
    dice = random.Random(seed)
    (folder / "deck.toml").write_text(
        DECK.format(mode='mode = "forward"' if frozen else "", batch=batch, window=window, groups=groups,
                    language_batch=language_batch, replicas=groups * fanout))
    costs = {}
    for sample in range(groups * fanout * per_replica):
        forward = round(dice.lognormvariate(0, 0.6), 6)
        costs[sample, "language"] = (forward, 2 * forward)
        if dice.random() < share:
            forward = round(dice.lognormvariate(-0.5, 0.6) / fanout, 6)
            costs[sample, "vision"] = (forward, 0 if frozen else 2 * forward)
    rows = [f"{sample},{section},{f:.6f},{b:.6f}" for (sample, section), (f, b) in costs.items()]
    dice.shuffle(rows)
    (folder / "costs.csv").write_text("\n".join(["sample,section,forward_s,backward_s", *rows]) + "\n")
    return costs


def simulate(folder, *options):
    command = [BINARY, "simulate", "deck.toml", "--costs", "costs.csv", "--timeline", "out.csv", *options]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    with open(folder / "out.csv", newline="") as file:
        rows = [(r["section"], int(r["replica"]), int(r["sample"]), r["phase"], float(r["start_s"]), float(r["end_s"]))
                for r in csv.DictReader(file)]
    return json.loads(result.stdout.splitlines()[-1]), rows


def check_rules(rows, costs, *, groups, fanout, window, batch):
    """What design and docs/scheduling.md promise of every schedule."""
    at = {(section, sample, phase): (replica, start, end) for section, replica, sample, phase, start, end in rows}
    assert len(at) == len(rows), "a task twice"
    expected = {(section, sample, phase) for (sample, section), (_, backward) in costs.items()
                for phase in ("forward", "backward") if phase == "forward" or backward > 0}
    assert set(at) == expected
    tiny = 2e-9  # times are rounded to nine decimals
    for (sample, section), (_, backward) in costs.items():
        replica, _, end = at[section, sample, "forward"]
        if backward > 0:
            assert at[section, sample, "backward"][0] == replica
            assert at[section, sample, "backward"][1] >= end - tiny
        if section == "vision":
            below = at["language", sample, "forward"]
            assert below[0] // fanout == replica and below[1] >= end - tiny
            if backward > 0:
                assert at["vision", sample, "backward"][1] >= at["language", sample, "backward"][2] - tiny
    # A replica runs one task at a time; a task of several samples takes the sum of theirs.
    tasks = {}
    for section, replica, sample, phase, start, end in rows:
        tasks.setdefault((section, replica, start, end, phase), []).append(sample)
    lanes = {}
    for (section, replica, start, end, phase), samples in tasks.items():
        assert len(samples) <= batch[section]
        work = sum(costs[s, section][phase == "backward"] for s in samples)
        assert end - start == pytest.approx(work, abs=1e-8)
        lanes.setdefault((section, replica), []).append((start, end))
    for lane in lanes.values():
        lane.sort()
        assert all(a[1] <= b[0] + tiny for a, b in zip(lane, lane[1:]))
    if window:
        for replica in range(groups):
            events = []
            for (section, place, start, end, phase), samples in tasks.items():
                if section != "vision" or place != replica or phase != "forward":
                    continue
                last = samples[0]
                if costs[last, "vision"][1] > 0:
                    done = at["vision", last, "backward"][2]
                else:
                    done = max(at["language", s, "forward"][2] for s in samples)
                events += [(start, 1), (done, -1)]
            in_flight = 0
            for time, change in sorted((round(t, 8), c) for t, c in events):
                in_flight += change
                assert in_flight <= window


CASES = [
    dict(),
    dict(seed=2, groups=2, fanout=3, window=6),
    dict(seed=3, fanout=1, share=1.0, window=2),
    dict(seed=4, groups=2, fanout=4, share=1.0, frozen=True, window=12),
    dict(seed=5, fanout=4, batch=2, language_batch=3, window=16),
    dict(seed=6, groups=4, fanout=2, share=0.0),
    dict(seed=7, groups=2, fanout=3, share=0.8, language_batch=4, window=1),  # micro-batches are made smaller
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("policy", ["wavefront", "fifo", "lpt"])
@pytest.mark.parametrize("dispatch", ["planned", "ready"])
def test_timelines_keep_the_rules(tmp_path, case, policy, dispatch):
    costs = write_case(tmp_path, **case)
    summary, rows = simulate(tmp_path, "--policy", policy, "--set", f"schedule.dispatch={dispatch}")
    shape = dict(groups=case.get("groups", 1), fanout=case.get("fanout", 4), window=case.get("window", 0))
    check_rules(rows, costs, **shape, batch={"vision": case.get("batch", 1), "language": case.get("language_batch", 1)})
    assert summary["policy"] == policy and summary["samples"] == len({s for s, _ in costs})
    assert summary["makespan_s"] == pytest.approx(max(r[5] for r in rows), abs=1e-8)
    assert summary["makespan_s"] >= summary["lower_bound_s"] * (1 - 1e-12) > 0
    assert summary["gap"] == pytest.approx(summary["makespan_s"] / summary["lower_bound_s"] - 1)
    assert summary["schedule_ms"] > 0


@pytest.mark.parametrize("case", [c for c in CASES if "batch" not in c and not c.get("frozen")])
def test_baselines_are_what_their_definition_says(tmp_path, case):
    costs = write_case(tmp_path, **case)
    groups, fanout, window = case.get("groups", 1), case.get("fanout", 4), case.get("window", 0)
    samples = sorted({s for s, _ in costs})
    fifo, _ = simulate(tmp_path, "--policy", "fifo")
    lane_of = {s: i % (groups * fanout) for i, s in enumerate(samples)}
    assert fifo["makespan_s"] == pytest.approx(in_order(costs, samples, lane_of, groups=groups, fanout=fanout, window=window))
    lpt, _ = simulate(tmp_path, "--policy", "lpt")
    order = sorted(samples, key=lambda s: -sum(costs[s, "language"]))
    load = [0.0] * (groups * fanout)
    for s in order:
        lane_of[s] = load.index(min(load))
        load[lane_of[s]] += sum(costs[s, "language"])
    assert lpt["makespan_s"] == pytest.approx(in_order(costs, order, lane_of, groups=groups, fanout=fanout, window=window))
    one, rows = simulate(tmp_path, "--policy", "one-size")
    servers = [0.0] * (groups * fanout + groups)
    for i, s in enumerate(samples):
        servers[i % len(servers)] += sum(sum(costs.get((s, section), (0, 0))) for section in ("vision", "language"))
    assert one["makespan_s"] == pytest.approx(max(servers))
    assert len(rows) == sum(2 for _ in costs)


def test_noise_repeats_by_its_seed(tmp_path):
    write_case(tmp_path)
    first, again, other = (simulate(tmp_path, "--noise", "0.2", "--seed", seed)[0]["makespan_s"] for seed in "778")
    assert first == again != other


def test_large_decks_on_paper(tmp_path):
    """10,000 ranks."""
    write_case(tmp_path, groups=400, fanout=24, per_replica=4, share=0.3)
    summary, _ = simulate(tmp_path)
    assert summary["ranks"] == 10000 and summary["gap"] < 0.1


def test_times_come_from_models_and_a_cluster_file(workspace):
    """A device of twice the rates takes half the time; the plan of the whole step keeps its order."""
    text = (ROOT / "inputs/clusters/h100.toml").read_text()
    (workspace.path / "one.toml").write_text(text)
    faster = re.sub(r"(?m)^(memory_bandwidth|element_flops|fp32_flops|bf16_flops|bandwidth) = ([0-9.e]+)",
                    lambda m: f"{m[1]} = {2 * float(m[2])}", text)
    faster = re.sub(r"(?m)^(operation_s|latency_s) = ([0-9.e-]+)", lambda m: f"{m[1]} = {float(m[2]) / 2}", faster)
    (workspace.path / "two.toml").write_text(faster)
    found = []
    for name in ("one", "two"):
        result = subprocess.run([BINARY, "simulate", VLM, "--cluster", f"{name}.toml"], cwd=workspace.path, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        found.append(json.loads(result.stdout.splitlines()[-1]))
    assert found[1]["makespan_s"] == pytest.approx(found[0]["makespan_s"] / 2)
    assert found[0]["samples"] == 80 and found[0]["tokens"] > 80
    assert found[0]["tokens_per_s"] == pytest.approx(found[0]["tokens"] / found[0]["step_s"])
    assert found[1]["step_s"] == pytest.approx(found[0]["step_s"] / 2) and found[0]["step_s"] > found[0]["makespan_s"]
    assert found[0]["tokens_per_rank_hour"] == pytest.approx(900 * found[0]["tokens_per_s"])


def test_a_dry_run_plans_64_gpus_as_the_simulation_does(workspace):
    """On a machine without any, which here have 12 GB."""
    text = (ROOT / "inputs/clusters/h100.toml").read_text()
    (workspace.path / "small.toml").write_text(text.replace("memory = 80e9", "memory = 12e9"))
    cluster = ["--cluster", "small.toml"]
    values = settings(["run.device=cuda", "section.vision.layout.dp=32", "section.language.layout.dp=8", "section.language.layout.tp=4",
                       "section.vision.window=0", "train.steps=1000", "run.output=runs/planned"])

    def run(command, *options):
        result = subprocess.run([BINARY, command, ROOT / "inputs/emulated_vlm.toml", *cluster, *values, *options], cwd=workspace.path,
                                capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout, json.loads(result.stdout.splitlines()[-1])

    text, dry = run("train", "--dry-run", "--json")
    _, paper = run("simulate")
    assert (dry["ranks"], dry["nodes"], dry["machine"]["device"], len(dry["placement"])) == (64, 8, "gpu", 64)
    assert dry["step_s"] == paper["step_s"] and dry["run_s"] == pytest.approx(1000 * paper["step_s"])
    assert dry["tokens_per_rank_hour"] == pytest.approx(paper["tokens_per_rank_hour"])
    for name in ("vision", "language"):
        section = dry["sections"][name]
        assert section["memory_bytes"] == paper["sections"][name]["memory_bytes"] == pytest.approx(sum(section["memory"].values()))
        assert section["memory"]["libraries_bytes"] == 256 << 20 and section["memory"]["workspace_bytes"] == 32 << 20
    # Windows leave a fifth of what the CUDA context leaves; of each replica's 8 micro-batches not all are in flight.
    assert 1 < dry["sections"]["vision"]["window"] == paper["sections"]["vision"]["window"] < 8
    assert dry["sections"]["vision"]["memory_bytes"] < 0.8 * (12e9 - 512 * 2**20)
    assert dry["sections"]["language"]["memory"]["transfers_bytes"] == (7 + 3) * 384 * 2**20
    assert re.search(r"^  +NCCL and MPI on the GPU \(estimate\) +[\d.]+ +[\d.]+$", text, re.MULTILINE), text
    assert "64 ranks on 8 nodes of 8 ranks, H100 SXM" in text and "1000 steps take" in text


def test_one_layout_needs_the_memory_of_all_sections(workspace):
    """On each rank, as in a deck that says the same: all sections together, one micro-batch of each in flight."""
    text = (ROOT / "inputs/clusters/h100.toml").read_text()

    def run(memory, *options):
        (workspace.path / "cluster.toml").write_text(text.replace("memory = 80e9", f"memory = {memory}"))
        result = subprocess.run([BINARY, "simulate", VLM, "--cluster", "cluster.toml", *options], cwd=workspace.path, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout, json.loads(result.stdout.splitlines()[-1])

    written = settings(["section.vision.layout.dp=4", "section.language.layout.dp=4", "section.language.colocate_with=vision",
                        "section.vision.window=1", "section.language.window=1"])
    _, same = run(80e9, "--policy", "fifo", *written)
    need = same["peak_memory_bytes"]
    # The deck's windows do not count, its disjoint layout neither.
    for options in ([], ["--set", "section.vision.window=9"]):
        text_of_one, one = run(80e9, "--policy", "one-size", *options)
        assert one["fits"] and one["peak_memory_bytes"] == need and "does not fit" not in text_of_one
        for name in ("vision", "language"):
            assert one["sections"][name]["memory_bytes"] == need
    context = 512 * 2**20
    assert run(need + context + 1, "--policy", "one-size")[1]["fits"]
    lacking, one = run(need + context - 1e6, "--policy", "one-size")
    assert not one["fits"] and "it does not fit: " in lacking and one["step_s"] > 0


def test_idle_is_of_ranks_whoever_works_on_them(workspace):
    command = [BINARY, "simulate", VLM, "--cluster", str(ROOT / "inputs/clusters/h100.toml"), "--set", "section.language.layout.dp=1"]
    for options in (["--set", "section.language.colocate_with=vision"], ["--set", "data.global_batch=40", "--policy", "one-size"]):
        result = subprocess.run([*command, *options], cwd=workspace.path, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout.splitlines()[-1])
        work = sum(section["work_s"] for section in found["sections"].values())
        for section in found["sections"].values():
            assert section["idle"] == pytest.approx(1 - work / found["makespan_s"], abs=1e-9)


def test_a_cluster_on_paper_does_not_depend_on_the_threads_here(workspace, monkeypatch):
    found = []
    for threads in (1, 16):
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        result = subprocess.run([BINARY, "simulate", VLM, "--cluster", str(ROOT / "inputs/clusters/h100.toml"), "--set", "section.vision.window=0"],
                                cwd=workspace.path, capture_output=True, text=True, check=True)
        found.append(json.loads(result.stdout.splitlines()[-1]))
        found[-1].pop("schedule_ms")  # of this machine
    assert found[0] == found[1]


def test_calibration_and_a_run_make_a_prediction(workspace):
    """The file that calibration writes is one; measured times replace the models'."""
    assert mpirun(2, "calibrate", "--out", "this.toml", cwd=workspace.path).returncode == 0
    with open(workspace.path / "this.toml", "rb") as file:
        rows = tomllib.load(file)["collective"]
    assert {row["kind"] for row in rows} == set(COLLECTIVES) and {(row["ranks"], row["nodes"]) for row in rows} == {(2, 1)}
    for kind in COLLECTIVES:
        sizes, times = zip(*((row["bytes"], row["seconds"]) for row in rows if row["kind"] == kind), strict=True)
        assert list(sizes) == sorted(sizes) and len(sizes) == 5 and 0 < times[0] < times[-1] < 10
    workspace.train(2, VLM, "run", [*TWO_RANKS, "train.steps=12", "checkpoint.every=0"])
    command = [BINARY, "simulate", VLM, "--cluster", "this.toml", *settings(TWO_RANKS)]
    plain, measured = (subprocess.run([*command, *more], cwd=workspace.path, capture_output=True, text=True)
                       for more in ([], ["--measured", "runs/run"]))
    assert plain.returncode == measured.returncode == 0, plain.stderr + measured.stderr
    # Those of each length of sequences, behind those of all.
    line, = re.findall(r"section language, .*: measured over predicted time .*", measured.stdout)
    factors = [float(f) for pair in re.findall(r"sequences of \d+: ([0-9.]+), ([0-9.]+)", line) for f in pair]
    assert len(factors) > 2
    work = [json.loads(r.stdout.splitlines()[-1])["sections"]["language"]["work_s"] for r in (plain, measured)]
    assert min(factors) * 0.999 <= work[1] / work[0] <= max(factors) * 1.001
    for words, code in ((["--measured", "absent"], 66), (["--measured", "."], 66)):
        assert subprocess.run([*command, *words], cwd=workspace.path, capture_output=True).returncode == code
    assert mpirun(2, "calibrate", "--out", "absent/this.toml", cwd=workspace.path).returncode == 73
    assert mpirun(1, "calibrate", cwd=workspace.path).returncode == 64


COLLECTIVES = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "all_to_all": 1}  # how often each exchanges its bytes
EXPERTS = ["model.glyph-language.experts=4", "model.glyph-language.experts_per_token=2", "model.glyph-language.expert_mlp=32"]


def collective_rows(factors=None):
    """What the link of a node of h100.toml takes, times a factor by kind."""
    text = ""
    for kind, exchanges in COLLECTIVES.items():
        for ranks in (2, 4):
            for size in (1, 1000, 10**6, 10**9):
                seconds = exchanges * (factors or {}).get(kind, 1) * (4e-6 + size * (ranks - 1) / ranks / 3.6e11)
                text += f'\n[[collective]]\nkind = "{kind}"\nranks = {ranks}\nbytes = {size}\nseconds = {seconds:.17g}\n'
    return text


@pytest.mark.parametrize("layout, of_tasks, of_sums", [
    (["tp=2", "dp=2"], {"all_gather", "reduce_scatter", "all_reduce"}, {"reduce_scatter", "all_gather", "all_reduce"}),
    (["cp=2", "cp_kind=all-to-all", "dp=2"], {"all_to_all"}, {"reduce_scatter", "all_gather"}),
    (["cp=2", "dp=1"], set(), {"reduce_scatter", "all_gather"}),
    (["pp=2", "dp=4"], set(), {"reduce_scatter", "all_gather", "all_reduce"}),
    (["ep=4", "dp=4"], {"all_gather", "all_to_all"}, {"reduce_scatter", "all_gather"}),
])
def test_collectives_of_the_links_own_times_change_nothing(workspace, layout, of_tasks, of_sums):
    """Rows by the formula of the link give its times. Rows of one kind that are slower move what runs it, and nothing else."""
    text = (ROOT / "inputs/clusters/h100.toml").read_text()
    # Sums that a device computes take no time here: they are a part of measured times and add to those of a link.
    for old, new in (("memory_bandwidth = 2.8e12", "memory_bandwidth = 1e21"), ("element_flops = 2e13", "element_flops = 1e21"),
                     ("operation_s = 5e-6", "operation_s = 0"), ("ranks_per_node = 8", "ranks_per_node = 16")):
        assert old in text
        text = text.replace(old, new)
    values = [f"section.language.layout.{degree}" for degree in layout] + (EXPERTS if layout[0].startswith("ep") else [])

    def simulated(rows):
        (workspace.path / "cluster.toml").write_text(text + rows)
        command = [BINARY, "simulate", VLM, "--cluster", "cluster.toml", *settings(values)]
        result = subprocess.run(command, cwd=workspace.path, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout.splitlines()[-1])
        return found["sections"]["language"]["work_s"], found["step_s"], found["sections"]["vision"]["work_s"]

    work_s, step_s, vision_s = simulated("")
    assert simulated(collective_rows()) == pytest.approx((work_s, step_s, vision_s), rel=1e-6)
    for kind in COLLECTIVES:
        slower = simulated(collective_rows({kind: 100}))
        assert slower[2] == pytest.approx(vision_s, rel=1e-9)
        assert (slower[0] > 1.001 * work_s) == (kind in of_tasks)
        assert (slower[1] > 1.001 * step_s) == (kind in of_tasks | of_sums)
        if kind not in of_tasks:
            assert slower[0] == pytest.approx(work_s, rel=1e-6)
        if kind not in of_tasks | of_sums:
            assert slower[1] == pytest.approx(step_s, rel=1e-6)


def test_layers_of_a_deck_that_run_correct_its_predictions(workspace):
    command = ["calibrate", "--out", "this.toml", "--deck", VLM, *settings(TWO_RANKS)]
    result = mpirun(2, *command, cwd=workspace.path)
    assert result.returncode == 0, result.stderr
    written = (workspace.path / "this.toml").read_text()
    corrections = tomllib.loads(written)["correction"]
    assert {(c["section"], c["part"]) for c in corrections} == {(s, p) for s in ("vision", "language") for p in ("first", "layer", "last")}
    assert 2 <= len({(c["rows"], c["length"]) for c in corrections if c["section"] == "language"}) <= 3
    assert "of the time is of shapes that were measured" in result.stdout
    (workspace.path / "rates.toml").write_text(written[:written.index("[[correction]]")])
    found = []
    for cluster in ("this.toml", "rates.toml"):
        answer = subprocess.run([BINARY, "simulate", VLM, "--cluster", cluster, *settings(TWO_RANKS)], cwd=workspace.path,
                                capture_output=True, text=True, check=True)
        found.append(json.loads(answer.stdout.splitlines()[-1])["sections"])
    for name in ("vision", "language"):
        factors = re.findall(rf"section {name},.*: measured over predicted time ([0-9.]+) forward, ([0-9.]+) backward", result.stdout)
        factors = [float(factor) for pair in factors for factor in pair]
        assert min(factors) * 0.999 <= found[0][name]["work_s"] / found[1][name]["work_s"] <= max(factors) * 1.001


@pytest.mark.parametrize("options, code, expected", [
    (["--deck", str(ROOT / "inputs/emulated_vlm.toml")], 78, "run.device: emulated, which computes nothing"),
    (["--deck", VLM, "--set", "run.precision=fp64"], 78, "run.precision: fp64"),
    (["--deck", VLM, "--set", "data.train=absent.h5"], 66, "absent.h5"),
    (["--deck", "absent.toml"], 66, "absent.toml"),
    (["--set", "run.seed=2"], 64, "--set needs --deck"),
    ([VLM], 64, "--deck DECK"),
])
def test_calibration_of_a_deck_is_refused(workspace, options, code, expected):
    result = mpirun(1, "calibrate", "--out", "this.toml", *options, cwd=workspace.path)
    assert result.returncode == code and expected in result.stderr
    assert not (workspace.path / "this.toml").exists()


def test_under_mpirun_one_rank_speaks(tmp_path):
    write_case(tmp_path)
    result = mpirun(2, "simulate", "deck.toml", "--costs", "costs.csv", cwd=tmp_path)
    assert result.returncode == 0 and result.stdout.count("lower_bound_s") == 1


@pytest.mark.parametrize("text, expected", [
    ("sample,section,forward_s,backward_s\n0,langauge,1,2\n", "costs.csv:2: section: 'langauge'"),
    ("sample,section,forward_s,backward_s\n0,language,nan,2\n", "costs.csv:2: forward_s: 'nan'"),
    ("sample,section,forward_s,backward_s\n0,language,1,-2\n", "costs.csv:2: backward_s: '-2'"),
    ("sample,section,forward_s,backward_s\n0,language,1e300,2\n", "costs.csv:2: forward_s: '1e300'"),
    ("sample,section,forward_s,backward_s\n-1,language,1,2\n", "costs.csv:2: sample: '-1'"),
    ("sample,section,forward_s,backward_s\n0,language,1,2\n0,language,1,2\n", "costs.csv:3: sample 0 has times"),
    ("sample,section,forward_s,backward_s\n0,language,1\n", "costs.csv:2: 3 fields"),
    ("sample,section,forward_s,backward_s\n0,vision,1,2\n", "sample 0 has no times for section 'language'"),
    ("sample,section,forward_s,backward_s\n", "holds no times"),
    ("sample,section\n0,vision\n", "costs.csv:1: the first line must be"),
    ("\x00\xff", "costs.csv:1: the first line must be"),
])
def test_bad_costs_are_refused(tmp_path, text, expected):
    write_case(tmp_path)
    (tmp_path / "costs.csv").write_text(text, encoding="latin-1")
    result = subprocess.run([BINARY, "simulate", "deck.toml", "--costs", "costs.csv", "--timeline", "out.csv"], cwd=tmp_path,
                            capture_output=True, text=True)
    assert result.returncode == 65 and result.stderr.count(expected) == 1, result.stderr
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("code, options, expected", [
    (64, ["--costs", "costs.csv", "--policy", "best"], "--policy best: no such policy"),
    (64, ["--costs", "costs.csv", "--noise", "nan"], "--noise"),
    (66, ["--costs", "absent.csv"], "absent.csv"),
    (73, ["--costs", "costs.csv", "--timeline", "absent/out.csv"], "absent/out.csv: "),
    (74, ["--costs", "costs.csv", "--timeline", "/dev/full"], "/dev/full: "),
    (78, ["--costs", "costs.csv", "--set", "section.language.layout.dp=3", "--set", "section.vision.layout.dp=2"], "fanout"),
    (64, [], "either --cluster"),
    (78, ["--cluster", "absent.toml"], "section.vision.model: missing"),
])
def test_bad_requests_are_refused(tmp_path, code, options, expected):
    write_case(tmp_path, share=1.0)
    result = subprocess.run([BINARY, "simulate", "deck.toml", *options], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == code and expected in result.stderr, (result.returncode, result.stderr)
