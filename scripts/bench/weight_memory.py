#!/usr/bin/env python3
"""Measures the bytes that a rank holds for each weight: fp32 and bf16, trained and frozen, on 1, 2 and 4 data-parallel ranks.

The memory of the rank that needs most, planned and as growth of its process, is compared between two language models that differ only
in the number of their layers. The texts have 16 tokens, a micro-batch is one of them, and layers are recomputed, so weights are nearly
all that grows. The closed form on d ranks, for weights + gradients + what the optimizer shards: fp32 4 + 4 + 8/d (two moments; the
weights are their masters), bf16 2 + 4 + 12/d (two moments and an fp32 master), frozen 4 and 2.
"""

import argparse
import os
import re
import shutil
import sys

from memory import LINE
from runs import ROOT, mpirun, settings

sys.path.insert(0, str(ROOT / "scripts/data"))
import byte_tokens  # noqa: E402
import sample_file  # noqa: E402

SHAPE = {"width": 512, "heads": 8, "kv_heads": 8, "head_dim": 64, "mlp": 2048}
DECKS = {"trained": "inputs/teacher.toml", "frozen": "inputs/distill.toml"}
BYTES = {("trained", "fp32"): lambda d: 4 + 4 + 8 / d, ("trained", "bf16"): lambda d: 2 + 4 + 12 / d,
         ("frozen", "fp32"): lambda d: 4.0, ("frozen", "bf16"): lambda d: 2.0}
PARAMETERS = re.compile(r"section teacher: .* (\d+) parameters")


def short_texts(path, tokens):
    writer = sample_file.SampleWriter(path, vocabulary=byte_tokens.VOCABULARY, marker=byte_tokens.MARKER)
    for number in range(64):
        sample = sample_file.Sample()
        sample.add([number % 250], weight=0.0)
        sample.add([(number + i) % 250 for i in range(tokens - 1)])
        writer.add(sample)
    writer.close()


def memory_of(kind, precision, dp, layers, options):
    """Returns the parameters of the section, and the bytes planned and measured for the rank that needs most."""
    samples = f"{options.output}/texts.h5"
    shape = {**SHAPE, "layers": layers}
    values = [f"run.output={options.output}/run", f"run.precision={precision}", f"data.train={samples}", f"data.validation={samples}",
              "data.global_batch=8", f"data.sequence_length={options.tokens}", f"train.steps={options.steps}", "checkpoint.every=0",
              "train.recompute=layer", *(f"model.text-teacher.{key}={value}" for key, value in shape.items()), "section.teacher.micro_batch=1",
              f"section.teacher.layout.dp={dp}"]
    ranks = dp
    if kind == "frozen":
        values += ["section.teacher.weights=random", "section.student.micro_batch=1", f"section.student.layout.dp={dp}"]
        ranks += dp
    table = mpirun(ranks, "train", DECKS[kind], "--dry-run", *settings(values))
    shutil.rmtree(ROOT / options.output / "run", ignore_errors=True)
    _, planned, *_, growth = map(float, LINE.search(mpirun(ranks, "train", DECKS[kind], *settings(values))).groups())
    return int(PARAMETERS.search(table)[1]), planned * (1 << 20), growth * (1 << 20)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs=2, default=[5, 20])
    parser.add_argument("--tokens", type=int, default=16, help="of each text")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--output", default="runs/bench-weight-memory")
    options = parser.parse_args()
    os.chdir(ROOT)
    short_texts(f"{options.output}/texts.h5", options.tokens)
    print(f"{'bytes a weight':16}{'dp':>3}{'million weights':>17}{'closed form':>13}{'planned':>9}{'error':>8}{'measured':>10}{'error':>8}")
    for (kind, precision), closed_form in BYTES.items():
        for dp in (1, 2, 4):
            small, large = (memory_of(kind, precision, dp, layers, options) for layers in options.layers)
            weights = large[0] - small[0]
            expected, planned, measured = closed_form(dp), (large[1] - small[1]) / weights, (large[2] - small[2]) / weights
            print(f"{kind + ' ' + precision:16}{dp:3}{f'{small[0] / 1e6:.1f}, {large[0] / 1e6:.1f}':>17}{expected:13.2f}{planned:9.3f}"
                  f"{planned / expected - 1:8.2%}{measured:10.3f}{measured / expected - 1:8.2%}", flush=True)


if __name__ == "__main__":
    main()
