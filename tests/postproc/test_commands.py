import json

import h5py
import numpy as np
import pytest
from conftest import TASK_TYPES, step_rows, task_rows, write_run
from maestro_postproc.cli import main


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
    assert main(["loss", str(run_folder)]) == 0
    assert is_png(run_folder / "plots/loss.png")


def test_loss_that_is_not_finite_is_still_drawn(tmp_path):
    steps = step_rows(40)
    steps["loss"][20:] = np.nan
    folder = write_run(tmp_path / "run", steps=steps)
    assert main(["loss", str(folder)]) == 0 and main(["summary", str(folder)]) == 0


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
