"""What users observe of a run on a GPU: profiler ranges, task times, log lines and error messages."""

import os
import pathlib
import re
import subprocess
import sys

import h5py
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_training import HOSTED, ROOT, STEPS, data, train  # noqa: E402, F401  (data is a fixture)

RECORDER = os.environ.get("MAESTRO_NVTX_RECORDER", str(ROOT / "build/cpu-release/tests/cuda/libnvtx_recorder.so"))
PHASES = ("forward", "backward")


@pytest.fixture
def folder(tmp_path, data):  # noqa: F811
    (tmp_path / "data").symlink_to(data)
    return tmp_path


def sections_of(file):
    names = file.attrs["sections"]
    return (names.decode() if isinstance(names, bytes) else names).split("\n")


def tasks_of(path):
    """Returns the tasks of each rank in the order in which they ran."""
    ranks = {}
    with h5py.File(path) as file:
        names, rows = sections_of(file), file["timeline"]
        columns = {key: rows[key][:] for key in ("rank", "step", "section", "phase", "micro_batch", "start_s", "end_s", "wait_s")}
        for i in sorted(range(len(columns["rank"])), key=lambda i: columns["start_s"][i]):
            task = {key: column[i] for key, column in columns.items()}
            ranks.setdefault(int(task["rank"]), []).append({**task, "section": names[task["section"]]})
    return ranks


