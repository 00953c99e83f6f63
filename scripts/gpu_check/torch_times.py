"""torch_times.py BENCH.json SECONDS: measures the operations of the bench with compiled PyTorch. Prints one JSON object per line."""

import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def rows_columns(row, dtype, wide=1):
    return torch.randn(int(row["rows"]), wide * int(row["columns"]), device="cuda", dtype=dtype)


def swiglu(x):
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def rms_norm(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-6)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def forward(function, *tensors):
    compiled = torch.compile(function)
    return lambda: compiled(*tensors)


def backward(function, *tensors):
    """Measures the gradient only: forward runs once, outside the measurement."""
    tensors = [tensor.requires_grad_() for tensor in tensors]
    result = torch.compile(function)(*tensors)
    gradient = torch.randn_like(result)
    return lambda: torch.autograd.grad(result, tensors, gradient, retain_graph=True)


def attention(row, dtype):
    """Causal attention over the sequences of gpu_operations, one after the other, because plain PyTorch has no packed sequences."""
    rows = int(row["rows"])
    bounds = [0, rows // 8, rows // 2, rows]

    def heads(count, length):
        return torch.randn(1, int(count), length, int(row["head_columns"]), device="cuda", dtype=dtype)

    sequences = [(heads(row["heads"], end - begin), heads(row["kv_heads"], end - begin), heads(row["kv_heads"], end - begin))
                 for begin, end in zip(bounds, bounds[1:])]

    def one(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return one, sequences


def attention_forward(row, dtype):
    one, sequences = attention(row, dtype)
    return lambda: [one(*sequence) for sequence in sequences]


def attention_backward(row, dtype):
    one, sequences = attention(row, dtype)
    parts = [backward(one, *sequence) for sequence in sequences]
    return lambda: [part() for part in parts]


def linear(row, dtype):
    x = torch.randn(int(row["rows"]), int(row["inputs"]), device="cuda", dtype=dtype)
    weight = torch.randn(int(row["outputs"]), int(row["inputs"]), device="cuda", dtype=dtype)
    return forward(F.linear, x, weight)


EXPERTS, CHOICES = 128, 8


def route(logits):
    """Normalized weights of the chosen experts, as Qwen3-MoE has them."""
    weights, choice = torch.topk(torch.softmax(logits, dim=-1), CHOICES)
    return weights / weights.sum(dim=-1, keepdim=True), choice


def weights_of(logits):
    return route(logits)[0]


def logits_of(row, dtype):
    return torch.randn(int(row["rows"]), min(int(row["columns"]), EXPERTS), device="cuda", dtype=dtype)


def weighted_swiglu(x, weight):
    return (weight * swiglu(x)).to(x.dtype)


def weighted_rows(row, dtype):
    return rows_columns(row, dtype, 2), torch.randn(int(row["rows"]), 1, device="cuda", dtype=torch.float32)


def gather_rows(row, dtype):
    x, index = rows_columns(row, dtype), torch.randint(int(row["rows"]), (int(row["rows"]),), device="cuda")
    return forward(lambda x, index: x[index], x, index)


def scatter_rows(row, dtype):
    x, y = rows_columns(row, dtype), rows_columns(row, dtype)
    index = torch.randperm(int(row["rows"]), device="cuda")
    return forward(lambda y, index, x: y.index_copy_(0, index, x), y, index, x)


def sum_rows(row, dtype):
    """Each row of the sum adds CHOICES rows."""
    x, rows = rows_columns(row, dtype), int(row["rows"]) // CHOICES
    y = torch.randn(rows, x.shape[-1], device="cuda", dtype=dtype)
    place = torch.randperm(rows * CHOICES, device="cuda").reshape(rows, CHOICES)
    return forward(lambda y, x, place: y.add_(x[place].sum(dim=1)), y, x, place)


def grouped_linear(row, dtype):
    """The eight experts of gpu_operations in PyTorch's grouped GEMM, which is for bf16 and absent before 2.9: then None."""
    if dtype != torch.bfloat16 or not hasattr(F, "grouped_mm"):
        return None
    rows = int(row["rows"])
    ends = [0, rows // 2, *(rows // 2 + (rows - rows // 2) * (i - 2) // 6 for i in range(3, 9))]
    x = torch.randn(rows, int(row["inputs"]), device="cuda", dtype=dtype)
    weight = torch.randn(8, int(row["outputs"]), int(row["inputs"]), device="cuda", dtype=dtype)
    return forward(lambda x, weight, ends: F.grouped_mm(x, weight.transpose(1, 2), offs=ends), x, weight,
                   torch.tensor(ends, device="cuda", dtype=torch.int32))


def cross_entropy(row, dtype):
    """Loss and gradient together, as in gpu_operations."""
    logits = torch.randn(int(row["rows"]), int(row["vocabulary"]), device="cuda", dtype=dtype, requires_grad=True)
    targets = torch.randint(int(row["vocabulary"]), (int(row["rows"]),), device="cuda")
    compiled = torch.compile(F.cross_entropy)
    return lambda: torch.autograd.grad(compiled(logits, targets), logits)


OPERATIONS = {
    "gelu": lambda row, t: forward(gelu, rows_columns(row, t)),
    "gelu_backward": lambda row, t: backward(gelu, rows_columns(row, t)),
    "gelu, exact": lambda row, t: forward(F.gelu, rows_columns(row, t)),
    "gelu_backward, exact": lambda row, t: backward(F.gelu, rows_columns(row, t)),
    "swiglu": lambda row, t: forward(swiglu, rows_columns(row, t, 2)),
    "swiglu_backward": lambda row, t: backward(swiglu, rows_columns(row, t, 2)),
    "rms_norm": lambda row, t: forward(rms_norm, rows_columns(row, t), torch.randn(int(row["columns"]), device="cuda", dtype=t)),
    "rms_norm_backward": lambda row, t: backward(rms_norm, rows_columns(row, t), torch.randn(int(row["columns"]), device="cuda", dtype=t)),
    "layer_norm": lambda row, t: forward(layer_norm, rows_columns(row, t), *(torch.randn(int(row["columns"]), device="cuda", dtype=t) for _ in "wb")),
    "layer_norm_backward": lambda row, t: backward(layer_norm, rows_columns(row, t),
                                                   *(torch.randn(int(row["columns"]), device="cuda", dtype=t) for _ in "wb")),
    "route": lambda row, t: forward(route, logits_of(row, t)),
    "route_backward": lambda row, t: backward(weights_of, logits_of(row, t)),
    "weighted_swiglu": lambda row, t: forward(weighted_swiglu, *weighted_rows(row, t)),
    "weighted_swiglu_backward": lambda row, t: backward(weighted_swiglu, *weighted_rows(row, t)),
    "gather_rows": gather_rows,
    "scatter_rows": scatter_rows,
    "sum_rows": sum_rows,
    "grouped_linear": grouped_linear,
    "cross_entropy": cross_entropy,
    "linear": linear,
    "attention": attention_forward,
    "attention_backward": attention_backward,
}


def seconds_of(run):
    for _ in range(3):
        run()
    times = []
    for _ in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(5):
            run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / 5)
    return statistics.median(times)


def main():
    rows, limit = json.load(open(sys.argv[1])), float(sys.argv[2])
    end = time.monotonic() + limit
    torch.backends.cuda.matmul.allow_tf32 = False
    for row in rows:
        if time.monotonic() > end:
            break
        if row["operation"] in OPERATIONS and "skipped" not in row:
            run = OPERATIONS[row["operation"]](row, TYPES[row["dtype"]])
            if run is None:
                continue
            key = {name: row[name] for name in ("operation", "dtype", "shape")}
            print(json.dumps({"kind": "torch", **key, "seconds": seconds_of(run)}), flush=True)
            del run
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
