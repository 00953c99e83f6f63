"""The checks, in order. Each runs with a time limit and adds its result to the report."""

import json
import os
import pathlib
import re
import shutil

import machine
import plain_build

ROOT = pathlib.Path(__file__).resolve().parents[2]
OLDEST_CMAKE = (3, 25)
PROGRAMS = ("gpu_operations", "gpu_unit_ops", "gpu_training")
SECOND_FORMS = "embedding_backward"  # operations whose kernels have second forms
USAGE = 64  # exit code of a program that cannot do what is asked
SANITIZER_FOUND = 86  # exit code of compute-sanitizer if it reports errors, unlike any of the program


def generator():
    return ["-G", "Ninja"] if shutil.which("ninja") else []


def cuda_definitions(options):
    """CMake definitions: where CUDA is, and those of --define."""
    wheels = machine.wheels_that_fill_gaps()
    return [*([f"-DMAESTRO_CUDA_WHEELS={wheels}"] if wheels else []), *(f"-D{word}" for word in options.define)]


def build(steps, report, options, architecture):
    """Builds the programs. Returns their folder, or None where there is none to check with. If only some can be built, the others are checked
    all the same."""
    folder = pathlib.Path(options.build).resolve()
    found, limit = cmake_version(), 900 if options.build_only else 330
    for program in (folder / place / name for place in ("", "plain") for name in PROGRAMS):
        program.unlink(missing_ok=True)  # of an earlier build
    if found >= OLDEST_CMAKE and not options.without_cmake:
        status, why, seconds, more = build_by_cmake(steps, options, architecture, folder, limit)
    else:
        status, why, seconds, more = build_plainly(steps, options, architecture, folder / "plain", limit)
        folder = folder / "plain"
    report.add("build", status, why, seconds, **more)
    return folder if (folder / PROGRAMS[0]).is_file() else None


def cmake_version():
    found = re.search(r"(\d+)\.(\d+)", machine.first_line("cmake", "--version"))
    return tuple(map(int, found.groups())) if found else (0, 0)


def build_by_cmake(steps, options, architecture, folder, limit):
    more = {"way": "cmake"}
    configure = steps.run("configure", ["cmake", "-S", ROOT, "-B", folder, *generator(), "-DMAESTRO_PARTS=gpu-check",
                                         f"-DCMAKE_CUDA_ARCHITECTURES={architecture}", *cuda_definitions(options)], 60)
    if configure.status != 0:
        return "failed", f"CMake: {cmake_error(configure.text) or configure.why()}; --without-cmake builds without it", configure.seconds, more
    more["stand_ins"] = re.findall(r"gpu-check: (\w+) not found", configure.text)
    more.update(libraries_of(configure.text))
    built = steps.run("build", ["cmake", "--build", folder, "--parallel", str(options.jobs), "--", *(["-k", "0"] if generator() else ["-k"])], limit)
    status = "passed" if built.status == 0 else "failed"
    return status, built.why() or "by CMake", configure.seconds + built.seconds, more


def libraries_of(text):
    """Why CMake's build is without cuDNN or NCCL; nothing where it has them."""
    cudnn = re.search(r"cuDNN: (no [^\n(]*|[^\n]* is older [^:\n]*)", text)
    return {**({"without_cudnn": cudnn.group(1).strip()} if cudnn else {}),
            **({"without_nccl": "nccl.h or libnccl was not found"} if "NCCL was not found" in text else {})}


def build_plainly(steps, options, architecture, folder, limit):
    more = {"way": "nvcc and g++"}
    toolkit = plain_build.find_toolkit(dict(word.partition("=")[::2] for word in options.define))
    if isinstance(toolkit, str):
        return "failed", toolkit, 0.0, more
    plain = plain_build.PlainBuild(toolkit, folder, architecture)
    if plain.compiler is None:
        return "failed", "g++ was not found", 0.0, more
    more["stand_ins"] = plain.stand_ins()
    if plain.cudnn.why_not:
        more["without_cudnn"] = plain.cudnn.why_not
    if not plain.nccl:
        more["without_nccl"] = "nccl.h or libnccl was not found"
    failed, seconds = plain_build.run(steps, plain, options.jobs, limit)
    found = ".".join(map(str, cmake_version()))
    why = "by nvcc and g++, because " + ("of --without-cmake" if options.without_cmake else "CMake is missing" if found == "0.0" else
                                         f"CMake {found} is older than {'.'.join(map(str, OLDEST_CMAKE))}")
    return "failed" if failed else "passed", failed or why, seconds, more


def cmake_error(text):
    """Returns CMake's error message in one line, or an empty string."""
    found = re.search(r"^CMake Error[^\n]*\n((?:  [^\n]*\n|\n)+)", text, re.MULTILINE)
    return " ".join(found.group(1).split())[:300] if found else ""


