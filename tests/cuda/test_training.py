"""Training on simulated GPUs has the losses of the CPU."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from built import BINARY, ROOT, data  # noqa: E402, F401  (data is a fixture)
from launched import ranks_of  # noqa: E402

sys.path.insert(0, str(ROOT / "tests/system"))
from test_vision_folders import make_workspace  # noqa: E402

HOSTED = os.environ.get("MAESTRO_HOSTED", str(ROOT / "build/cpu-release/maestro_hosted"))
HOSTED_GPU_MPI = os.environ.get("MAESTRO_HOSTED_GPU_MPI", str(ROOT / "build/cpu-release/maestro_hosted_gpu_mpi"))
STEPS, TOLERANCE = 2, 1e-5


def train(folder, program, ranks, *values, deck="vlm_glyphs", gpus=1, steps=STEPS, resume=None, environment={}):
    """Trains on a host with `gpus` GPUs, in a new run or resuming the run `resume`. Returns loss and gradient norm of every step, and the log."""
    output = resume or f"runs/{len(list(folder.glob('runs/*')))}"
    arguments = ["--resume", "auto"] if resume else []
    values = (f"data.global_batch={24 if deck == 'vlm_glyphs' else 12}", *values)  # small, because the simulation is slow
    arguments += [word for value in (f"train.steps={steps}", f"run.output={output}", f"checkpoint.every={STEPS}", *values) for word in ("--set", value)]
    done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), program, "train", str(ROOT / "inputs" / f"{deck}.toml"), *arguments],
                          cwd=folder, env={**os.environ, "MAESTRO_HOSTED_DEVICES": str(gpus), **environment}, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    with h5py.File(folder / output / "metrics.h5") as file:
        assert len(file["steps"]["loss"]) == steps
        return np.array([file["steps"][key][:] for key in ("loss", "grad_norm")]), (folder / output / "log.txt").read_text()


def quick_ones(cases, *names):
    """The names of the cases, as parameters: all but those listed are nightly."""
    assert set(names) <= set(cases)
    return [name if name in names else pytest.param(name, marks=pytest.mark.nightly) for name in cases]


def check(found, expected, what):
    difference = np.max(np.abs(found - expected) / np.abs(expected))
    print(f"{what}: {difference:.1e}")
    assert difference <= TOLERANCE


def edge_of(log, edge="vision-language"):
    return next(line for line in log.splitlines() if f"edge {edge}:" in line)


def test_losses_equal_the_cpus(tmp_path, data):  # noqa: F811
    (tmp_path / "data").symlink_to(data)
    expected, _ = train(tmp_path, BINARY, 4, "run.device=cpu")
    for gpus in (1, 4):
        found, log = train(tmp_path, HOSTED, 4, "run.device=cuda", gpus=gpus)
        assert "by shared memory, because MPI reaches no GPUs" in edge_of(log), edge_of(log)
        check(found, expected, f"4 ranks on {gpus} GPUs")


# Both sections on the same ranks, with a stream each; with and without gradients to the producer.
COLOCATED = {
    "alike": (1, "vlm_glyphs", ["section.language.layout.dp=1"]),
    "alike, ready": (2, "vlm_glyphs", ["section.vision.layout.dp=2", "section.language.layout.dp=2", "schedule.dispatch=ready"]),
    "frozen": (1, "vlm_glyphs", ["section.language.layout.dp=1", "section.vision.mode=forward", "section.vision.weights=runs/0"]),
    "tp and cp by window": (2, "layouts", ["section.vision.layout.tp=2", "section.language.layout.tp=1", "section.language.layout.cp=2",
                                         'section.vision.freeze=["patch","layers.0"]', 'section.language.freeze=["layers.0.attention"]']),
    "cp and tp by messages": (2, "layouts", ["section.vision.layout.cp=2", "section.language.layout.tp=2", "run.transport=messages"]),
}
ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # work of a stream waits behind that of all others



@pytest.mark.parametrize("case", quick_ones(COLOCATED, "alike, ready", "tp and cp by window"))
def test_losses_of_colocated_sections(tmp_path, data, case):  # noqa: F811
    (tmp_path / "data").symlink_to(data)
    ranks, deck, values = COLOCATED[case]
    values = ["section.language.colocate_with=vision", *values]
    if case == "frozen":
        train(tmp_path, BINARY, 4)  # the weights
    expected, _ = train(tmp_path, BINARY, ranks, *values, "run.device=cpu", deck=deck)
    for gpus in {1, ranks}:
        found, _ = train(tmp_path, HOSTED, ranks, *values, "run.device=cuda", deck=deck, gpus=gpus)
        check(found, expected, f"{case}, {gpus} GPUs")


def test_sums_do_not_wait_behind_exchanges(tmp_path, data):  # noqa: F811
    """With one hardware queue, a sum beside the tasks of one rank would wait for a rank whose sum waits behind an exchange of a task."""
    (tmp_path / "data").symlink_to(data)
    ranks, deck, values = COLOCATED["cp and tp by messages"]
    values = ["section.language.colocate_with=vision", "run.device=cuda", *values]
    expected, _ = train(tmp_path, HOSTED, ranks, *values, deck=deck, gpus=ranks)
    found, log = train(tmp_path, HOSTED, ranks, *values, deck=deck, gpus=ranks, environment=ONE_QUEUE)
    assert "1 hardware queue; work waits behind" in log
    assert np.array_equal(found, expected)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, data):  # noqa: F811
    """Bit for bit: losses, the last checkpoint, and the one before, which one run wrote in the background and the other at its end. Some
    weights are frozen, and copied once for all checkpoints."""
    (tmp_path / "data").symlink_to(data)
    values = ["section.language.colocate_with=vision", "section.vision.layout.dp=2", "section.language.layout.dp=2", "run.device=cuda",
              'section.language.freeze=["embedding","layers.1.mlp"]']
    uninterrupted, _ = train(tmp_path, HOSTED, 2, *values, steps=4)
    train(tmp_path, HOSTED, 2, *values, steps=2)
    resumed, _ = train(tmp_path, HOSTED, 2, *values, steps=4, resume="runs/1")
    assert np.array_equal(resumed, uninterrupted)
    for name in (f"step-00000{step}/{section}.h5" for step in (2, 4) for section in ("vision", "language")):
        one, other = (tmp_path / f"runs/{run}/checkpoints/{name}" for run in (0, 1))
        assert one.read_bytes() == other.read_bytes(), name


LAYOUTS = {
    "tp": (3, "layouts", []),
    "cp": (3, "layouts", ["section.language.layout.tp=1", "section.language.layout.cp=2"]),
    "dp": (3, "layouts", ["section.language.layout.tp=1", "section.language.layout.dp=2"]),
    "tp and cp": (6, "layouts", ["section.vision.layout.tp=2", "section.language.layout.cp=2", "run.tp_overlap=always"]),
    "lora": (3, "layouts", ["run.tp_overlap=always",
                            *(f"section.{name}.{key}" for name in ("vision", "language") for key in ("weights=random", "lora.rank=4", "lora.alpha=16"))]),
    "pp": (4, "layouts", ["section.vision.layout.pp=2", "section.language.layout.tp=1", "section.language.layout.pp=2"]),
    "experts": (5, "layouts_moe", ["section.language.layout.cp=2", "section.language.layout.ep=4"]),
    # Some replicas have no samples of the last micro-batches, but rows of others for their experts. No other ranks hold copies of the
    # experts, whose norms are computed while the gradients of other weights are summed.
    "experts of replicas": (7, "layouts_moe", ["section.language.layout.tp=1", "section.language.layout.dp=6", "section.language.layout.ep=3",
                                               "section.language.layout.etp=2", "section.language.micro_batch=1", "data.global_batch=8"]),
}


# An edge from two ranks to two or four others, and one between two stages. A transport: program, whether each rank has a GPU, expected log line.
EDGES = {
    "tp to cp": (4, ["section.vision.layout.tp=2", "section.language.layout.tp=1", "section.language.layout.cp=2"]),
    "dp to tp": (6, ["section.vision.layout.dp=2", "section.language.layout.dp=2"]),
    "stages": (5, ["section.language.layout.pp=2", "schedule.dispatch=ready"]),
}
TRANSPORTS = {
    "window": (HOSTED, False, "by shared memory.* copy straight from and to it"),
    "messages": (HOSTED, False, "by messages.* through pinned memory"),
    "auto": (HOSTED, True, "by shared memory, because MPI reaches no GPUs .* copy straight from and to it"),
    "auto, MPI reaches GPUs": (HOSTED_GPU_MPI, False, "because MPI reaches the GPUs of all its ranks; GPUs send straight from their memory"),
}
PAIRS = {f"{edge} by {transport}": (edge, transport) for edge in EDGES for transport in TRANSPORTS}


@pytest.mark.parametrize("pair", quick_ones(PAIRS, "tp to cp by window", "tp to cp by messages", "dp to tp by auto", "stages by auto"))
def test_losses_by_edges(tmp_path, data, pair):  # noqa: F811
    (tmp_path / "data").symlink_to(data)
    edge, transport = PAIRS[pair]
    ranks, values = EDGES[edge]
    values = [*values, f"run.transport={transport.split(',')[0]}"]
    expected, log = train(tmp_path, BINARY, ranks, *values, deck="layouts")
    assert "GPU" not in edge_of(log)
    program, difference, arguments = TRANSPORTS[transport]
    found, log = train(tmp_path, program, ranks, *values, "run.device=cuda", deck="layouts", gpus=ranks if difference else 1)
    for name in ["vision-language", *(["language stage 0-1"] if edge == "stages" else [])]:
        assert re.search(arguments, edge_of(log, name)), edge_of(log, name)
    check(found, expected, pair)


@pytest.mark.parametrize("layout", quick_ones(LAYOUTS, "tp and cp", "lora", "experts of replicas"))
def test_losses_by_collectives(tmp_path, data, layout):  # noqa: F811
    """By NCCL if each rank has a GPU, and through pinned memory if they share one. The log states the choice and the reason."""
    (tmp_path / "data").symlink_to(data)
    ranks, deck, values = LAYOUTS[layout]
    expected, log = train(tmp_path, BINARY, ranks, *values, deck=deck)
    assert "pinned" not in log and "NCCL" not in log
    for gpus, transport_pattern, reason in ((ranks, r"NCCL \d", "a GPU to itself"), (1, "pinned memory", "ranks share 1 GPU")):
        found, log = train(tmp_path, HOSTED, ranks, *values, "run.device=cuda", deck=deck, gpus=gpus)
        lines = [line for line in log.splitlines() if re.search("^ +section language( stage 0)?:", line)]
        assert re.search(transport_pattern, lines[0]) and reason in lines[0], lines
        check(found, expected, f"{layout} on {gpus} GPUs")


TOWERS = {
    "tp to cp": (4, ["section.vision.layout.tp=2", "section.language.layout.cp=2"]),
    "cp to stages": (4, ["section.vision.layout.cp=2", "section.language.layout.pp=2", "section.language.layout.stages=[2,1]"]),
}


@pytest.mark.parametrize("layout", quick_ones(TOWERS, "tp to cp"))
def test_losses_of_a_folder_with_a_tower(tmp_path, layout):
    """Qwen3-VL: learned positions, LayerNorm, GELU and biases, and an edge that carries rows of several layers."""
    make_workspace(tmp_path)
    ranks, values = TOWERS[layout]
    values = ["data.global_batch=3", *values]
    expected, _ = train(tmp_path, BINARY, ranks, *values, deck=tmp_path / "deck")
    for gpus in (1, ranks):
        found, _ = train(tmp_path, HOSTED, ranks, *values, "run.device=cuda", deck=tmp_path / "deck", gpus=gpus)
        check(found, expected, f"{layout} on {gpus} GPUs")


def test_losses_of_a_ring_in_bf16(tmp_path, data):  # noqa: F811
    """cuDNN writes the partial results of a ring in bf16. Losses are those of fp32 but for bf16's rounding, as on CPUs."""
    (tmp_path / "data").symlink_to(data)
    ranks, deck, values = LAYOUTS["cp"]
    exact, _ = train(tmp_path, BINARY, ranks, *values, deck=deck)
    found, log = train(tmp_path, HOSTED, ranks, *values, "run.device=cuda", "run.precision=bf16", deck=deck, gpus=ranks)
    assert re.search("section language: [1-9][0-9]* plans of attention built", log), log
    loss, norm = np.max(np.abs(found - exact) / exact, axis=1)
    assert loss < 1e-4 and norm < 4e-3, (loss, norm)


