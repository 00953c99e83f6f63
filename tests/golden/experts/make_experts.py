#!/usr/bin/env python3
"""Writes what the blocks with experts of transformers compute in double precision, for tests/unit/train/experts_test.cpp.

    pip install torch transformers safetensors
    python3 make_experts.py

Tests read the files and need none of these packages. Each has random weights, with a fixed seed, by the names of Maestro's parameters,
and F64 tensors `input` and `output` [T,C] of x + experts(RMSNorm(x)), a random `d_output`, its gradient `d_input`, and NAME.gradient.
"""

import pathlib

import torch
from safetensors.torch import save_file
from transformers.models.qwen3_moe import modeling_qwen3_moe as moe
from transformers.models.qwen3_next import modeling_qwen3_next as following
from transformers import Qwen3MoeConfig, Qwen3NextConfig

TOKENS, WIDTH, EXPERTS, PER_TOKEN, MLP, SHARED, EPS = 11, 8, 6, 3, 5, 7, 1e-6
SIZES = dict(hidden_size=WIDTH, num_experts=EXPERTS, num_experts_per_tok=PER_TOKEN, moe_intermediate_size=MLP)
CASES = {
    "qwen3_moe": (moe.Qwen3MoeSparseMoeBlock, Qwen3MoeConfig(**SIZES, norm_topk_prob=False)),
    "qwen3_moe_normalized": (moe.Qwen3MoeSparseMoeBlock, Qwen3MoeConfig(**SIZES, norm_topk_prob=True)),
    "qwen3_next": (following.Qwen3NextSparseMoeBlock, Qwen3NextConfig(**SIZES, norm_topk_prob=True, shared_expert_intermediate_size=SHARED)),
}


class InDouble:
    """`torch` as the modules see it, which ask for float32 within the router."""

    float, float32 = torch.float64, torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def parameters_of(block, norm):
    """By the names of Maestro, as lists of tensors whose rows follow each other."""
    experts = block.experts
    found = {"mlp.norm.weight": [norm], "mlp.router.weight": [block.gate.weight],
             "mlp.experts.gate_up.weight": [experts.gate_up_proj], "mlp.experts.down.weight": [experts.down_proj]}
    if hasattr(block, "shared_expert"):
        shared = block.shared_expert
        found.update({"mlp.shared.gate_up.weight": [shared.gate_proj.weight, shared.up_proj.weight],
                      "mlp.shared.down.weight": [shared.down_proj.weight], "mlp.shared.gate.weight": [block.shared_expert_gate.weight]})
    return found


def rows(tensors):
    joined = torch.cat([t.reshape(-1, t.shape[-1]) if t.dim() > 1 else t for t in tensors])
    return joined.detach().contiguous().clone()


def main():
    for module in (moe, following):
        module.torch = InDouble()
    for name, (Block, config) in CASES.items():
        torch.manual_seed(7)
        config._experts_implementation = "eager"
        block = Block(config).double()
        for p in block.parameters():
            torch.nn.init.normal_(p, std=0.5)
        norm = torch.nn.Parameter(1 + 0.2 * torch.randn(WIDTH, dtype=torch.float64))
        x = torch.randn(TOKENS, WIDTH, dtype=torch.float64, requires_grad=True)
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * norm
        result = block(normed[None])
        y = x + (result[0] if isinstance(result, tuple) else result).reshape(TOKENS, WIDTH)
        d = torch.randn(TOKENS, WIDTH, dtype=torch.float64)
        y.backward(d)
        assert y.dtype == torch.float64
        tensors = {"input": x.detach(), "output": y.detach(), "d_output": d, "d_input": x.grad}
        for key, parts in parameters_of(block, norm).items():
            tensors[key] = rows(parts)
            tensors[f"{key}.gradient"] = rows([p.grad for p in parts])
        save_file({key: value.contiguous() for key, value in tensors.items()}, pathlib.Path(__file__).parent / f"{name}.safetensors")


if __name__ == "__main__":
    main()
