"""bf16 works on a processor without bf16 instructions, too. Here oneDNN and OpenBLAS are told to use AVX2 at most."""

import tomllib

import numpy as np
import pytest
from conftest import TWO_RANKS, VLM, assert_resume_is_bit_for_bit, mpirun, relative

BF16 = [*TWO_RANKS, "run.precision=bf16", "checkpoint.every=3"]


@pytest.fixture(autouse=True)
def capped(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")


def test_bf16_trains_near_fp32_and_resumes_bit_for_bit(workspace):
    assert_resume_is_bit_for_bit(workspace, 2, BF16, 6)
    assert "bf16 by fp32 GEMMs of converted panels" in (workspace.run("whole") / "log.txt").read_text()
    workspace.train(2, VLM, "exact", ["train.steps=6", *TWO_RANKS])
    assert 0 < relative(workspace.losses("whole"), workspace.losses("exact")) <= 2e-2


def test_calibrate_measures_bf16(workspace):
    result = mpirun(2, "calibrate", "--out", "this.toml", cwd=workspace.path)
    assert result.returncode == 0, result.stderr
    products = tomllib.loads((workspace.path / "this.toml").read_text())["product"]
    assert products and all(0 < p["bf16_flops"] < np.inf and 0 < p["fp32_flops"] < np.inf for p in products)
