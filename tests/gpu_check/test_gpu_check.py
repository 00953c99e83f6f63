"""scripts/gpu_check.sh on simulated GPUs: its report, and its exit codes for failures."""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(os.environ.get("MAESTRO_GPU_CHECK_PROGRAMS", ROOT / "build/cpu-release/gpu_check_hosted"))
WITHOUT = os.environ.get("MAESTRO_GPU_CHECK_WITHOUT", "").split()  # checks that the programs lack a library for
GPU = '{"kind": "gpu", "name": "none", "backend": "cuda: a script"}'
RIGHT = '{"kind": "parity", "operation": "gelu", "dtype": "f32", "shape": "3 x 4", "error": 1e-07, "tolerance": 5e-05, "same_again": true, "passed": true}'
WRONG = RIGHT.replace("1e-07", "0.5").replace('"passed": true', '"passed": false')
DIFFERENT = WRONG.replace('"gelu"', '"copy"').replace('"same_again": true', '"same_again": false')
FIGURE = ('{"kind": "bench", "operation": "gelu", "dtype": "f32", "shape": "3 x 4", "bound": "memory", "seconds": 0.001, "bytes": 1e9, "flops": 1e9, '
          '"rate": 1e12, "roof": 2e12, "share": 0.5}')  # fmt: skip
