#!/usr/bin/env python3
"""Measures how much memory of a rank tp, cp, dp and pp save: a language model of 82 million weights (1.3 GB with gradients and moments)
in several layouts. Prints planned memory, growth of the process, and that growth over one rank's: for the rank that needs most, and for
one of each stage of a pipeline."""

import argparse
import shutil

from memory import LINE
from runs import ROOT, mpirun, settings

DECK = "inputs/teacher.toml"
MODEL = "model.text-teacher."
LARGE = [f"{MODEL}{k}={v}" for k, v in (("width", 768), ("layers", 8), ("heads", 12), ("kv_heads", 12), ("head_dim", 64), ("mlp", 3072),
                                        ("vocabulary", 8000), ("tie_embeddings", "true"))]
COMMON = [*LARGE, "checkpoint.every=0", "data.global_batch=16", "section.teacher.micro_batch=4"]
LAYOUTS = [{}, {"tp": 2}, {"tp": 4}, {"cp": 2}, {"cp": 4}, {"cp": 2, "cp_kind": "all-to-all"}, {"dp": 2}, {"dp": 4},
           {"tp": 2, "cp": 2}, {"tp": 2, "dp": 2}, {"pp": 2}, {"pp": 4}, {"pp": 2, "tp": 2}, {"pp": 2, "chunks": 2}]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--output", default="runs/bench-layout-memory")
    options = parser.parse_args()
    print(f"{'layout':22}{'planned MiB':>12}{'growth':>10}{'error':>8}{'over one rank':>15}")
    one_rank = None
    for layout in LAYOUTS:
        shutil.rmtree(ROOT / options.output, ignore_errors=True)
        ranks = 1
        for key in ("dp", "tp", "cp", "pp"):
            ranks *= layout.get(key, 1)
        values = [*COMMON, f"train.steps={options.steps}", f"run.output={options.output}",
                  "section.teacher.layout.dp=1", *(f"section.teacher.layout.{k}={v}" for k, v in layout.items())]
        name = " ".join(f"{k} {v}" if k != "cp_kind" else v for k, v in layout.items()) or "one rank"
        for line in LINE.finditer(mpirun(ranks, "train", DECK, *settings(values))):
            rank, planned, *_, growth = map(float, line.groups())
            one_rank = one_rank or growth
            place = f"{name}, rank {rank:.0f}" if "pp" in layout else name
            print(f"{place:22}{planned:12.1f}{growth:10.1f}{planned / growth - 1:8.1%}{growth / one_rank:15.2f}", flush=True)


if __name__ == "__main__":
    main()
