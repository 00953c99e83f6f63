"""The costs of a section as section_costs counts them, and the peak rates of GPUs; for roofline.py and prediction.py."""

import json
import subprocess
from dataclasses import dataclass

PHASES = ("forward", "backward", "update")
COPY_SHARE = 0.8  # of peak bandwidth: the target of memory-bound kernels


@dataclass(frozen=True)
class Gpu:
    """Peak rates of SXM boards by NVIDIA's data sheets, without sparsity."""

    name: str
    bf16: float  # FLOP/s of tensor cores
    f32: float   # FLOP/s without tensor cores
    bandwidth: float  # bytes/s
    f32_attention: float = 20e12  # FLOP/s that attention without tensor cores may reach (kernels/attention*.cu)

    def seconds(self, line):
        """Seconds of a call's arithmetic and of its memory traffic, each at the peak rate."""
        tensor = line["tensor_cores"] and line["dtype"] == "bf16"
        return line["flops"] / (self.bf16 if tensor else self.f32), line["bytes"] / self.bandwidth


GPUS = (Gpu("H100", 989e12, 67e12, 3.35e12), Gpu("H200", 989e12, 67e12, 4.8e12))


def costs(program, *sizes):
    return json.loads(subprocess.run([program, *sizes], capture_output=True, text=True, check=True).stdout)


def is_gemm(line):
    return line["m"] > 0


def is_attention(line):
    return line["operation"] in ("attention", "attention_backward")


def model_flops(counted):
    """Model FLOPs of a micro-batch, as usual for model FLOPs utilization: all GEMMs with weights, and attention with a backward of twice
    its forward; recomputed scores do not count."""
    gemms = sum(line["calls"] * line["flops"] for phase in PHASES[:2] for line in counted[phase] if is_gemm(line))
    attention = sum(line["calls"] * line["flops"] for line in counted["forward"] if is_attention(line))
    return gemms + 3 * attention


def line_of(cells):
    return "| " + " | ".join(cells) + " |\n"


def number(value):
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
