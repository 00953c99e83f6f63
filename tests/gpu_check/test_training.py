"""Comparison of the losses of CPU and GPU."""

import math
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts/gpu_check"))
import training  # noqa: E402

ONES = [1.0] * training.STEPS


class FakeReport:
    def add(self, name, status, reason, seconds, **more):
        self.status, self.more = status, more


@pytest.mark.parametrize("losses, expected", [
    (ONES, "passed"), ([*ONES[:-1], 1 + 5e-6], "passed"), ([*ONES[:-1], 1 + 2e-5], "failed"), (ONES[:-1], "failed"), ([], "failed"),
    ([math.nan, *ONES[1:]], "failed"), ([*ONES[:-1], math.nan], "failed"), ([*ONES[:-1], math.inf], "failed")])  # fmt: skip
def test_losses(losses, expected):
    report = FakeReport()
    training.judge(report, "training", {"cpu": ONES, "cuda": losses}, 1.0)
    assert report.status == expected
    assert report.more["error"] is None or math.isfinite(report.more["error"])
