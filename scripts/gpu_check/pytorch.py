"""Measures the operations of `bench` with compiled PyTorch, if it is installed, for comparison."""

import importlib.util
import json
import pathlib
import sys

from checks import lines_of, status_of

LIMIT = 90


def check(steps, report):
    if importlib.util.find_spec("torch") is None:
        return report.add("pytorch", "skipped", f"{sys.executable} has no PyTorch")
    version = steps.run("pytorch_gpu", [sys.executable, "-c", "import sys, torch; print(torch.__version__); sys.exit(not torch.cuda.is_available())"], 60)
    if version.status != 0:
        return report.add("pytorch", "skipped", "PyTorch finds no GPU", version.seconds)
    rows = steps.work / "bench.json"
    rows.write_text(json.dumps(report.bench))
    limit = min(LIMIT, steps.left())
    program = pathlib.Path(__file__).with_name("torch_times.py")
    done = steps.run("pytorch", [sys.executable, program, rows, f"{max(1.0, limit - 20):.0f}"], limit)
    join(report.bench, lines_of(done.text, "torch"))
    compared = sum("torch_seconds" in row for row in report.bench)
    status = status_of(done, compared or done.status is None)
    report.add("pytorch", status, done.why() or f"{compared} measurements of PyTorch {version.text.split()[0]}", version.seconds + done.seconds)


def join(bench, times):
    """Adds torch_seconds to the rows of the bench with the same operation, type and shape."""
    def key(row):
        return row["operation"], row["dtype"], row["shape"]

    found = {key(row): row["seconds"] for row in times}
    for row in bench:
        if key(row) in found:
            row["torch_seconds"] = found[key(row)]
