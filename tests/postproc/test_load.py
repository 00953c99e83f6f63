import h5py
import numpy as np
import pytest
from conftest import step_rows, task_rows, write_run
from maestro_postproc import RunError, load_run, section_shares


def damaged(folder, change):
    with h5py.File(folder / "metrics.h5", "r+") as file:
        change(file)
    with pytest.raises(RunError) as caught:
        load_run(folder)
    return caught.value


def test_rows_come_back(run_folder):
    run = load_run(run_folder)
    assert np.array_equal(run.steps.loss, step_rows(40)["loss"])
    assert np.array_equal(run.timeline.wait_s, task_rows(4)["wait_s"])
    assert run.sections == ["vision", "language"] and run.checkpoints == [40] and run.exit["code"] == 0
    assert run.name == "first" and "name" in run.deck


def test_metrics_file_itself_may_be_named(run_folder):
    assert load_run(run_folder / "metrics.h5").path == run_folder.resolve()


def test_missing_run(tmp_path):
    with pytest.raises(RunError) as caught:
        load_run(tmp_path / "nowhere")
    assert caught.value.code == 66 and "nowhere" in str(caught.value)


def test_not_hdf5(tmp_path):
    (tmp_path / "metrics.h5").write_bytes(b"not a run" * 100)
    with pytest.raises(RunError) as caught:
        load_run(tmp_path)
    assert caught.value.code == 65


def test_truncated(run_folder):
    metrics = run_folder / "metrics.h5"
    metrics.write_bytes(metrics.read_bytes()[:3000])
    with pytest.raises(RunError) as caught:
        load_run(run_folder)
    assert caught.value.code == 65


@pytest.mark.parametrize("change, says", [
    (lambda f: f.attrs.modify("format", "maestro-samples"), "maestro-samples"),
    (lambda f: f.attrs.modify("version", 2), "version 2"),
    (lambda f: f.__delitem__("steps/loss"), "steps/loss"),
    (lambda f: f["steps/loss"].resize((3,)), "differ in length"),
    (lambda f: f.attrs.modify("sections", "vision"), "beyond"),
    (lambda f: [f[f"steps/{name}"].resize((1 << 50,)) for name in f["steps"]], "more than the file can hold"),
])
def test_foreign_files_are_refused(run_folder, change, says):
    error = damaged(run_folder, change)
    assert error.code == 65 and says in str(error)


def test_links_out_of_the_file_are_refused(run_folder):
    def link(file):
        del file["steps/loss"]
        file["steps/loss"] = h5py.ExternalLink("/etc/passwd", "/loss")

    assert damaged(run_folder, link).code == 65


def test_shares(tmp_path):
    run = load_run(write_run(tmp_path / "run", steps=step_rows(4)))
    vision, language = section_shares(run, skip=0)
    assert (vision.ranks, language.ranks) == (1, 3)
    assert vision.compute == pytest.approx((4 * 0.02 + 4 * 0.03) / 0.25)
    assert vision.waiting == pytest.approx(0.04 / 0.25)
    assert language.compute == pytest.approx(0.2 / 0.25) and language.waiting == pytest.approx(0.02 / 0.25)
    assert language.rest == pytest.approx(1 - language.compute - language.waiting)


def test_a_section_without_tasks_has_no_shares(tmp_path):
    run = load_run(write_run(tmp_path / "run", sections="vision\nlanguage\nidle"))
    assert section_shares(run)[2].tasks == 0
