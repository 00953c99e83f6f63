import dataclasses

import prediction
import pytest
from costs import Gpu
from prediction import EXCHANGE_S, GEMM, NIC, NVLINK, Case, Prediction
from step_counts import COLUMNS, ROWS

LAYERS, ROWS_BYTES = 2, 100 * 10 * 2  # of all rows
CASE = Case("small", {"layers": LAYERS, "width": 10, "heads": 2, "kv_heads": 1, "head_dim": 64, "mlp": 30, "vocabulary": 40}, tokens=100,
            gpu=Gpu("G", bf16=1e12, f32=1e11, bandwidth=1e9, f32_attention=1e10))


def line(operation, flops=0.0, bytes=0.0, m=0):
    return {"operation": operation, "calls": 3, "flops": flops, "bytes": bytes, "tensor_cores": m > 0, "dtype": "bf16", "m": m, "n": m, "k": m}


def predict(case=CASE, nodes=1, forward=(), backward=(), update=(), exchanged=(0, 0, 0), groups=(0, 0, 0), launches=(0, 0, 0)):
    """`exchanged`: bytes forward, backward and in an update; `groups`, `launches`: of a layer forward and backward, and of the rest."""
    axis = "cp" if case.cp > 1 else "tp"
    counted = {"section": {"parameters": 4000}, "forward": list(forward), "backward": list(backward), "update": list(update),
               "exchanged": {"forward": {axis: exchanged[0]}, "backward": {axis: exchanged[1]}, "update": {"data": exchanged[2]}}}
    counts = {row: ["0"] * len(COLUMNS) for row in ROWS}
    counts["NCCL groups"][:3] = map(str, groups)
    counts["launches"][:3] = map(str, launches)
    return Prediction(case, nodes, counted, {case.layout: counts})


def test_operations_take_their_realistic_rates():
    found = predict(forward=[line("y = x w^T", flops=68e9, m=9), line("attention", flops=40e9), line("cross_entropy_rows", bytes=8e6)],
                    backward=[line("dw += dy^T x", bytes=16e6, m=9), line("attention_backward", flops=28e9), line("rms_norm_backward", bytes=8e6)])
    assert found.gemms == pytest.approx(3 * (1e-4 + 0.02))
    scores = LAYERS * 2 * 2 * 100 ** 2 / 0.8e9  # bytes: two heads, 100 x 100 scores in bf16
    assert found.attention == pytest.approx(3 * (1e-4 + 1e-4) + scores)
    assert found.memory == pytest.approx(3 * (0.015 + 0.01))


def test_tensor_parallelism_hides_two_exchanges_of_column_parallel_layers():
    case = dataclasses.replace(CASE, tp=2)
    rows = ROWS_BYTES // 2
    exchanges = {"exchanged": (4 * LAYERS * rows, 6 * LAYERS * rows, 0), "groups": (4, 6, 7)}
    hidden = [2 * (rows / NVLINK + EXCHANGE_S - 2 * 100 * 10 * columns / 2 / GEMM) for columns in (4 * 64, 60)]
    assert predict(case, **exchanges).tensor_parallel == pytest.approx(
        6 * LAYERS * (rows / NVLINK + EXCHANGE_S) + 7 * EXCHANGE_S + LAYERS * sum(hidden))


def test_a_ring_exchanges_beside_attention():
    case = dataclasses.replace(CASE, cp=3)
    attention = [line("attention", flops=400e12 * 4e-6)]  # of which a step of a layer has 2 us
    steps = 2 * LAYERS
    assert predict(case, forward=attention, exchanged=(steps * NVLINK * 3e-6, 0, 0)).context_parallel == pytest.approx(
        steps * (EXCHANGE_S + 3e-6 - 2e-6) + steps * EXCHANGE_S)


def test_data_parallelism_exposes_the_embedding():
    """A tenth of the weights."""
    one_node = predict(exchanged=(0, 0, 6e-3 * NVLINK), launches=(0, 0, 20_000))  # 6 ms beside 100 ms of the host
    assert one_node.host_bound and one_node.micro_batch == pytest.approx(0.1)
    assert one_node.exposed_data() == pytest.approx(0.6e-3)
    late = predict(exchanged=(0, 0, NVLINK), launches=(0, 0, 20_000))
    assert late.exposed_data() == pytest.approx((4 / 6 - 0.2 / 3) + (2 / 6 - 0.1 / 3))


def test_nics_of_a_node():
    assert predict(nodes=2).data_bandwidth() == 8 * NIC
    tp = dataclasses.replace(CASE, tp=8)
    assert predict(tp, nodes=2).data_bandwidth() == NIC


def test_the_share_of_the_peak():
    found = predict(forward=[line("y = x w^T", flops=68e9, m=9)], launches=(1, 1, 6))
    step = 8 * (3e-4 + 10 * prediction.GAP_S + LAYERS * 2 * 2 * 100 ** 2 / 0.8e9) + 2e-3
    assert found.step == pytest.approx(step)
    assert found.share == pytest.approx(8 * 3 * 68e9 / 1e12 / step)
