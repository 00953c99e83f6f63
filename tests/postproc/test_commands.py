import json
import warnings

import h5py
import numpy as np
import pytest
from conftest import TASK_TYPES, expert_rows, loss_rows, pipeline_rows, step_rows, sync_rows, task_rows, write_run
from maestro_postproc import experts, load_run, plots, timeline_plot
from maestro_postproc.cli import main
from maestro_postproc.figures import GREY, SYNC_COLOURS
from matplotlib.colors import to_rgba


def is_png(path):
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_summary(run_folder, capsys):
    assert main(["summary", str(run_folder)]) == 0
    text = capsys.readouterr().out
    assert "40 (1 to 40)" in text and "vision" in text and "code 0 at step 40" in text
    assert main(["summary", "--json", str(run_folder)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["steps"] == 40 and facts["last_loss"] == step_rows(40)["loss"][-1]


def test_summary_of_a_run_that_has_just_begun(tmp_path, capsys):
    folder = write_run(tmp_path / "new", steps={k: v[:0] for k, v in step_rows(1).items()},
                       tasks={name: [] for name in TASK_TYPES}, ended=None)
    assert main(["summary", str(folder)]) == 0
    assert "none recorded" in capsys.readouterr().out
    assert main(["loss", str(folder)]) == 65
    assert main(["timeline", str(folder)]) == 65
    assert main(["compare", str(folder), str(folder)]) == 0


def test_loss(run_folder, tmp_path):
    other = write_run(tmp_path / "runs/second", steps=step_rows(400, seed=2))
    for axis in ("step", "tokens", "time"):
        assert main(["loss", str(run_folder), str(other), "--axis", axis, "--out", str(tmp_path / f"{axis}.png")]) == 0
        assert is_png(tmp_path / f"{axis}.png")
    (tmp_path / "evaluation.txt").write_text('a line\n{"loss": 1.17, "exact_match": 0.9}\n')
    assert main(["loss", str(run_folder), "--evaluation", str(tmp_path / "evaluation.txt")]) == 0
    assert is_png(run_folder / "plots/loss.png")
    (tmp_path / "cut.txt").write_text("a line\n")
    assert main(["loss", str(run_folder), "--evaluation", str(tmp_path / "cut.txt")]) == 65
    assert main(["loss", str(run_folder), "--evaluation", str(tmp_path / "none.txt")]) == 66


def test_steps_without_targets_have_no_loss(tmp_path, capsys):
    steps = step_rows(100)
    expected, steps["loss"][20:] = steps["loss"][19], np.nan
    folder = write_run(tmp_path / "run", steps=steps)
    assert main(["loss", str(folder)]) == 0 and main(["summary", str(folder)]) == 0
    assert "none at the last" in (text := capsys.readouterr().out) and "80 steps have no loss" in text
    mean = plots._running_mean(steps["loss"], 2)
    assert mean[20] == pytest.approx(expected) and np.isnan(mean[21:]).all()
    assert main(["compare", str(folder), str(folder), "--tolerance", "0", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["first"]
    assert facts["last_loss"] is None and facts["lowest_loss"] == steps["loss"][:20].min()


def test_timeline_picture_and_trace(run_folder):
    assert main(["timeline", str(run_folder), "--steps", "2:3"]) == 0
    assert is_png(run_folder / "plots/timeline.png")
    events = json.loads((run_folder / "plots/timeline.json").read_text())["traceEvents"]
    tasks = [e for e in events if e["ph"] == "X" and e["cat"] != "waiting"]
    expected = task_rows(4)
    assert len(tasks) == sum(step in (2, 3) for step in expected["step"])
    first = next(e for e in tasks if e["args"]["section"] == "language" and e["pid"] == 1)
    assert first["ts"] == pytest.approx((0.25 + 0.02) * 1e6) and first["dur"] == pytest.approx(0.04e6)
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {f"rank {r}" for r in range(4)}
    assert sum(e["name"] == "waiting" for e in events) == 2 * 4
    last = {}
    for event in sorted(tasks, key=lambda e: e["ts"]):  # tasks of a rank never overlap
        assert event["ts"] >= last.get(event["pid"], 0) - 1e-2
        last[event["pid"]] = event["ts"] + event["dur"]


def test_timeline_of_two_runs_in_one_picture(run_folder, tmp_path):
    other = write_run(tmp_path / "runs/second")
    picture = tmp_path / "both.png"
    assert main(["timeline", str(run_folder), str(other), "--steps", "2", "--out", str(picture)]) == 0
    assert is_png(picture)
    assert main(["timeline", str(run_folder), "--steps", "2"]) == 0
    alone = run_folder / "plots/timeline.png"
    heights = [int.from_bytes(path.read_bytes()[20:24], "big") for path in (alone, picture)]  # of the PNG header
    assert heights[1] > 1.5 * heights[0]
    assert all((folder / "plots/timeline.json").exists() for folder in (run_folder, other))
    assert main(["timeline", str(run_folder), str(other), "--trace", str(tmp_path / "trace.json")]) == 64


@pytest.fixture
def drawn(monkeypatch):
    """Draws the first step of runs. Returns the texts of the figure and, for each panel, the widths of its bars by colour, where the
    first colour is the grey one."""
    figures = []

    def widths(panel, colours=()):
        found = {to_rgba(GREY): []}
        for bars in panel.collections:
            (colour,) = bars.get_facecolor() if len(bars.get_paths()) else [to_rgba(GREY)]
            found.setdefault(tuple(colour), []).extend(np.ptp(path.vertices[:, 0]) for path in bars.get_paths())
        return list(found.values()) if not colours else [found.get(to_rgba(colour), []) for colour in colours]

    monkeypatch.setattr(timeline_plot, "save", lambda figure, path: figures.append(figure))

    def draw(*folders):
        runs = [load_run(folder) for folder in folders]
        timeline_plot.plot_timeline(runs, [[1]] * len(runs), "timeline.png")
        legend, *panels = figures[-1].axes
        figures[-1].canvas.draw()  # which places the labels of the rows
        return {"legend": [text.get_text() for text in legend.get_legend().get_texts()], "bars": [widths(panel) for panel in panels],
                "syncs": [widths(panel, SYNC_COLOURS) for panel in panels],
                "rows": [[label.get_text() for label in panel.get_yticklabels()] for panel in panels],
                "idle": [panel.get_title("right") for panel in panels],
                "texts": [[text.get_text() for text in panel.texts] for panel in panels]}

    return draw


def test_rows_and_shades_tell_the_stages_of_a_pipeline(drawn, tmp_path):
    folder = write_run(tmp_path / "run", tasks=pipeline_rows(ranks=4, chunks=2, micro_batches=4, pictures=(1, 3)))
    found = drawn(folder)
    assert found["rows"] == [["rank 0", "rank 1: stages 0, 4", "rank 2: stages 1, 5", "rank 3: stages 2, 6", "rank 4: stages 3, 7"]]
    grey, *tasks = found["bars"][0]
    assert sorted(map(len, tasks)) == [2] * 2 + [4] * 16, "two phases of vision, and of each of eight stages"
    assert sum(grey) == pytest.approx(5 * 350 - 60 - 4 * 240), "milliseconds in which a rank is idle"
    assert found["legend"] == ["vision, forward", "vision, backward", "language, forward by stage", "language, backward by stage", "idle"]
    # 4 x 60 ms, 3 x 30 ms of fill and drain, and vision's last backward, of 20 ms
    assert found["idle"] == [f"idle: vision {1 - 60 / 350:.1%}, language {1 - 240 / 350:.1%}"]
    assert found["texts"][0].count("31%") == 4 and found["texts"][0].count("83%") == 1, found["texts"]
    assert found["texts"][0].count("1") == 2 + 2 * 8, "a number on each task of a micro-batch"


def test_rows_of_colocated_pipelines_name_the_section(drawn, tmp_path):
    folder = write_run(tmp_path / "run", tasks=pipeline_rows(ranks=2, chunks=2, micro_batches=4, pictures=(1, 3), colocated=True))
    found = drawn(folder)
    assert found["rows"] == [["rank 0: vision 0; language 0, 2", "rank 1: vision 1; language 1, 3"]]
    assert sorted(map(len, found["bars"][0][1:])) == [2] * 4 + [4] * 8


def test_a_timeline_without_pipelines_has_no_stages(drawn, run_folder):
    found = drawn(run_folder)
    assert found["rows"] == [["rank 0", "rank 1", "rank 2", "rank 3"]] and found["idle"] == [""]
    assert found["legend"] == ["vision, forward", "vision, backward", "language, forward", "language, backward", "waiting"]
    grey, *tasks = found["bars"][0]
    assert sorted(map(len, tasks)) == [4, 4, 6, 6] and sorted(grey) == pytest.approx([20, 20, 20, 40]), "what was waited"
    assert not any("%" in text for text in found["texts"][0])


def test_sums_and_gathers_have_a_row_below_the_tasks(drawn, tmp_path):
    found = drawn(write_run(tmp_path / "run", syncs=sync_rows(2)))
    assert found["legend"][-2:] == ["sums of gradients", "gathers of weights"]
    assert [sorted(lengths) for lengths in found["syncs"][0]] == [pytest.approx([20] * 3), pytest.approx([40] * 3)]
    assert len(found["bars"][0]) == 1 + 4 + 2 and found["rows"] == [["rank 0", "rank 1", "rank 2", "rank 3"]]


def test_a_trace_has_a_thread_of_sums_and_gathers(tmp_path):
    folder = write_run(tmp_path / "run", syncs=sync_rows(4))
    assert main(["timeline", str(folder), "--steps", "2:3"]) == 0
    events = json.loads((folder / "plots/timeline.json").read_text())["traceEvents"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    of_rank = [e for e in events if e["ph"] == "X" and e["pid"] == 2 and threads[2, e["tid"]] == "language: sums and gathers"]
    assert [(e["name"], e["args"]["step"]) for e in of_rank] == [
        ("gathers of weights", 1), ("sums of gradients", 2), ("gathers of weights", 2), ("sums of gradients", 3), ("gathers of weights", 3)]
    assert of_rank[1]["ts"] == pytest.approx(0.46e6) and of_rank[1]["dur"] == pytest.approx(0.02e6) and of_rank[1]["args"]["groups"] == 4
    assert all("sums" not in e["name"] for e in events if e["ph"] == "X" and e["pid"] == 0)


def test_a_legend_fits_its_figure(drawn, tmp_path):
    """Otherwise matplotlib, with a warning, leaves no room for the tasks."""
    sections = "a_vision_section_with_a_long_name\na_language_section_with_a_long_name"
    runs = [write_run(tmp_path / name, tasks=rows, sections=sections) for name, rows in
            (("flat", task_rows(1)), ("pipeline", pipeline_rows(pictures=(1, 2), colocated=True)))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(drawn(*runs)["legend"]) == 9


def test_a_trace_has_a_thread_for_each_stage(tmp_path):
    folder = write_run(tmp_path / "run", tasks=pipeline_rows(ranks=2, chunks=2, micro_batches=2, pictures=(0,)))
    assert main(["timeline", str(folder)]) == 0
    events = json.loads((folder / "plots/timeline.json").read_text())["traceEvents"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(threads.values()) == ["language, stage 0", "language, stage 1", "language, stage 2", "language, stage 3", "vision"]
    for event in events:
        if event["ph"] == "X":
            stage = f", stage {event['args']['stage']}" if event["args"]["section"] == "language" else ""
            assert threads[event["pid"], event["tid"]] == event["args"]["section"] + stage


def test_timeline_of_missing_steps(run_folder, capsys):
    assert main(["timeline", str(run_folder), "--steps", "77"]) == 64
    assert "steps 1 to 4" in capsys.readouterr().err
    assert not (run_folder / "plots/timeline.png").exists()


def test_a_resumed_run_keeps_its_order(tmp_path):
    """The clock of the program starts at zero with every start."""
    tasks = {name: np.array(values) for name, values in task_rows(4).items()}
    for name in ("start_s", "end_s"):
        tasks[name][tasks["step"] >= 3] -= 0.5
    folder = write_run(tmp_path / "run", tasks=tasks)
    assert main(["timeline", str(folder), "--steps", "1:4"]) == 0
    events = json.loads((folder / "plots/timeline.json").read_text())["traceEvents"]
    starts = {}
    for event in events:
        if event["ph"] == "X":
            starts.setdefault(event["args"]["step"], []).append((event["ts"], event["ts"] + event["dur"]))
    assert min(starts[3])[0] >= max(end for _, end in starts[2]) - 1e-2
    assert min(starts[4])[0] - min(starts[3])[0] == pytest.approx(0.25e6)


def test_unknown_phase(run_folder):
    with h5py.File(run_folder / "metrics.h5", "r+") as file:
        file["timeline/phase"][:] = 7
    assert main(["timeline", str(run_folder)]) == 65


def test_waiting(run_folder, capsys, tmp_path):
    assert main(["waiting", str(run_folder), "--out", str(tmp_path / "waiting.png")]) == 0
    assert "language" in capsys.readouterr().out and is_png(tmp_path / "waiting.png")
    assert main(["waiting", str(run_folder), "--json"]) == 0
    assert [share["section"] for share in json.loads(capsys.readouterr().out)] == ["vision", "language"]


def test_waiting_by_stage(tmp_path, capsys):
    steps = step_rows(2)
    steps["time_s"][:] = 0.6
    folder = write_run(tmp_path / "run", steps=steps, tasks=pipeline_rows(micro_batches=6, steps=2))
    assert main(["waiting", str(folder), "--out", str(tmp_path / "waiting.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith("language")] == ["language"]
    assert [line.split()[1] for line in lines if line.startswith("  stage ")] == ["0", "1", "2", "3"]
    assert all(line.endswith("33.3%") for line in lines if line.startswith(("language", "  stage"))), "3 of 9 micro-batches' time"
    assert main(["summary", str(folder), "--json"]) == 0
    language = json.loads(capsys.readouterr().out)["shares"][1]
    assert len(language["stages"]) == 4 and language["stages"][2]["stage"] == 2
    assert language["stages"][2]["idle"] == pytest.approx(1 / 3) and language["stages"][2]["compute"] == pytest.approx(0.6)


def test_loads_of_experts(tmp_path, run_folder, capsys):
    folder = write_run(tmp_path / "run", experts=expert_rows(40))
    assert main(["experts", str(folder)]) == 0
    assert is_png(folder / "plots/experts.png")
    assert main(["summary", str(folder)]) == 0
    assert "experts      language, 2 layers, last 4 steps" in capsys.readouterr().out
    assert main(["experts", str(run_folder)]) == 65
    assert "no loads of experts" in capsys.readouterr().err
    assert main(["summary", str(run_folder)]) == 0
    assert "\nexperts  " not in capsys.readouterr().out


def test_terms_of_losses(tmp_path, run_folder, capsys):
    folder = write_run(tmp_path / "run", losses=loss_rows(120))
    assert main(["terms", str(folder)]) == 0
    assert is_png(folder / "plots/terms.png")
    assert main(["summary", str(folder)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("term ")]
    values = loss_rows(120)["value"]
    assert len(lines) == 3 and lines[1].endswith(f"cross_entropy of language: {values[1]:.4g} at first, {values[-2]:.4g} at last")
    assert main(["summary", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["terms"]
    assert facts[2] == dict(section="language", term="forward_kl", first=values[2], last=values[-1])
    assert main(["terms", str(run_folder)]) == 65
    assert "no terms of losses" in capsys.readouterr().err
    alone = {name: rows[1::3] for name, rows in loss_rows(4).items()}  # cross entropy
    assert main(["summary", str(write_run(tmp_path / "alone", losses=alone))]) == 0
    assert "\nterm " not in capsys.readouterr().out, "it is the loss"


def test_many_layers_with_experts_have_a_range_and_a_map(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(experts, "save", lambda figure, path: (figure.canvas.draw(), figures.append(figure)))
    few, many = expert_rows(30, (1, 2, 3), section=0), expert_rows(30, range(12))
    rows = {name: [*few[name], *many[name]] for name in few}
    rows["largest"][-1] = 9.0  # the axis becomes logarithmic
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        experts.plot_experts(load_run(write_run(tmp_path / "run", experts=rows)), "experts.png")
        experts.plot_experts(load_run(write_run(tmp_path / "short", experts=expert_rows(1, range(12)))), "experts.png")
    of_few, of_many = figures[0].axes[:3], figures[0].axes[3:7]
    assert [text.get_text() for text in of_few[0].get_legend().get_texts()] == ["layer 1", "layer 2", "layer 3"]
    assert [len(panel.lines) for panel in of_few] == [4] * 3, "the layers, and what equal loads would give"
    assert [text.get_text() for text in of_many[0].get_legend().get_texts()] == ["range of 12 layers", "median"]
    assert [panel.get_yscale() for panel in (of_few[0], of_many[0])] == ["linear", "log"]
    by_layer = np.reshape(many["largest"], (30, 12)).T
    by_layer[-1, -1] = 9.0
    assert np.allclose(of_many[0].lines[1].get_ydata(), np.median(by_layer, axis=0))
    (colours,) = [mesh for mesh in of_many[3].collections if mesh.get_array() is not None]
    assert np.allclose(np.reshape(colours.get_array(), by_layer.shape), by_layer)


def test_compare(run_folder, tmp_path, capsys):
    steps = step_rows(40)
    steps["loss"][30] *= 1 + 1e-6
    other = write_run(tmp_path / "other", steps=steps, deck="[run]\nname = \"other\"\n")
    assert main(["compare", str(run_folder), str(other), "--tolerance", "1e-5"]) == 0
    text = capsys.readouterr().out
    assert "step 31" in text and '- name = "test"'.replace("- ", "-") in text and '+name = "other"' in text
    assert main(["compare", str(run_folder), str(other), "--tolerance", "1e-8"]) == 1
    capsys.readouterr()
    assert main(["compare", str(run_folder), str(run_folder), "--tolerance", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["equal_bit_for_bit"] is True


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["compare", "one"], ["timeline", "x", "--steps", "5:2"], ["summary", "x", "--skip", "-1"]])
def test_bad_usage(arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 64


def test_output_that_cannot_be_made(run_folder, tmp_path):
    (tmp_path / "file").write_text("")
    assert main(["loss", str(run_folder), "--out", str(tmp_path / "file/loss.png")]) == 73
    assert main(["summary", str(tmp_path / "nowhere")]) == 66