def test_decoded_answers_equal_the_cpus(tmp_path, data):  # noqa: F811
    """maestro evaluate --show: the cache of keys and values is in the memory of GPUs."""
    (tmp_path / "data").symlink_to(data)
    train(tmp_path, BINARY, 4, "run.device=cpu")
    subprocess.run([sys.executable, str(ROOT / "scripts/data/make_mixed.py"), "runs/few.h5", "--samples", "3", "--share", "0.7", "--tokens", "10", "--longest", "16", "--pixels",
                    "600", "--largest", "40"], cwd=tmp_path, check=True, capture_output=True)  # fmt: skip

    def answers(program, device, ranks, *layout, gpus=1):
        values = ("data.validation=runs/few.h5", f"run.device={device}", *layout)
        done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), program, "evaluate", str(ROOT / "inputs/vlm_glyphs.toml"), "--checkpoint",
                               "runs/0", "--show", "3", *(word for value in values for word in ("--set", value))], cwd=tmp_path, timeout=300, stdin=subprocess.DEVNULL,
                              env={**os.environ, "MAESTRO_HOSTED_DEVICES": str(gpus)}, capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return [line for line in done.stdout.splitlines() if line.startswith("  ")]

    expected = answers(BINARY, "cpu", 4)
    assert sum(line.startswith("  answer") for line in expected) == 3
    tp = ("section.language.layout.dp=1", "section.language.layout.tp=2")
    for gpus in (1, 3):
        assert answers(HOSTED, "cuda", 3, *tp, gpus=gpus) == expected
    assert answers(HOSTED, "cuda", 1) == expected
    assert answers(HOSTED, "cuda", 3, *tp, "run.precision=bf16", gpus=3)


