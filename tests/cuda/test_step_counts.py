"""Compares the counts of a step on simulated GPUs with closed forms, and with the table of docs/cuda.md."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/cuda"))
import document  # noqa: E402
import step_counts  # noqa: E402
from step_counts import HEAD_DIM, HEADS, MLP, TOKENS, WIDTH  # noqa: E402

HOSTED = os.environ.get("MAESTRO_HOSTED", str(ROOT / "build/cpu-release/maestro_hosted"))
BF16, F32 = 2, 4


def check(layout, expected):
    found = step_counts.measure_all(HOSTED, [layout])
    _, table = step_counts.read_table(document.read_between((ROOT / "docs/cuda.md").read_text(), "counts"))
    for (row, column), value in expected.items():
        assert found[layout][row][step_counts.COLUMNS.index(column)] == step_counts.number(value), (row, column)
    assert not step_counts.differences(found, table), "scripts/cuda/step_counts.py writes the table"


def test_exchanges_of_tensor_parallelism():
    half = TOKENS * WIDTH * BF16 / 2  # what a rank of two sends to gather or to sum the rows of a layer
    check("tp 2", {
        # The input of qkv and of gate_up is gathered, the output of the projections is summed; those of the MLP in two chunks.
        ("NCCL groups", "a layer forward"): 6, ("bytes sent by NCCL", "a layer forward"): 4 * half,
        # Their adjoints, and the two inputs once more for the gradients of the weights.
        ("NCCL groups", "a layer backward"): 9, ("bytes sent by NCCL", "a layer backward"): 6 * half,
        ("host waits: threads of NCCL groups", "a layer forward"): 0, ("host waits: threads of NCCL groups", "a layer backward"): 0,
    })


@pytest.mark.nightly
def test_exchanges_of_data_parallelism():
    parameters = (4 * WIDTH * HEADS * HEAD_DIM, 3 * WIDTH * MLP, WIDTH, WIDTH, HEAD_DIM, HEAD_DIM)
    weights = sum(-(-count // 16) * 16 for count in parameters)  # each begins at a multiple of 16
    # Gradients are summed in fp32, and the weights of the other rank are gathered in bf16.
    check("dp 2", {("bytes sent by NCCL", "a layer once per step"): weights * (F32 + BF16) / 2, ("NCCL groups", "a layer forward"): 0,
                   ("NCCL groups", "a layer backward"): 0})


@pytest.mark.nightly
@pytest.mark.parametrize("layout", ["tp 1", "tp 8", "cp 4"])
def test_the_table(layout):
    check(layout, {})
