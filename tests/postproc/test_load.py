import h5py
import numpy as np
import pytest
from conftest import TASK_TYPES, expert_rows, loss_rows, pipeline_rows, step_rows, sync_rows, task_rows, write_run
from maestro_postproc import RunError, load_run, section_shares
from maestro_postproc.experts import latest_loads, layer_loads
from maestro_postproc.summary import shares_text
from maestro_postproc.tasks import gaps, idle_shares, syncs_of


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
    assert len(run.syncs) == len(run.experts) == len(run.losses) == 0 and not run.losses.by_term(), "an older build wrote it"
    assert not run.timeline.weights_s.any(), "an older build wrote it"


def test_sums_and_gathers_come_back(tmp_path):
    run = load_run(write_run(tmp_path / "run", syncs=sync_rows(4)))
    assert len(run.syncs) == 2 * 3 * 4 and np.array_equal(run.syncs.busy_s, sync_rows(4)["busy_s"])
    chosen = syncs_of(run, [2, 3])
    assert sorted(set(zip(chosen.step.tolist(), chosen.kind.tolist()))) == [(1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    with h5py.File(run.path / "metrics.h5", "r+") as file:
        file["syncs/kind"][0] = 7
    with pytest.raises(RunError) as caught:
        syncs_of(load_run(run.path), [1])
    assert caught.value.code == 65 and "/syncs/kind" in str(caught.value)
    assert "/syncs/section" in str(damaged(run.path, lambda file: file["syncs/section"].write_direct(np.full(len(run.syncs), 2, "i4"))))


def test_sums_and_gathers_are_on_the_clock_of_the_tasks(tmp_path):
    """The program was started again after step 2: its clock began at zero."""
    tasks, syncs = ({name: np.array(values) for name, values in rows.items()} for rows in (task_rows(4), sync_rows(4)))
    for rows in (tasks, syncs):
        for name in ("start_s", "end_s"):
            rows[name][rows["step"] >= 3] -= 0.5
    run = load_run(write_run(tmp_path / "run", tasks=tasks, syncs=syncs))
    found = syncs_of(run, [2, 3])
    sums, weights = (found.select((found.kind == kind) & (found.rank == 1)) for kind in (0, 1))
    assert sums.start_s == pytest.approx([0.46, 0.49 + 0.21]), "step 3 begins at the end of step 2, which is at 0.49 s"
    assert weights.start_s == pytest.approx([0.24, 0.49, 0.49 + 0.24])
    later = syncs_of(run, [3])
    assert later.start_s[later.kind == 0] == pytest.approx([0.21] * 3)
    assert later.end_s[later.step == 2].max() < 0.05, "the gathers after step 2, on its clock"


def test_loads_of_experts_come_back(tmp_path):
    run = load_run(write_run(tmp_path / "run", experts=expert_rows(4)))
    assert len(run.experts) == 2 * 4 and np.array_equal(run.experts.entropy, expert_rows(4)["entropy"])
    assert "/experts/section" in str(damaged(run.path, lambda file: file["experts/section"].write_direct(np.full(8, 2, "i4"))))
    run = load_run(write_run(tmp_path / "other", experts=expert_rows(4)))
    assert "/experts/layer" in str(damaged(run.path, lambda file: file["experts/layer"].write_direct(np.full(8, -1, "i4"))))


def test_terms_of_losses_come_back(tmp_path):
    run = load_run(write_run(tmp_path / "run", losses=loss_rows(4)))
    terms = run.losses.by_term()
    assert list(terms) == [(1, "balance"), (1, "cross_entropy"), (1, "forward_kl")]
    assert terms[1, "forward_kl"].step.tolist() == [1, 2, 3, 4]
    assert np.array_equal(terms[1, "cross_entropy"].value, loss_rows(4)["value"][1::3])
    assert "/losses/section" in str(damaged(run.path, lambda file: file["losses/section"].write_direct(np.full(12, 2, "i4"))))

    def without_texts(file):
        del file["losses/name"]
        file["losses/name"] = np.zeros(12)

    run = load_run(write_run(tmp_path / "other", losses=loss_rows(4)))
    assert "/losses/name" in str(damaged(run.path, without_texts))


def test_loads_of_experts_are_means_by_layer(tmp_path):
    """Of seven steps in columns of two; layer 5 has no rows in the first three steps."""
    rows = [(step, 1, layer, 10 * layer + step, step / 10, 1.0) for step in range(11, 18) for layer in (2, 5) if layer == 2 or step > 13]
    rows += [(11, 0, 2, 99.0, 0.0, 0.0)]  # of another section
    run = load_run(write_run(tmp_path / "run", experts={name: [row[i] for row in rows] for i, name in enumerate(expert_rows(1))}))
    loads = layer_loads(run.experts, 1, columns=5)
    assert loads.width == 2 and loads.layers.tolist() == [2, 5] and loads.edges.tolist() == [10.5, 12.5, 14.5, 16.5, 17.5]
    assert loads.largest[0].tolist() == [31.5, 33.5, 35.5, 37] and loads.smallest[0] == pytest.approx([1.15, 1.35, 1.55, 1.7])
    assert np.isnan(loads.largest[1, 0]) and loads.largest[1, 1:].tolist() == [64, 65.5, 67]
    vision, language = latest_loads(run)
    assert vision["section"] == "vision" and vision["largest"] == 99
    assert language == dict(section="language", layers=2, steps=1, largest=52, smallest=1.7, entropy=1, worst_layer=5, worst_largest=67)


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
    (lambda f: f["timeline/stage"].write_direct(np.full(len(f["timeline/stage"]), -1, "i4")), "stage has a negative value"),
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


def test_waiting_for_weights_is_not_computing(tmp_path):
    tasks = task_rows(4)
    first = [(section, batch, phase) == (1, 0, 0) for section, batch, phase in zip(tasks["section"], tasks["micro_batch"], tasks["phase"])]
    tasks["weights_s"] = np.where(first, 0.01, 0)
    language = section_shares(load_run(write_run(tmp_path / "run", steps=step_rows(4), tasks=tasks)), skip=0)[1]
    assert language.compute == pytest.approx(0.19 / 0.25) and language.waiting == pytest.approx(0.03 / 0.25)


def test_idle_is_the_time_without_a_task_of_any_section(tmp_path):
    """Vision works from 0 to 80 ms and from 120 to 240 ms, the last task, and language from 20 to 220 ms."""
    vision, language = section_shares(load_run(write_run(tmp_path / "run", steps=step_rows(4))), skip=0)
    assert vision.idle == pytest.approx(0.04 / 0.24) and language.idle == pytest.approx(0.04 / 0.24)
    assert vision.stages == language.stages == [], "a section of one stage is not divided"
    rows = pipeline_rows(ranks=1, micro_batches=2, pictures=(0, 1), colocated=True)  # both on rank 0, which always works
    found = section_shares(load_run(write_run(tmp_path / "colocated", steps=step_rows(1), tasks=rows)), skip=0)
    assert [share.idle for share in found] == pytest.approx([0, 0], abs=1e-12) and found[0].ranks == found[1].ranks == 1


def test_a_lane_works_where_its_first_rank_alone_records_it(tmp_path):
    """Vision has two replicas on each of the lanes of ranks 0 and 1 and of 2 and 3, language one; an auditor has rank 4."""
    tasks = [(0, replica, 0, replica, 1, 0, 0, 0, 20 if replica % 2 == 0 else 10, 0) for replica in range(4)]
    tasks += [(1, replica, 0, 2 * replica, 1, 0, phase, 20 + 40 * phase, 60 + 40 * phase, 0) for replica in (0, 1) for phase in (0, 1)]
    tasks.append((2, 0, 0, 4, 1, 0, 0, 0, 25, 0))
    rows = {name: [row[i] for row in tasks] for i, name in enumerate(TASK_TYPES)}
    path = write_run(tmp_path / "run", steps=step_rows(1), tasks=rows, sections="vision\nlanguage\nauditor")
    vision, language, auditor = section_shares(load_run(path), skip=0)
    assert (vision.ranks, language.ranks, auditor.ranks) == (4, 2, 1)
    assert vision.idle == pytest.approx((0 + 0.1) / 2) and language.idle == pytest.approx(0) and auditor.idle == pytest.approx(0.75)


@pytest.mark.parametrize("ranks, chunks, micro_batches", [(2, 1, 1), (2, 1, 8), (4, 1, 2), (4, 1, 16), (8, 1, 8), (2, 2, 4), (4, 2, 8), (4, 3, 16)])
def test_idle_shares_of_a_pipeline_are_those_of_the_closed_form(tmp_path, ranks, chunks, micro_batches):
    """With uniform costs a step takes m c + (p - 1) c / v, and every rank works for m c of it."""
    rows = pipeline_rows(ranks=ranks, chunks=chunks, micro_batches=micro_batches, steps=3)
    run = load_run(write_run(tmp_path / "run", steps=step_rows(3), tasks=rows))
    bubbles = (ranks - 1) / chunks
    language = section_shares(run, skip=0)[1]
    assert language.idle == pytest.approx(bubbles / (micro_batches + bubbles), abs=1e-9)
    assert [stage.stage for stage in language.stages] == list(range(ranks * chunks))
    for stage in language.stages:
        assert stage.ranks == 1 and stage.tasks == 3 * 2 * micro_batches
        assert stage.idle == pytest.approx(language.idle) and stage.compute_s == pytest.approx(0.06 / chunks * micro_batches)
    assert language.compute == pytest.approx(sum(stage.compute for stage in language.stages) / ranks)
    for rank in range(1, ranks + 1):  # what is drawn is what is counted, and does not cover a task
        idle = gaps(run.timeline, rank)
        assert sum(b - a for a, b in idle) == pytest.approx(3 * 0.06 * bubbles)
        tasks = run.timeline.select(run.timeline.rank == rank)
        assert all(b <= start + 1e-12 or end <= a + 1e-12 for a, b in idle for start, end in zip(tasks.start_s, tasks.end_s))


def test_idle_of_a_rank_without_tasks(run_folder):
    rows = load_run(run_folder).timeline
    assert idle_shares(rows, [0, 99])[1] == 1 and gaps(rows.select(rows.step == 2), 99) == [pytest.approx((0.25, 0.49))]


def test_a_section_without_tasks_has_no_shares(tmp_path):
    run = load_run(write_run(tmp_path / "run", sections="vision\nlanguage\nidle"))
    share = section_shares(run)[2]
    assert share.tasks == 0 and share.idle is None and "idle" in (text := shares_text([share])) and "0.0%" not in text
