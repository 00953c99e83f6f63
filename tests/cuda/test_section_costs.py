"""Compares the counts of section_costs with closed forms of the sizes."""

import json
import os
import subprocess

import pytest

PROGRAM = os.environ["MAESTRO_SECTION_COSTS"]
ONE_BILLION = {"layers": 16, "width": 2048, "heads": 32, "kv_heads": 8, "head_dim": 64, "mlp": 8192, "vocabulary": 128256,
               "tokens": 8192, "samples": 1}
SMALL = {"layers": 3, "width": 96, "heads": 6, "kv_heads": 2, "head_dim": 32, "mlp": 160, "vocabulary": 515, "tokens": 300, "samples": 2}


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)


@pytest.fixture(scope="module", params=[ONE_BILLION, SMALL], ids=["one billion", "small"])
def counted(request):
    sizes = {} if request.param is ONE_BILLION else request.param  # the program's defaults
    done = run(*(f"{key}={value}" for key, value in sizes.items()))
    assert done.returncode == 0, done.stderr
    return request.param, json.loads(done.stdout)


def matrices(s):
    """Weights of all GEMMs of the layers."""
    return s["layers"] * s["width"] * (2 * (s["heads"] + s["kv_heads"]) * s["head_dim"] + 3 * s["mlp"])


def total(lines, what, selected):
    return sum(line["calls"] * line[what] for line in lines if selected(line))


def named(name):
    return lambda line: line["operation"] == name


def is_gemm(line):
    return line["m"] > 0


def test_weights(counted):
    s, found = counted
    norms = s["layers"] * 2 * (s["width"] + s["head_dim"]) + s["width"]
    assert found["section"].items() >= {**s, "parameters": matrices(s) + s["vocabulary"] * s["width"] + norms}.items()


def test_gemms_have_six_flops_per_weight_and_token(counted):
    s, found = counted
    tokens = s["samples"] * s["tokens"]
    targets = s["samples"] * (s["tokens"] - 1)  # the last token of a sample predicts nothing
    expected = 2 * matrices(s) * tokens + 2 * s["vocabulary"] * s["width"] * targets
    head = 4 * s["vocabulary"] * s["width"] * targets  # the gradients of the head are computed with its loss
    assert total(found["forward"], "flops", is_gemm) == pytest.approx(expected + head, rel=1e-12)
    assert total(found["backward"], "flops", is_gemm) == pytest.approx(4 * matrices(s) * tokens, rel=1e-12)
    assert total(found["update"], "flops", is_gemm) == 0


def test_causal_attention_has_half_of_all_pairs(counted):
    s, found = counted
    half = s["samples"] * s["layers"] * s["heads"] * s["head_dim"] * s["tokens"] ** 2 / 2
    assert total(found["forward"], "flops", named("attention")) == pytest.approx(4 * half, rel=1e-12)
    # Five matmuls instead of two: backward computes the scores again.
    assert total(found["backward"], "flops", named("attention_backward")) == pytest.approx(10 * half, rel=1e-12)


def test_bytes_of_memory_bound_operations(counted):
    s, found = counted
    rows = s["samples"] * s["tokens"]
    element = 2  # bf16
    assert total(found["forward"], "bytes", named("rms_norm")) == (2 * s["layers"] + 1) * 2 * rows * s["width"] * element
    assert total(found["forward"], "bytes", named("swiglu")) == s["layers"] * 3 * rows * s["mlp"] * element
    assert total(found["backward"], "bytes", named("swiglu_backward")) == s["layers"] * 5 * rows * s["mlp"] * element
    # Four float arrays are read, three are written.
    assert total(found["update"], "bytes", named("adamw")) == 7 * 4 * found["section"]["parameters"]


def test_operations_have_names(counted):
    _, found = counted
    names = {line["operation"] for phase in ("forward", "backward", "update") for line in found[phase]}
    assert {"y = x w^T", "dx = dy w", "dw += dy^T x", "attention", "attention_backward", "rms_norm", "rms_norm_backward", "swiglu",
            "swiglu_backward", "head_norm_rotary", "head_norm_rotary_backward", "cross_entropy_rows", "embedding", "embedding_backward",
            "adamw", "add_squares", "convert", "zero"} <= names
    assert not [name for name in names if not name or "launch" in name or "by_row" in name]


