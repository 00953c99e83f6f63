"""Tests the backend on a GPU, see docs/cuda.md. Uses only the standard library."""

import argparse
import os
import pathlib
import sys

import bundle
import checks
import machine
import pytorch
import ranks
import training
from report import Report
from steps import Steps

USAGE, CANNOT_CREATE, NO_LAUNCH = 64, 73, 78  # exit codes of docs/architecture.md
DEFAULT_ARCHITECTURE = "90"  # of a build without a GPU


class Arguments(argparse.ArgumentParser):
    def error(self, message):
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def arguments():
    parser = Arguments(prog="gpu_check.sh", description="Tests the GPU backend on this machine.")
    parser.add_argument("--output", default="runs/gpu_check", help="folder for gpu_check.json and log.txt (runs/gpu_check)")
    parser.add_argument("--build", default="build/gpu-check", help="folder to build in (build/gpu-check)")
    parser.add_argument("--programs", help="a folder with gpu_operations, gpu_training and gpu_unit_ops; nothing is built")
    parser.add_argument("--maestro", help="an existing program for the training checks; none is built")
    parser.add_argument("--without-cmake", action="store_true", help="build with nvcc and g++ alone, as where CMake 3.25 is missing")
    parser.add_argument("--build-only", action="store_true", help="only build; needs no GPU")
    parser.add_argument("--limit", type=float, default=530, help="time limit in seconds (530)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="parallel compilations (all cores)")
    parser.add_argument("--define", action="append", default=[], metavar="NAME=VALUE", help="a CMake definition; may be repeated")
    parser.add_argument("--small", action="store_true", help="small sizes, whose speed is meaningless, to test the script")
    parser.add_argument("--bundle", metavar="FILE", help="only write a .tar.gz for a machine without a network: this repository, and headers that pip downloads")
    parser.add_argument("--bundle-libraries", type=int, choices=(12, 13), metavar="CUDA", help="with --bundle: also cuDNN and NCCL for CUDA 12 or 13")
    return parser.parse_args()


def write_bundle(options):
    try:
        bundle.make(options.bundle, options.bundle_libraries)
    except bundle.Failure as failure:
        print(f"gpu_check.sh: {failure}", file=sys.stderr)
        return 1
    return 0


def run(options, steps, report):
    """Runs all checks. Returns whether there is a GPU."""
    report.machine.update(machine.describe())
    gpu = machine.find_gpu()
    architecture = gpu.architecture or DEFAULT_ARCHITECTURE
    if options.programs:
        programs = pathlib.Path(options.programs).resolve()
    elif gpu.count == 0 and not options.build_only:
        report.add("gpu", "failed", gpu.why_none)
        return False
    else:
        programs = checks.build(steps, report, options, architecture)
        if programs is None or options.build_only:
            return True
    if not checks.describe(steps, report, programs, options):
        return False
    checks.unit_tests(steps, report, programs, options)
    checks.parity(steps, report, programs, options)
    checks.second_forms(steps, report, programs, options)
    checks.cudnn(steps, report, programs, options)
    ranks.check(steps, report, programs, options)
    checks.bench(steps, report, programs, options)
    checks.sanitizers(steps, report, programs, options)
    pytorch.check(steps, report)
    training.check(steps, report, options, architecture)
    return True


def main():
    options = arguments()
    if options.bundle:
        return write_bundle(options)
    os.environ["PATH"] += os.pathsep + "/usr/local/cuda/bin"  # where CUDA's installer leaves nvcc and compute-sanitizer
    output = pathlib.Path(options.output).resolve()
    try:
        output.mkdir(parents=True, exist_ok=True)
        report = Report(output)
        report.write()
        steps = Steps(output / "log.txt", pathlib.Path(options.build).resolve() / "steps", options.limit)
    except OSError as error:
        print(f"gpu_check.sh: cannot write: {error}; --output and --build name other folders", file=sys.stderr)
        return CANNOT_CREATE
    has_gpu = run(options, steps, report)
    report.write()
    report.print_table()
    if not has_gpu:
        print("gpu_check.sh: there is no GPU to check: " + report.of("gpu").get("reason", ""), file=sys.stderr)
        return NO_LAUNCH
    return 0 if report.passed() else 1


if __name__ == "__main__":
    sys.exit(main())