def lines_of(text, kind):
    """Parses the objects of one kind in the output of gpu_operations."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue  # truncated when the program was stopped
            if row.pop("kind", None) == kind:
                found.append(row)
    return found


def small(options):
    return ["--small"] if options.small else []


def status_of(done, right):
    """`right`: whether what the command has printed is right, as far as it came."""
    if not right:
        return "failed"
    return "passed" if done.status == 0 else "slow" if done.status is None else "failed"


def describe(steps, report, programs, options):
    """Returns whether there is a GPU that these programs can use."""
    if not (programs / PROGRAMS[0]).is_file():
        report.add("gpu", "failed", f"{programs} has no {PROGRAMS[0]}")
        return False
    done = steps.run("gpu", [programs / "gpu_operations", "describe", *small(options)], 60)
    rows = lines_of(done.text, "gpu")
    if done.status != 0 or not rows:
        report.add("gpu", "failed", done.why() or "gpu_operations described no GPU", done.seconds)
        return False
    report.machine["gpu"] = rows[0]
    report.add("gpu", "passed", rows[0]["backend"], done.seconds)
    return True


def unit_tests(steps, report, programs, options):
    done = steps.run("unit_tests", [programs / "gpu_unit_ops"], 120)
    passed = re.search(r"^\[  PASSED  \] (\d+) tests?", done.text, re.MULTILINE)
    failed = sorted(set(re.findall(r"^\[  FAILED  \] (\w+\.\w+)", done.text, re.MULTILINE)))
    tests = int(passed.group(1)) if passed else 0
    status = status_of(done, not failed and (tests or done.status is None))
    reason = f"{tests} tests" if status == "passed" else "; ".join([*failed[:5]] or [done.why() or "no test ran"])
    report.add("unit_tests", status, reason, done.seconds, tests=tests, failed=failed)


def parity(steps, report, programs, options):
    done = steps.run("parity", [programs / "gpu_operations", "parity", *small(options)], 120)
    report.parity = lines_of(done.text, "parity")
    add_comparison(report, "parity", done, report.parity)


def add_comparison(report, name, done, rows):
    """`rows`: the cases that gpu_operations has compared with the CPU."""
    failed = [row for row in rows if not row["passed"]]
    operations = {row["operation"] for row in rows}
    status = status_of(done, not failed and (rows or done.status is None))
    count = f"{len(operations)} operations, {len(rows)} cases"
    reason = count if status == "passed" else f"{done.why()}; {count} were right" if status == "slow" else \
        "; ".join([*map(describe_failure, failed[:5])] or [done.why() or "nothing was compared"])
    report.add(name, status, reason, done.seconds)


def second_forms(steps, report, programs, options):
    """Kernels that nvcc alone compiles (kernels/nvcc), against the CPU."""
    done = steps.run("second_forms", [programs / "gpu_operations", "parity", f"--only={SECOND_FORMS}", *small(options)], 60,
                     env={**os.environ, "MAESTRO_KERNEL_FORMS": "nvcc"})
    if done.status == USAGE:
        return report.add("second_forms", "skipped", "these programs have none: nvcc did not compile their kernels", done.seconds)
    add_comparison(report, "second_forms", done, lines_of(done.text, "parity"))


def cudnn(steps, report, programs, options):
    """Attention in bf16, which cuDNN must compute. A check that Maestro's kernels alone pass would not count."""
    done = steps.run("cudnn", [programs / "gpu_operations", "cudnn", *small(options)], 90)
    rows = lines_of(done.text, "cudnn")
    if done.status == 0 and rows and "skipped" in rows[0]:
        return report.add("cudnn", "skipped", report.of("build").get("without_cudnn") or rows[0]["skipped"], done.seconds)
    cases = lines_of(done.text, "parity")
    failed = [row for row in cases if not row["passed"]]
    plans = int(rows[0]["plans"]) if rows else 0
    status = status_of(done, not failed and (plans and cases or done.status is None))
    found = re.search(r"cuDNN [\d.]+", rows[0]["backend"]) if rows else None
    reasons = sorted(set(re.findall(r"attention uses Maestro's kernels: ([^\n]*)", done.text)))
    if status == "passed":
        reason = f"{found.group(0) if found else 'cuDNN'}: {plans} plans for {len(cases)} cases"
    else:
        reason = "; ".join([*map(describe_failure, failed[:5])]) or ("cuDNN computed nothing" if rows and not plans else done.why() or "nothing was compared")
    report.add("cudnn", status, "; ".join([reason, *reasons[:2]]), done.seconds, plans=plans, cases=len(cases))


def describe_failure(row):
    error = "NaN or Inf" if row.get("error") is None else f"{row['error']:.1e}"
    return f"{row['operation']} {row['dtype']} {row['shape']}: " + (f"error {error}" if row.get("same_again", True) else "differs in a second run")


def bench(steps, report, programs, options):
    limit = 120
    done = steps.run("bench", [programs / "gpu_operations", "bench", f"--seconds={max(1.0, min(limit, steps.left()) - 15):.0f}", *small(options)], limit)
    report.bench = lines_of(done.text, "bench")
    status = status_of(done, report.bench or done.status is None)
    report.add("bench", status, done.why() or f"{len(report.bench)} measurements", done.seconds)


def sanitizers(steps, report, programs, options):
    program = shutil.which("compute-sanitizer")
    only_maestro = ["--kernel-name", "kernel_substring=maestro"]  # in mangled names: Maestro's kernels only, because libraries may use intentional races
    for tool, kernels, arguments in (("memcheck", [], []), ("racecheck", only_maestro, []), ("initcheck", only_maestro, ["--uninitialized"])):
        if program is None:
            report.add(tool, "skipped", "compute-sanitizer was not found on PATH or in /usr/local/cuda/bin")
            continue
        done = steps.run(tool, [program, "--tool", tool, *kernels, "--error-exitcode", str(SANITIZER_FOUND), programs / "gpu_operations",
                                "parity", "--small", "--run-only", *arguments], 90)
        cases = len(lines_of(done.text, "parity"))
        found = re.search(r"=+ (Error|ERROR|Invalid|Uninitialized|Race)[^\n]*", done.text)
        if "not supported" in done.text and cases == 0:
            report.add(tool, "skipped", "compute-sanitizer: " + done.why(), done.seconds)
        elif done.status is None and not found:
            report.add(tool, "slow", f"{done.why()}; {cases} cases without an error", done.seconds)
        elif done.status == 0 and cases:
            report.add(tool, "passed", f"{cases} cases", done.seconds)
        else:
            report.add(tool, "failed", found.group(0).strip("= ") if found else done.why() or "nothing ran", done.seconds)