def test_an_error_is_reported_although_the_gpu_waits(tmp_path, data):  # noqa: F811
    """The other half of a ring is stopped. Where its ranks are waited for, the communicator of tp would be aborted first, which waits for the GPU.
    One of the two ranks that wait is stopped as well, before its deadline: mpirun sometimes crashes if two ranks abort at once."""
    (tmp_path / "data").symlink_to(data)
    values = ("train.steps=1000", "data.global_batch=12", "run.output=run", "run.timeout_s=5", "run.device=cuda",
              *(f"section.teacher.layout.{degree}" for degree in ("dp=1", "cp=2", "tp=2")))
    with subprocess.Popen(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4", HOSTED, "train", str(ROOT / "inputs/teacher.toml"),
                           *(word for value in values for word in ("--set", value))], cwd=tmp_path, env={**os.environ, "MAESTRO_HOSTED_DEVICES": "4"},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL) as job:
        while not (tmp_path / "run/metrics.h5").exists():  # the run has begun its steps
            assert job.poll() is None
            time.sleep(0.1)
        time.sleep(1)
        ranks = ranks_of(job)
        for rank in (2, 3):
            os.kill(ranks[rank], signal.SIGSTOP)
        time.sleep(2)  # the others reach the exchange in which they wait
        os.kill(ranks[1], signal.SIGSTOP)
        output, _ = job.communicate(timeout=60)
    assert job.returncode == 76, output
    report = json.loads((tmp_path / "run/exit.json").read_text())
    assert report["code"] == 76 and "no answer for 5 s" in report["reason"], report
    assert re.search(r"; no answer from ranks 1 \([^)]*\), 2 \([^)]*\), 3 \([^)]*\)$", report["reason"]), report