def ranges_of(path):
    """Returns all ranges of the domain "maestro" as paths of nested names, in the order of their beginnings."""
    opened, found = [], []
    for line in path.read_text().splitlines():
        what, domain, *name = line.split("\t")
        if domain != "maestro":
            continue
        if what == "push":
            opened.append(name[0])
            found.append(tuple(opened))
        else:
            opened.pop()
    assert not opened, f"never closed: {opened}"
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, data):  # noqa: F811
    """A run of 4 ranks with recorded NVTX ranges, and its log. The last GPU has no peer access to the others."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "data").symlink_to(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVTX_INJECTION64_PATH", RECORDER)
        patch.setenv("MAESTRO_NVTX_RECORD", str(folder / "ranges"))
        patch.setenv("MAESTRO_HOSTED_ISLAND", "3")
        _, log = train(folder, HOSTED, 4, "data.global_batch=24", "run.device=auto", gpus=4)
    return folder, log


def test_a_profiler_sees_sections_phases_and_micro_batches(recorded):
    folder, _ = recorded
    tasks = tasks_of(folder / "runs/0/metrics.h5")
    assert sorted(tasks) == [0, 1, 2, 3]
    for rank in tasks:
        found = ranges_of(folder / f"ranges.{rank}")
        expected = [(t["section"], PHASES[t["phase"]], f"micro-batch {t['micro_batch']}") for t in tasks[rank]]
        assert [r for r in found if len(r) == 3 and r[1] in PHASES] == expected
        ends = [r for r in found if len(r) == 2 and r[1] not in PHASES]
        sections = {t["section"] for t in tasks[rank]}
        assert sorted(ends) == sorted((section, phase) for section in sections for phase in ("reduce", "update") for _ in range(STEPS))
        edges = [r for r in found if r[-1] == "edge"]
        assert edges and all(len(r) == 4 and r[1] in PHASES for r in edges)
        known = set(expected) | {e[:k] for e in expected for k in (1, 2)} | set(ends) | set(edges)
        assert set(found) == known, set(found) - known


def test_runs_on_the_cpu_have_no_ranges(folder, monkeypatch):
    monkeypatch.setenv("NVTX_INJECTION64_PATH", RECORDER)
    monkeypatch.setenv("MAESTRO_NVTX_RECORD", str(folder / "ranges"))
    train(folder, HOSTED, 4, "run.device=cpu")
    assert not any("maestro" in path.read_text() for path in folder.glob("ranges.*"))


def test_tasks_are_sequential_within_their_step(recorded):
    folder, log = recorded
    path = folder / "runs/0/metrics.h5"
    with h5py.File(path) as file:
        steps = dict(zip(file["steps/step"][:], file["steps/time_s"][:]))
    for rank, tasks in tasks_of(path).items():
        for previous, task in zip(tasks, tasks[1:]):
            assert task["start_s"] - task["wait_s"] >= previous["end_s"] - 1e-6
        for step, time_s in steps.items():
            ran = sum(t["end_s"] - t["start_s"] for t in tasks if t["step"] == step)
            assert 0 < ran <= time_s + 0.05, f"rank {rank}, step {step}: {ran} of {time_s} s"
    assert "time per section" in log


def run(folder, *values, ranks=4, line=(), **variables):
    """Returns exit code, stdout and stderr. A variable NAME_RANK sets NAME for that rank only."""
    arguments = [word for value in ("train.steps=1", "checkpoint.every=0", "run.output=runs/it", *values) for word in ("--set", value)]
    exports = "".join(f'[ "$OMPI_COMM_WORLD_RANK" = {name[-1]} ] && export {name[:-2]}={value}; ' for name, value in variables.items() if name[-2] == "_")
    common = {name: str(value) for name, value in variables.items() if name[-2] != "_"}
    done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), "sh", "-c", exports + 'exec "$0" "$@"', HOSTED, "train",
                           str(ROOT / "inputs/vlm_glyphs.toml"), *line, *arguments],
                          cwd=folder, env={**os.environ, **common}, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)  # fmt: skip
    return done.returncode, done.stdout, done.stderr


GPU = r"NVIDIA H100 80GB HBM3 \(hosted\) \(architecture 9\.0, 16 GiB, PCI 0000:1{}:00\.0\)"


def test_the_log_names_gpus_libraries_and_peers(recorded):
    _, log = recorded
    libraries = r", driver for CUDA [\d.]+, runtime [\d.]+, .*cuBLASLt [\d.]+, .*(NCCL [\d.]+|built without NCCL)$"
    assert re.search("^cuda: " + GPU.format(0) + libraries, log, re.MULTILINE), log
    for rank in range(4):
        assert re.search(f"^rank {rank}: .*GPU {rank} of 4 .*: " + GPU.format(rank) + "$", log, re.MULTILINE), log
    assert re.search(r"^CUDA streams: at most \d+ on a rank, 32 hardware queues$", log, re.MULTILINE), log
    peers = re.findall(r"^GPUs of \S+ as peers: (.*)$", log, re.MULTILINE)
    assert peers == ["0 reaches 1, 2; 1 reaches 0, 2; 2 reaches 0, 1; 3 none"]


def screen_of(folder, device, gpus):
    code, screen, error = run(folder, f"run.device={device}", line=["--dry-run"], MAESTRO_HOSTED_DEVICES=gpus, MAESTRO_HOSTED_DEVICES_1=0)
    assert code == 0, error
    return screen


def test_the_screen_shows_the_device_that_auto_selected(folder):
    """Rank 1 sees no GPU, like a rank on a host without GPUs."""
    text = "1 on the CPU, no GPU: no CUDA-capable device is detected"
    assert re.search('^run.device = "auto": 3 of 4 ranks on ' + GPU.format(0) + "; " + text + "$", screen_of(folder, "auto", 2), re.MULTILINE)
    assert f'\nrun.device = "auto": {text.replace("1", "4", 1)}\n' in "\n" + screen_of(folder, "auto", 0)
    assert "run.device" not in screen_of(folder, "cpu", 2)


KEYS = ("window", "micro_batch", "train.recompute", "layout.tp", "layout.cp", "layout.dp")
ALONE, ALL = "MAESTRO_HOSTED_TAKEN_2", "MAESTRO_HOSTED_TAKEN"


@pytest.mark.parametrize("variable", [ALONE, ALL])
def test_memory_that_another_program_allocates_is_an_error_with_the_plan(folder, variable):
    """The memory is allocated after the plan was made: on rank 2, or on all ranks."""
    code, screen, error = run(folder, "run.device=cuda", **{variable: (16 << 30) - (40 << 20)})
    assert code == 80, (code, error)
    messages = [line for line in error.splitlines() if line.startswith("maestro: ")]
    assert len(messages) == 1, error
    assert re.search(r"cannot allocate \d+ MiB of GPU 0's memory: \d of 16384 MiB are free", messages[0]), messages
    rank, section = ("2", "language") if variable == ALONE else ("0", "vision")
    assert f"Planned for rank {rank}: " in messages[0] and "for weights and gradients" in messages[0]
    assert re.search(rf"\n  section {section}: window \d+, [\d.]+ MiB a micro-batch", error)
    assert all(key in messages[0] for key in KEYS)


def test_a_plan_that_does_not_fit_is_rejected_at_the_start(folder):
    code, _, error = run(folder, "run.device=cuda", MAESTRO_HOSTED_MEMORY=8 << 20)
    assert code == 80, (code, error)
    assert "MiB are free there" in error and "\n  section vision: " in error and "\n  section language: " in error
    assert all(key in error for key in KEYS)


def test_out_of_memory_in_a_library(folder):
    """The GEMM workspace, which is not a buffer of the plan."""
    code, _, error = run(folder, "run.device=cuda", MAESTRO_HOSTED_TAKEN=(16 << 30) - 1)
    assert code == 80 and "Planned for rank 0" in error, (code, error)


MIB = 1 << 20
CONTEXT = 400  # MiB


class Gpus:
    """GPUs with contexts of CONTEXT MiB. Either all ranks share one, or each rank sees a separate one as device 0."""

    def __init__(self, folder, separate):
        self.folder, self.separate = folder, separate
        self.visible = {f"CUDA_VISIBLE_DEVICES_{rank}": rank for rank in range(4)} if separate else {}

    def run(self, memory, *values, ranks=4, line=("--dry-run",)):
        ledger = self.folder / "ledger"
        ledger.unlink(missing_ok=True)
        return run(self.folder, "run.device=cuda", *values, ranks=ranks, line=line, **self.visible, MAESTRO_HOSTED_DEVICES=4 if self.separate else 1,
                   MAESTRO_HOSTED_CONTEXT=CONTEXT * MIB, MAESTRO_HOSTED_LEDGER=ledger, MAESTRO_HOSTED_MEMORY=memory * MIB)  # fmt: skip

    def shortage(self, memory, *values):
        """Returns the name of the GPU that is short of memory, and the needed and the free MiB."""
        code, _, error = self.run(memory, *values)
        assert code == 80, (code, error)
        found = re.search(r"the ranks on (GPU 0.*) of \S+ need (\d+) MiB of memory, (\d+) MiB are free there", error)
        assert found, error
        return found[1], int(found[2]), int(found[3])


def test_ranks_that_share_a_gpu_are_counted_together_with_contexts(folder):
    gpus = Gpus(folder, separate=False)
    name, needed, free = gpus.shortage(5 * CONTEXT)
    assert (name, free) == ("GPU 0", CONTEXT)
    assert needed > 4 * 288, "workspace and reserve of each"
    name, _, free = gpus.shortage(needed + 4 * CONTEXT - 20)
    assert free == needed - 20
    assert gpus.shortage(5 * CONTEXT, "run.gemm_autotune=benchmark")[1] == needed + 4 * 64
    code, screen, error = gpus.run(needed + 4 * CONTEXT + 20, line=())
    assert code == 0, error
    assert "libraries on a GPU have 32 MiB of workspace for each section" in screen and "NCCL's buffers" not in screen, screen


def test_gpus_that_are_all_device_0_are_counted_separately(folder):
    gpus = Gpus(folder, separate=True)
    name, needed, free = gpus.shortage(2 * CONTEXT)
    assert re.fullmatch(r"GPU 0 \(PCI 0000:1[123]:00\.0\)", name), name  # one of the three ranks that reduce gradients
    assert free == CONTEXT
    code, _, error = gpus.run(needed + CONTEXT + 20, line=())
    assert code == 0, error


def plan_of(screen):
    """Returns the memory of libraries, the windows of both sections, and the memory of each rank."""
    libraries, windows = (re.findall(pattern, screen, re.MULTILINE) for pattern in (r"^libraries on a GPU have .*$", r"window (\d+), [\d.]+ MiB a micro-batch"))
    memory = re.findall(r"^ +\d  +([\d.]+ MiB)", screen, re.MULTILINE)
    assert (len(libraries), len(windows), len(memory)) == (1, 2, 4), screen
    return libraries, windows, memory


def test_a_dry_run_in_one_process_plans_as_all_ranks_do(folder):
    gpus = Gpus(folder, separate=True)
    open_windows = ["section.vision.window=0", "section.vision.micro_batch=1"]
    _, needed, _ = gpus.shortage(2 * CONTEXT, *open_windows)
    windows = []
    for free in (needed + 1, 16 << 10):
        memory = int(free / 0.8) + CONTEXT  # windows use four fifths of the free memory
        one, all_ranks = (gpus.run(memory, *open_windows, ranks=ranks) for ranks in (1, 4))
        assert one[0] == all_ranks[0] == 0, (one, all_ranks)
        assert plan_of(one[1]) == plan_of(all_ranks[1])
        windows.append(int(plan_of(one[1])[1][0]))
    assert 4 <= windows[0] < windows[1] == 80