def costs(*arguments):
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_vision_section():
    found = costs("section=vision")
    s = found["section"]
    patches, merged, out = 8 * 32 * 32, 8 * 16 * 16, 2048  # 8 pictures of 448 x 448, patches of 14 x 14, 2 x 2 patches per token
    forward = patches * (matrices(s) + 14 * 14 * 3 * s["width"]) + merged * (4 * s["width"] * out + out * out)
    assert total(found["forward"], "flops", is_gemm) == pytest.approx(2 * forward, rel=1e-12)
    # Pixels need no gradients.
    assert total(found["backward"], "flops", is_gemm) == pytest.approx(4 * forward - 2 * patches * 14 * 14 * 3 * s["width"], rel=1e-12)
    pairs = 8 * (32 * 32) ** 2
    assert total(found["forward"], "flops", named("attention")) == pytest.approx(4 * s["layers"] * s["width"] * pairs, rel=1e-12)
    assert total(found["forward"], "bytes", named("gelu")) == 2 * merged * out * 2
    assert total(found["backward"], "bytes", named("gelu_backward")) == 3 * merged * out * 2


def test_a_student_has_the_costs_of_two_heads():
    s = ONE_BILLION
    alone, student = costs(), costs("section=student")
    rows = s["tokens"] - 256  # the picture's 256 rows predict one token, the first behind it
    head = 2 * s["vocabulary"] * s["width"] * rows
    assert total(student["forward"], "flops", is_gemm) - total(alone["forward"], "flops", is_gemm) == pytest.approx(
        4 * head - 3 * 2 * s["vocabulary"] * s["width"] * (s["tokens"] - 1), rel=1e-9)
    assert total(student["backward"], "flops", is_gemm) == total(alone["backward"], "flops", is_gemm)


@pytest.mark.parametrize("ranks", ["tp=2", "cp=2"])
def test_two_ranks_split_the_gemms(ranks):
    alone, shared = costs(), costs(ranks)
    for phase in ("forward", "backward"):
        assert total(shared[phase], "flops", is_gemm) == pytest.approx(total(alone[phase], "flops", is_gemm) / 2, rel=1e-3)


def dw_bytes(lines, weights):
    """Bytes of the GEMMs for the gradients of weights of this shape."""
    return total(lines, "bytes", lambda line: line["operation"] == "dw += dy^T x" and (line["m"], line["n"]) == weights)


def test_a_gradient_is_read_before_it_is_added_to(counted):
    s, found = counted
    rows, width, mlp = s["samples"] * s["tokens"], s["width"], s["mlp"]
    assert dw_bytes(found["backward"], (width, mlp)) == s["layers"] * (rows * (width + mlp) * 2 + 2 * width * mlp * 4)


@pytest.mark.parametrize("tp", [2, 8])
def test_exchanges_of_tensor_parallelism(tp):
    """Sums and gathers of all rows, of which a rank sends those of the others: T x width x 2 bytes x (tp - 1) / tp."""
    exchanged, s = costs(f"tp={tp}")["exchanged"], ONE_BILLION
    rows = s["tokens"] * s["width"] * 2 * (tp - 1) // tp
    # Two gathers and two sums a layer; the embedding's sum, and a gather and a sum of the head, whose loss also exchanges its maxima.
    assert exchanged["forward"]["tp"] == pytest.approx((4 * s["layers"] + 3) * rows, rel=2e-3)
    # Four gathers and two sums a layer; the gather of the embedding's gradient.
    assert exchanged["backward"]["tp"] == (6 * s["layers"] + 1) * rows
    assert exchanged["forward"]["cp"] == exchanged["update"]["data"] == 0


def test_exchanges_of_a_ring():
    exchanged, s, cp = costs("cp=4")["exchanged"], ONE_BILLION, 4
    keys_and_values = s["layers"] * (cp - 1) * s["tokens"] // cp * 2 * s["kv_heads"] * s["head_dim"]
    assert exchanged["forward"]["cp"] == keys_and_values * 2
    assert exchanged["backward"]["cp"] == keys_and_values * (2 + 4)  # with their gradients in fp32


@pytest.mark.parametrize("sizes, ranks, tp", [("dp=8", 8, 1), ("dp=2 cp=4", 8, 1), ("dp=4 tp=2", 4, 2)])
def test_exchanges_of_data_parallelism(sizes, ranks, tp):
    """fp32 gradients are summed, bf16 weights are gathered. Norms are whole on every rank of tp."""
    found = costs(*sizes.split())
    assert found["exchanged"]["update"]["data"] == pytest.approx((4 + 2) * costs()["section"]["parameters"] / tp * (ranks - 1) / ranks, rel=1e-3)


@pytest.mark.parametrize("argument", ["depth=2", "layers=", "layers=0", "layers=2x", "=3", "section=audio"])
def test_invalid_arguments_are_rejected(argument):
    done = run(argument)
    assert done.returncode == 64 and argument in done.stderr and "kv_heads" in done.stderr


def test_a_picture_needs_enough_tokens():
    done = run("section=student", "tokens=200")
    assert done.returncode == 64 and "a picture alone has 256" in done.stderr


def test_inconsistent_sizes_are_rejected():
    done = run("heads=6", "kv_heads=4")
    assert done.returncode == 78 and "multiple of kv_heads" in done.stderr
