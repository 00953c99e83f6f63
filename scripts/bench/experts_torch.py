#!/usr/bin/env python3
"""Measures the experts of Qwen3-MoE in transformers on CPUs, forward and backward with the router: 64 experts, of which each token uses 8.
Prints tokens per second by each implementation of transformers, to compare with what bench/experts_bench prints on the same cores.

    pip install torch transformers
    scripts/bench/experts_torch.py [--width 1024] [--hidden 256] [--tokens 4096] [--threads 2]
"""

import argparse
import time

import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock


def tokens_per_second(implementation, kind, options):
    config = Qwen3MoeConfig(hidden_size=options.width, num_experts=64, num_experts_per_tok=8, moe_intermediate_size=options.hidden, norm_topk_prob=True)
    config._experts_implementation = implementation
    torch.manual_seed(1)
    block = Qwen3MoeSparseMoeBlock(config).to(kind)
    for p in block.parameters():
        torch.nn.init.normal_(p, std=0.02)
    x = torch.randn(1, options.tokens, options.width, dtype=kind, requires_grad=True)
    best = float("inf")
    for _ in range(options.rounds + 1):
        start = time.perf_counter()
        result = block(x)
        result = result[0] if isinstance(result, tuple) else result
        result.backward(torch.ones_like(result))
        best = min(best, time.perf_counter() - start)
    return options.tokens / best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("width", 1024), ("hidden", 256), ("tokens", 4096), ("threads", 2), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for kind in (torch.float32, torch.bfloat16):
        for implementation in ("eager", "batched_mm", "grouped_mm"):
            try:
                print(f"{str(kind).removeprefix('torch.')}, {implementation}: {tokens_per_second(implementation, kind, options):.0f} tokens/s", flush=True)
            except (RuntimeError, ValueError, KeyError) as error:
                print(f"{str(kind).removeprefix('torch.')}, {implementation}: {str(error).splitlines()[0][:100]}", flush=True)


if __name__ == "__main__":
    main()