STEP = ('{"kind": "step", "dtype": "DTYPE", "loss_error": 1e-9, "norm_error": 1e-9, "update_error": 1e-9, "passed": true}')
STEPS = f"echo '{STEP.replace('DTYPE', 'f32')}'; echo '{STEP.replace('DTYPE', 'bf16')}'"
QUEUES = """echo '{"kind": "queues", "streams": 32, "max_connections": "32", "ran": 30, "held": ""}'"""
WINDOWS = """echo '{"kind": "windows", "bytes": 8, "to_host": 1e9, "to_device": 1e9, "out": true, "in": true}'"""
COLLECTIVE = '{"kind": "collective", "operation": "all-reduce", "dtype": "bf16", "by": "NCCL", "ranks": 2, "wrong": 0}'
CUDNN = """echo '{"kind": "cudnn", "plans": 1, "failed": 0, "backend": "cuda: a script, cuDNN 9.30.1"}'"""
FAILURES = os.environ.get("MAESTRO_STAND_IN_FAILURES", str(ROOT / "build/cpu-release/stand_in_failures"))
SANITIZER = """#!/bin/sh
# A fake compute-sanitizer: runs the program, then the script `result` in its folder.
if [ "$1" = --version ]; then echo stand-in; exit; fi
tool=$2; shift 2
if [ "$1 $2" = "--kernel-name kernel_substring=maestro" ]; then shift 2; [ $tool != memcheck ]; else [ $tool = memcheck ]; fi || exit 3
shift 2
case " $* " in *" --uninitialized "*) [ $tool = initcheck ];; *) [ $tool != initcheck ];; esac || exit 3
"$@" --only=gelu || exit
. "$(dirname "$0")/result"
"""


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def sanitizer(tmp_path):
    """A folder for PATH, with a fake compute-sanitizer that reports no errors."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script(folder / "compute-sanitizer", SANITIZER)
    (folder / "result").write_text("exit 0\n")
    return folder


def programs(folder, parity=f"echo '{RIGHT}'", tests="echo '[  PASSED  ] 3 tests.'", cudnn=f"echo '{RIGHT}'; {CUDNN}", step=STEPS, queues=QUEUES,
             windows=WINDOWS, collectives=f"echo '{COLLECTIVE}'"):
    """A folder with scripts in place of the programs."""
    folder.mkdir()
    script(folder / "gpu_operations", f"#!/bin/sh\ncase $1 in describe) echo '{GPU}';; bench) echo '{FIGURE}';; parity) {parity};; cudnn) {cudnn};; esac\n")
    script(folder / "gpu_training", f"#!/bin/sh\ncase $1 in step) {step};; queues) {queues};; windows) {windows};; collectives) {collectives};; esac\n")
    script(folder / "gpu_unit_ops", f"#!/bin/sh\n{tests}\n")
    return folder


def run(tmp_path, *words, path=None, **environment):
    """Returns the exit code, gpu_check.json (or None) and the output of both streams."""
    output = tmp_path / "output"
    search = os.pathsep.join([*([str(path)] if path else []), "/usr/bin", "/bin"])
    done = subprocess.run([ROOT / "scripts/gpu_check.sh", "--output", output, *map(str, words)], capture_output=True, text=True, timeout=200,
                          stdin=subprocess.DEVNULL, env={**os.environ, "PATH": search, **environment}, cwd=tmp_path)
    file = output / "gpu_check.json"
    return done.returncode, json.loads(file.read_text()) if file.is_file() else None, done.stdout + done.stderr


def status(report):
    return {check["name"]: check["status"] for check in report["checks"]}


def check_of(report, name):
    return next(check for check in report["checks"] if check["name"] == name)


def reason(report, name):
    return check_of(report, name)["reason"]


def test_all_checks(tmp_path, sanitizer):
    code, report, text = run(tmp_path, "--programs", PROGRAMS, "--small", path=sanitizer, MAESTRO_HOSTED_DEVICES="3")
    assert code == 0, text
    assert report["schema"] == 2 and report["passed"] and report["failed"] == report["slow"] == [] and report["skipped"] == ["second_forms", *WITHOUT, "pytorch", "training"]
    names = ("gpu", "unit_tests", "parity", "cudnn", "model_step", "queues", "windows", "collectives", "bench", "memcheck", "racecheck", "initcheck")
    assert status(report) == {**{name: "passed" for name in names}, **{name: "skipped" for name in ("second_forms", *WITHOUT, "pytorch", "training")}}
    assert f"skipped: {', '.join(['second_forms', *WITHOUT, 'pytorch', 'training'])}" in text
    assert "hosted" in report["machine"]["gpu"]["name"]
    of_ops = {path.stem for path in (ROOT / "src/ops").glob("*.hpp")}
    assert len({row["operation"] for row in report["parity"]}) > len(of_ops)
    assert {row["dtype"] for row in report["parity"]} == {"f64", "f32", "bf16"}
    assert all(row["passed"] and row["same_again"] and row["error"] <= row["tolerance"] for row in report["parity"])
    assert {row["operation"] for row in report["bench"]} == {row["operation"] for row in report["parity"]}
    for row in report["bench"]:
        assert row["seconds"] > 0 and row["roof"] > 0 and row["share"] == pytest.approx(row["rate"] / row["roof"], rel=1e-4)
        assert row["rate"] == pytest.approx(row["bytes" if row["bound"] == "memory" else "flops"] / row["seconds"], rel=1e-4)
    assert "TFLOP/s" in text and "GB/s" in text
    assert {row["dtype"] for row in check_of(report, "model_step")["steps"]} == {"f32", "bf16"}
    assert [row["streams"] for row in check_of(report, "queues")["queues"]] == [32, 40] and "MAX_CONNECTIONS=32" in reason(report, "queues")
    if "cudnn" not in WITHOUT:
        expect_cudnn(check_of(report, "cudnn"))
    if "collectives" not in WITHOUT:
        expect_collectives(report["collectives"])


def expect_cudnn(cudnn):
    assert cudnn["plans"] == cudnn["cases"] == 4 and "cuDNN 9." in cudnn["reason"]


def expect_collectives(rows):
    timed = [row for row in rows if "seconds" in row]
    assert {row["operation"] for row in timed} == {"exchange", "all-gather", "reduce-scatter", "all-reduce"} and all(row["ranks"] == 3 for row in timed)
    assert {row["by"] for row in timed if row["operation"] == "reduce-scatter"} == {"NCCL", "NCCL's sends and Maestro's sums"}
    assert {(row["operation"], row["dtype"]) for row in rows} >= {
        (operation, dtype) for operation in ("exchange", "shift", "all-gather", "reduce-scatter", "all-reduce") for dtype in ("f32", "bf16")}


def test_every_operation_is_compared(tmp_path):
    """Every header of src/ops must be included by the lists of tests/gpu_check."""
    listed = "".join(path.read_text() for path in (ROOT / "tests/gpu_check").glob("*_operations.cpp"))
    no_operations = {"device_scratch", "dispatch", "fast_math", "softmax_row", "vocabulary_shard"}
    for header in (ROOT / "src/ops").glob("*.hpp"):
        if header.stem not in no_operations:
            assert f'"ops/{header.name}"' in listed, header.name


def test_without_a_gpu(tmp_path):
    code, report, text = run(tmp_path, "--programs", PROGRAMS, MAESTRO_HOSTED_DEVICES="0")
    assert code == 78 and "there is no GPU to check" in text and "no GPU here: " in text
    assert status(report) == {"gpu": "failed"} and not report["passed"]


def test_without_a_driver(tmp_path):
    code, report, text = run(tmp_path)
    assert code == 78 and "no GPU to check" in text
    assert status(report) == {"gpu": "failed"}


def test_wrong_results_are_reported(tmp_path):
    wrong = programs(tmp_path / "programs", parity=f"echo '{WRONG}'; echo '{RIGHT}'; echo '{DIFFERENT}'; exit 1")
    code, report, _ = run(tmp_path, "--programs", wrong)
    assert code == 1 and not report["passed"] and status(report)["parity"] == "failed" and len(report["parity"]) == 3
    assert reason(report, "parity") == "gelu f32 3 x 4: error 5.0e-01; copy f32 3 x 4: differs in a second run"


@pytest.mark.parametrize("parity, words", [
    ("exit 0", "nothing was compared"), (f"echo '{RIGHT}'; kill -SEGV $$", "ended by signal 11"), (f"echo '{RIGHT}'; echo 'out of memory' >&2; exit 80", "exit code 80: out of memory"),
    (f"echo '{WRONG}'", "gelu")])  # fmt: skip
def test_an_aborted_parity_check_has_failed(tmp_path, parity, words):
    code, report, _ = run(tmp_path, "--programs", programs(tmp_path / "programs", parity=parity))
    assert code == 1 and status(report)["parity"] == "failed" and words in reason(report, "parity")


def test_failing_unit_tests_are_reported(tmp_path):
    code, report, _ = run(tmp_path, "--programs", programs(tmp_path / "programs", tests=f"exec {FAILURES}"))
    assert code == 1 and status(report)["unit_tests"] == "failed"
    check = next(check for check in report["checks"] if check["name"] == "unit_tests")
    assert check["tests"] == 1 and all(name.startswith("Bad.") for name in check["failed"]) and len(check["failed"]) == 9


@pytest.mark.parametrize("result, words", [("exit 86", "exit code 86"), ("echo '========= Error: race reported'; exit 86", "Error: race reported")])
def test_errors_of_a_sanitizer(tmp_path, sanitizer, result, words):
    (sanitizer / "result").write_text(result + "\n")
    code, report, _ = run(tmp_path, "--programs", programs(tmp_path / "programs"), path=sanitizer)
    assert code == 1
    for tool in ("memcheck", "racecheck", "initcheck"):
        assert status(report)[tool] == "failed" and words in reason(report, tool)


def test_a_sanitizer_without_support_for_the_gpu_is_skipped(tmp_path, sanitizer):
    script(sanitizer / "compute-sanitizer", "#!/bin/sh\necho '========= Error: Device not supported'; exit 1\n")
    code, report, _ = run(tmp_path, "--programs", programs(tmp_path / "programs"), path=sanitizer)
    assert code == 0 and status(report)["memcheck"] == "skipped" and "not supported" in reason(report, "memcheck")


def test_the_limit_ends_all_checks(tmp_path):
    """What takes too long is listed, but is not wrong."""
    hangs = programs(tmp_path / "programs", tests="sleep 300")
    code, report, text = run(tmp_path, "--programs", hangs, "--limit", "3")
    assert code == 0 and report["passed"] and report["slow"][:3] == ["unit_tests", "parity", "second_forms"]
    assert "not done after" in reason(report, "unit_tests") and "no time was left" in reason(report, "parity") and "slow: unit_tests, parity" in text
    assert {"collectives", "model_step", "queues", "windows", "bench"} <= set(report["slow"])


def test_a_slow_sanitizer_has_not_failed(tmp_path, sanitizer):
    (sanitizer / "result").write_text("sleep 300\n")
    code, report, _ = run(tmp_path, "--programs", programs(tmp_path / "programs"), "--limit", "4", path=sanitizer)
    assert code == 0 and report["slow"][0] == "memcheck" and "1 cases without an error" in reason(report, "memcheck")


def test_errors_before_the_limit_count(tmp_path, sanitizer):
    (sanitizer / "result").write_text("echo '========= Invalid __global__ read of size 4'; sleep 300\n")
    slow = programs(tmp_path / "programs", parity=f"echo '{RIGHT}'; [ $2 = --run-only ] || [ $2 = --small ] || {{ echo '{WRONG}'; sleep 300; }}")
    code, report, _ = run(tmp_path, "--programs", programs(tmp_path / "fast"), "--limit", "4", path=sanitizer)
    assert code == 1 and status(report)["memcheck"] == "failed" and reason(report, "memcheck").startswith("Invalid __global__ read")
    code, report, _ = run(tmp_path, "--programs", slow, "--limit", "3")
    assert code == 1 and status(report)["parity"] == "failed" and "gelu" in reason(report, "parity")


@pytest.mark.parametrize("name, program, words", [
    ("cudnn", dict(cudnn="exit 0"), "nothing was compared"),
    ("cudnn", dict(cudnn=f"echo '{WRONG}'; {CUDNN}; exit 1"), "gelu f32 3 x 4: error 5.0e-01"),
    ("cudnn", dict(cudnn=f"echo '{RIGHT}'; {CUDNN.replace('1,', '0,', 1)}; exit 1"), "cuDNN computed nothing"),
    ("model_step", dict(step=STEPS.replace("true", "false") + "; exit 1"), "f32: errors of loss 1.0e-09"),
    ("model_step", dict(step=f"echo '{STEP}'"), "nothing was compared"),
    ("queues", dict(queues=QUEUES.replace('"held": ""', '"held": "8, 9"') + "; exit 1"), "(not 8, 9)"),
    ("windows", dict(windows=WINDOWS.replace('"in": true', '"in": false') + "; exit 1"), "copies differ: in"),
    ("collectives", dict(collectives=f"echo '{COLLECTIVE}'; echo '{COLLECTIVE.replace(': 0', ': 7')}'; exit 1"), "all-reduce bf16 by NCCL: 7 elements differ"),
    ("collectives", dict(collectives="echo 'rank 0: no answer'; echo 'rank 1 had not ended after 9 s'; exit 1"), "rank 0: no answer; rank 1 had not ended"),
    ("collectives", dict(collectives="exit 0"), "nothing was compared")])  # fmt: skip
def test_failures(tmp_path, name, program, words):
    code, report, _ = run(tmp_path, "--programs", programs(tmp_path / "programs", **program))
    assert code == 1 and report["failed"] == [name] and words in reason(report, name)


@pytest.mark.parametrize("name, program", [
    ("cudnn", dict(cudnn="""echo '{"kind": "cudnn", "skipped": "WHY"}'""")), ("windows", dict(windows="""echo '{"kind": "windows", "skipped": "WHY"}'""")),
    ("collectives", dict(collectives="""echo '{"kind": "collective", "skipped": "WHY"}'"""))])  # fmt: skip
def test_what_is_missing_is_skipped(tmp_path, name, program):
    code, report, text = run(tmp_path, "--programs", programs(tmp_path / "programs", **program))
    assert code == 0 and name in report["skipped"] and reason(report, name) == "WHY" and f"skipped  {name}: WHY" in text


def gpu_training(*words, **environment):
    done = subprocess.run([PROGRAMS / "gpu_training", *words, "--small"], capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], done.stderr


@pytest.mark.skipif("collectives" in WITHOUT, reason="built without NCCL")
def test_one_gpu_has_no_collectives():
    assert gpu_training("collectives", MAESTRO_HOSTED_DEVICES="1")[:2] == (0, [{"kind": "collective", "skipped": "1 GPU"}])


@pytest.mark.skipif("collectives" in WITHOUT, reason="built without NCCL")
def test_a_rank_that_hangs_is_named():
    code, rows, text = gpu_training("collectives", "--seconds=5", "--missing-rank=1", MAESTRO_HOSTED_DEVICES="2")
    assert code == 1 and not rows and "rank 1 had not ended" in text and "rank 0: " in text and "the GPUs, by NCCL" in text


def test_streams_that_share_queues():
    """Eight queues are fewer than the program asks CUDA for."""
    code, rows, _ = gpu_training("queues", MAESTRO_HOSTED_QUEUES="8")
    assert code == 1 and rows[0]["held"] == "8, 9, 16, 17, 24, 25"
    code, rows, _ = gpu_training("queues", CUDA_DEVICE_MAX_CONNECTIONS="8")
    assert code == 0 and [(row["streams"], row["ran"]) for row in rows] == [(8, 6), (16, 12)]


def test_a_model_that_computes_otherwise():
    code, rows, _ = gpu_training("step", "--disturbance=0.5")
    assert code == 1 and not any(row["passed"] for row in rows)
    assert all(row["update_error"] > row["update_tolerance"] for row in rows)


def test_invalid_arguments_and_folders(tmp_path):
    assert run(tmp_path, "--no-such-word")[0] == 64
    (tmp_path / "file").write_text("")
    code, _, text = run(tmp_path, "--output", tmp_path / "file" / "below")
    assert code == 73 and "--output" in text
    (partly := programs(tmp_path / "partly") / "gpu_training").unlink()
    code, report, _ = run(tmp_path, "--programs", partly.parent)  # where it did not compile
    assert code == 1 and report["failed"] == ["model_step", "queues", "windows", "collectives"] and "gpu_training does not exist" in reason(report, "queues")
    code, report, _ = run(tmp_path, "--programs", tmp_path)
    assert code == 78 and "no gpu_operations" in reason(report, "gpu")


def test_the_googletest_replacement_reports_failures(tmp_path):
    done = subprocess.run([FAILURES], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    results = {line.split("] ")[1]: line.split("]")[0].strip("[ ") for line in done.stdout.splitlines()
               if line.startswith(("[       OK", "[  SKIPPED", "[  FAILED")) and "." in line.split("] ")[1] and " tests" not in line}
    assert results.pop("Good.Passes") == "OK" and results.pop("Good.IsSkipped") == "SKIPPED"
    assert set(results.values()) == {"FAILED"} and len(results) == 9
    for words in ("the words", "in the trace", "thrown by the test", "at once"):
        assert words in done.stdout
    assert "went on after" not in done.stdout and "not told" not in done.stdout
    filtered = subprocess.run([FAILURES, "--gtest_filter=*Passes:Bad.Ne*-*NoNumber"], capture_output=True, text=True, timeout=20)
    assert "[  PASSED  ] 1 tests." in filtered.stdout and filtered.stdout.count("[ RUN ") == 2
