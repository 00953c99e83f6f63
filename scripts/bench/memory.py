#!/usr/bin/env python3
"""Compares planned with real memory: trains decks of several sizes for a few steps and prints, for the rank that needs most, the
planned memory, the allocated and used buffers and windows, and the growth of the process."""

import argparse
import re
import shutil

from runs import ROOT, mpirun, settings

DECK = "inputs/vlm_glyphs.toml"
LARGE = ["model.glyph-language.width=768", "model.glyph-language.layers=8", "model.glyph-language.heads=12",
         "model.glyph-language.kv_heads=12", "model.glyph-language.head_dim=64", "model.glyph-language.mlp=3072",
         "section.language.layout.dp=1", "data.global_batch=24"]
QUIET = ["checkpoint.every=0"]
CASES = {
    "glyphs, 4 ranks": (4, QUIET),
    "large language model, micro-batches of 1": (2, [*LARGE, *QUIET, "section.language.micro_batch=1", "section.vision.micro_batch=1"]),
    "large, micro-batches of 8": (2, [*LARGE, *QUIET]),
    "large, layers recomputed": (2, [*LARGE, *QUIET, "train.recompute=layer"]),
    "large, bf16": (2, [*LARGE, *QUIET, "run.precision=bf16"]),
    "large, with checkpoints": (2, [*LARGE, "checkpoint.every=3"]),
    "large, two replicas": (3, [*[v for v in LARGE if ".dp=" not in v], *QUIET, "section.language.layout.dp=2"]),
    "large, on one rank with the encoder": (1, [*LARGE, *QUIET, "section.language.colocate_with=vision"]),
}
LINE = re.compile(r"memory of rank (\d+): ([\d.]+) MiB planned, ([\d.]+) of it buffers and windows; ([\d.]+) MiB allocated "
                  r"for these, ([\d.]+) of it used; the process grew by ([\d.]+) MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--output", default="runs/bench-memory")
    options = parser.parse_args()
    print(f"{'MiB':44}{'planned':>10}{'growth':>10}{'error':>8}   {'buffers: planned':>17}{'allocated':>10}{'used':>10}")
    for number, (name, (ranks, values)) in enumerate(CASES.items()):
        output = f"{options.output}/{number}"
        shutil.rmtree(ROOT / output, ignore_errors=True)
        text = mpirun(ranks, "train", DECK, *settings([*values, f"train.steps={options.steps}", f"run.output={output}"]))
        _, planned, buffers, allocated, used, growth = map(float, LINE.search(text).groups())
        print(f"{name:44}{planned:10.1f}{growth:10.1f}{planned / growth - 1:8.1%}   {buffers:17.1f}{allocated:10.1f}{used:10.1f}", flush=True)


if __name__ == "__main__":
    main()
