"""The checks, in their order: each runs within its own limit and tells the report what came of it."""

import json
import pathlib
import re
import shutil

import machine

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("gpu_operations", "gpu_unit_ops")
SANITIZER_FOUND = 86  # its exit code where it found something, so that it is told from the program's own


def generator():
    return ["-G", "Ninja"] if shutil.which("ninja") else []


def cuda_words(options):
    """What CMake is told of where CUDA is, and of all that the user defines."""
    wheels = machine.wheels_that_fill_gaps()
    return [*([f"-DMAESTRO_CUDA_WHEELS={wheels}"] if wheels else []), *(f"-D{word}" for word in options.define)]


def build(steps, report, options, architecture):
    """The folder of the programs, or None."""
    if shutil.which("cmake") is None:
        report.add("build", "failed", "cmake 3.25 or later is needed (pip install cmake)")
        return None
    folder = pathlib.Path(options.build).resolve()
    configured = steps.run("configure", ["cmake", "-S", ROOT, "-B", folder, *generator(), "-DMAESTRO_PARTS=gpu-check",
                                         f"-DCMAKE_CUDA_ARCHITECTURES={architecture}", *cuda_words(options)], 60)
    if configured.status != 0:
        report.add("build", "failed", "CMake: " + (cmake_error(configured.text) or configured.why()), configured.seconds)
        return None
    built = steps.run("build", ["cmake", "--build", folder, "--parallel", str(options.jobs)], 600 if options.build_only else 270)
    status = "passed" if built.status == 0 else "failed"
    report.add("build", status, built.why(), configured.seconds + built.seconds, stand_ins=re.findall(r"gpu-check: (\w+) not found", configured.text))
    return folder if built.status == 0 else None


def cmake_error(text):
    """What CMake says is wrong, in one line; empty where it says nothing."""
    found = re.search(r"^CMake Error[^\n]*\n((?:  [^\n]*\n|\n)+)", text, re.MULTILINE)
    return " ".join(found.group(1).split())[:300] if found else ""


def lines_of(text, kind):
    """The objects of one kind that gpu_operations has printed."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue  # cut off when its program was stopped
            if row.pop("kind", None) == kind:
                found.append(row)
    return found


def small(options):
    return ["--small"] if options.small else []


def describe(steps, report, programs, options):
    """Whether there is a GPU that these programs can use."""
    missing = [name for name in PROGRAMS if not (programs / name).is_file()]
    if missing:
        report.add("gpu", "failed", f"{programs} has no {' and no '.join(missing)}")
        return False
    done = steps.run("gpu", [programs / "gpu_operations", "describe", *small(options)], 60)
    rows = lines_of(done.text, "gpu")
    if done.status != 0 or not rows:
        report.add("gpu", "failed", done.why() or "gpu_operations described none", done.seconds)
        return False
    report.machine["gpu"] = rows[0]
    report.add("gpu", "passed", rows[0]["backend"], done.seconds)
    return True


def unit_tests(steps, report, programs, options):
    done = steps.run("unit_tests", [programs / "gpu_unit_ops"], 120)
    passed = re.search(r"^\[  PASSED  \] (\d+) tests?", done.text, re.MULTILINE)
    failed = sorted(set(re.findall(r"^\[  FAILED  \] (\w+\.\w+)", done.text, re.MULTILINE)))
    tests = int(passed.group(1)) if passed else 0
    if done.status == 0 and tests:
        report.add("unit_tests", "passed", f"{tests} tests", done.seconds, tests=tests)
    else:
        report.add("unit_tests", "failed", "; ".join([*failed[:5]] or [done.why() or "no test ran"]), done.seconds, tests=tests, failed=failed)


def parity(steps, report, programs, options):
    done = steps.run("parity", [programs / "gpu_operations", "parity", *small(options)], 120)
    report.parity = lines_of(done.text, "parity")
    wrong = [row for row in report.parity if not row["passed"]]
    operations = {row["operation"] for row in report.parity}
    if done.status == 0 and report.parity and not wrong:
        report.add("parity", "passed", f"{len(operations)} operations, {len(report.parity)} cases", done.seconds)
    else:
        report.add("parity", "failed", "; ".join([*map(told, wrong[:5])] or [done.why() or "nothing was compared"]), done.seconds)


def told(row):
    error = "no number" if row.get("error") is None else f"{row['error']:.1e}"
    return f"{row['operation']} {row['dtype']} {row['shape']}: " + (f"off by {error}" if row.get("same_again", True) else "not the same twice")


def bench(steps, report, programs, options):
    limit = 120
    done = steps.run("bench", [programs / "gpu_operations", "bench", f"--seconds={max(1.0, min(limit, steps.left()) - 15):.0f}", *small(options)], limit)
    report.bench = lines_of(done.text, "bench")
    status = "passed" if done.status == 0 and report.bench else "failed"
    report.add("bench", status, done.why() or f"{len(report.bench)} figures", done.seconds)


def sanitizers(steps, report, programs, options):
    program = shutil.which("compute-sanitizer")
    own = ["--kernel-name", "kernel_substring=maestro"]  # of mangled names: how libraries share memory is theirs to know
    for tool, judged, words in (("memcheck", [], []), ("racecheck", own, []), ("initcheck", own, ["--unwritten"])):
        if program is None:
            report.add(tool, "skipped", "there is no compute-sanitizer on the path or in /usr/local/cuda/bin")
            continue
        done = steps.run(tool, [program, "--tool", tool, *judged, "--error-exitcode", str(SANITIZER_FOUND), programs / "gpu_operations",
                                "parity", "--small", "--run-only", *words], 90)
        cases = len(lines_of(done.text, "parity"))
        if "not supported" in done.text and cases == 0:
            report.add(tool, "skipped", "compute-sanitizer: " + done.why(), done.seconds)
        elif done.status == 0 and cases:
            report.add(tool, "passed", f"{cases} cases", done.seconds)
        else:
            found = re.search(r"=+ (Error|ERROR|Invalid|Uninitialized|Race)[^\n]*", done.text)
            report.add(tool, "failed", found.group(0).strip("= ") if found else done.why() or "nothing ran", done.seconds)
