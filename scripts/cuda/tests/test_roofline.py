import pytest
import roofline
from costs import Gpu, model_flops

GPU = Gpu("G", bf16=100.0, f32=10.0, bandwidth=5.0, f32_attention=4.0)


def line(operation="op", calls=1, flops=0.0, bytes=0.0, tensor_cores=False, dtype="f32", m=0):
    return {"operation": operation, "calls": calls, "flops": flops, "bytes": bytes, "tensor_cores": tensor_cores, "dtype": dtype,
            "m": m, "n": m, "k": m}


def counted(forward=(), backward=(), update=()):
    return {"forward": list(forward), "backward": list(backward), "update": list(update)}


@pytest.mark.parametrize("tensor_cores, dtype, arithmetic", [(True, "bf16", 2.0), (True, "f32", 20.0), (False, "bf16", 20.0)])
def test_only_bf16_gemms_use_tensor_cores(tensor_cores, dtype, arithmetic):
    assert GPU.seconds(line(flops=200, bytes=10, tensor_cores=tensor_cores, dtype=dtype)) == (arithmetic, 2.0)


def test_each_call_has_its_roof():
    """Two calls of 3 s of memory and 2 s of arithmetic, and one of 1 s and 4 s: 10 s; the maximum of the sums would be 8."""
    (row,) = roofline.rows_of(counted([line(calls=2, flops=20, bytes=15), line(flops=40, bytes=5)]), "forward", (GPU,))
    assert row["calls"] == 3 and row["flops"] == 80 and row["bytes"] == 35
    assert row["G"] == {"arithmetic_s": 8, "memory_s": 7, "roof_s": 10, "bound": "arithmetic", "target_s": None}


def test_the_target_of_memory_bound_operations():
    (row,) = roofline.rows_of(counted([line(flops=1, bytes=20)]), "forward", (GPU,))
    assert row["G"]["bound"] == "memory" and row["G"]["target_s"] == pytest.approx(5.0)


def test_gemms_of_different_shapes_are_different_rows():
    rows = roofline.rows_of(counted([line("y", m=2, flops=1), line("y", m=3, flops=50), line("y", m=2, flops=1, bytes=1)]), "forward", (GPU,))
    assert [(row["operation"], row["calls"]) for row in rows] == [("y, 3 x 3 x 3", 1), ("y, 2 x 2 x 2", 2)]


def test_the_share_of_the_peak():
    attention = {"tensor_cores": True, "dtype": "bf16"}
    whole = counted([line("y", m=1, flops=100, **attention), line("attention", flops=40, bytes=1, **attention), line(bytes=5)],
                    [line("dx", m=1, flops=200, **attention), line("attention_backward", flops=100, bytes=1, **attention)],
                    [line("adamw", bytes=35)])
    # 300 of GEMMs, and three times 40 of attention, whose backward has 100.
    assert model_flops(whole) == 420
    summary = roofline.summary(whole, GPU)
    assert summary["roof_s"] == pytest.approx(1 + 0.4 + 1 + 2 + 1)
    assert summary["peak_share"] == pytest.approx(4.2 / 5.4)
    assert summary["peak_share_s"] == pytest.approx(8.4)
    assert summary["memory_bound_s"] == pytest.approx(1)
    assert summary["attention_without_tensor_cores_s"] == pytest.approx((10 - 0.4) + (25 - 1))
    assert summary["update_s"] == pytest.approx(7)


def test_elsewhere_lists_operations_that_no_earlier_section_has():
    first = counted([line("norm", bytes=1), line("y", m=3)])
    others = {"a": counted([line("norm", bytes=1), line("gelu", bytes=2), line("z", m=9)]),
              "b": {**counted([line("gelu", bytes=3)], [line("gelu", bytes=3), line("fill", bytes=4)]), "evaluation": [line("max", bytes=5)]}}
    assert [(name, phase, row["operation"], row["bytes"]) for name, phase, row in roofline.others_of(first, others)] == [
        ("a", "forward", "gelu", 2), ("b", "backward", "fill", 4), ("b", "evaluation", "max", 5)]
