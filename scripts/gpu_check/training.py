"""Compares training runs on CPU and GPU, if the program's dependencies are installed."""

import importlib.util
import math
import pathlib
import shutil
import sys

from checks import OLDEST_CMAKE, ROOT, cmake_error, cmake_version, cuda_definitions, generator, status_of

DECKS = (("vlm_glyphs", 4), ("layouts", 3))  # decks of inputs/, and their numbers of ranks
STEPS = 8
TOLERANCE = 1e-5  # relative, in fp32


def check(steps, report, options, architecture):
    program = pathlib.Path(options.maestro).resolve() if options.maestro else None
    missing = [name for name in ("h5py", "numpy", "PIL") if importlib.util.find_spec(name) is None]
    if shutil.which("mpirun") is None:
        missing.append("mpirun")
    if missing:
        return report.add("training", "skipped", "missing: " + ", ".join(missing))
    if program is None and options.programs:
        return report.add("training", "skipped", "--programs without --maestro, which names a program to train with")
    if program is None and cmake_version() < OLDEST_CMAKE:
        return report.add("training", "skipped", f"CMake {'.'.join(map(str, OLDEST_CMAKE))} is needed to build the whole program")
    if program is None:
        program = build(steps, report, options, architecture)
    if program is not None:
        compare_decks(steps, report, options, program)


def build(steps, report, options, architecture):
    folder = pathlib.Path(options.build).resolve() / "whole"
    configured = steps.run("training_configure", ["cmake", "-S", ROOT, "-B", folder, *generator(), "-DCMAKE_BUILD_TYPE=Release", "-DMAESTRO_CUDA=ON",
                                                  "-DMAESTRO_TESTS=OFF", "-DMAESTRO_BENCH=OFF", f"-DCMAKE_CUDA_ARCHITECTURES={architecture}", *cuda_definitions(options)], 60)
    if configured.status != 0:
        report.add("training", "skipped", "the program cannot be built here: " + (cmake_error(configured.text) or configured.why()), configured.seconds)
        return None
    built = steps.run("training_build", ["cmake", "--build", folder, "--parallel", str(options.jobs), "--target", "maestro"], 240)
    if built.status != 0:
        report.add("training", status_of(built, True), "building: " + built.why(), configured.seconds + built.seconds)
        return None
    return folder / "maestro"


def compare_decks(steps, report, options, program):
    folder = steps.work / "training"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    data = steps.run("training_data", [sys.executable, ROOT / "scripts/data/make_all.py", "--folder", folder / "data"], 60)
    if data.status != 0:
        return report.add("training", status_of(data, True), "generating the samples: " + data.why(), data.seconds)
    for deck, ranks in DECKS:
        name = f"training_{deck}"
        seconds, losses = 0.0, {}
        for device in ("cpu", "cuda"):
            output = folder / f"{deck}_{device}"
            values = {"run.device": device, "run.output": output, "run.precision": "fp32", "train.steps": STEPS, "checkpoint.every": 0}
            arguments = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
            done = steps.run(f"{name}_{device}", ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), program, "train",
                                                  ROOT / f"inputs/{deck}.toml", *arguments], 90, cwd=folder)
            seconds += done.seconds
            if done.status != 0:
                report.add(name, status_of(done, True), f"{device}: {done.why()}", seconds)
                break
            losses[device] = losses_of(output)
        else:
            judge(report, name, losses, seconds)


def losses_of(output):
    import h5py

    with h5py.File(output / "metrics.h5") as file:
        return [float(loss) for loss in file["steps"]["loss"]]


def judge(report, name, losses, seconds):
    pairs = list(zip(losses["cpu"], losses["cuda"]))
    errors = [abs(a - b) / abs(a) for a, b in pairs]
    complete = len(losses["cpu"]) == len(losses["cuda"]) == STEPS
    status = "passed" if complete and all(error <= TOLERANCE for error in errors) else "failed"
    error = next((error for error in errors if not math.isfinite(error)), max(errors, default=0.0))
    report.add(name, status, f"{len(pairs)} losses, relative error at most {error:.1e} ({TOLERANCE:.0e} allowed)", seconds, error=error if math.isfinite(error) else None, losses=losses)
