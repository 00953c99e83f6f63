#!/usr/bin/env python3
"""A predicted roofline: the minimum time of a language section of 1.2 billion weights on an H100 and an H200, for a micro-batch of 8192
tokens and for the optimizer, by operation, as the table "roofline" of docs/cuda.md; and of the operations that only other sections have.
The operations themselves count FLOPs and bytes, on the meta backend: build/.../section_costs.

  scripts/cuda/roofline.py build/cpu-release/section_costs            # writes the table
  scripts/cuda/roofline.py build/cpu-release/section_costs --check    # fails if the table differs
  scripts/cuda/roofline.py build/cpu-release/section_costs --json     # prints the numbers, for comparison with measurements"""

import argparse
import json
import sys
from pathlib import Path

import document
from costs import COPY_SHARE, GPUS, PHASES, costs, is_attention, is_gemm, line_of, model_flops, number

ROOT = Path(__file__).resolve().parents[2]
OTHERS = {"vision": ["section=vision"], "student": ["section=student"], "tp 2": ["tp=2"], "cp 2": ["cp=2"]}
PEAK_SHARE = 0.5  # of the bf16 peak: the target of the section
HEADER = ["operation", "calls", "GFLOP", "GB", "FLOP/byte", "H100: bound", "ms", "at 80%", "H200: bound", "ms", "at 80%"]


def name_of(line):
    if not is_gemm(line):
        return line["operation"]
    return f"{line['operation']}, {line['m']} x {line['n']} x {line['k']}"


def rows_of(counted, phase, gpus=GPUS):
    """Returns a row per operation: calls, FLOPs, bytes, and per GPU the seconds at the roof and the dominant bound."""
    rows = {}
    for line in counted[phase]:
        row = rows.setdefault(name_of(line), {"operation": name_of(line), "calls": 0, "flops": 0.0, "bytes": 0.0,
                                              **{g.name: {"arithmetic_s": 0.0, "memory_s": 0.0, "roof_s": 0.0} for g in gpus}})
        calls = line["calls"]
        row["calls"] += calls
        row["flops"] += calls * line["flops"]
        row["bytes"] += calls * line["bytes"]
        for gpu in gpus:
            arithmetic, memory = gpu.seconds(line)
            time = row[gpu.name]
            time["arithmetic_s"] += calls * arithmetic
            time["memory_s"] += calls * memory
            time["roof_s"] += calls * max(arithmetic, memory)
    for row in rows.values():
        for gpu in gpus:
            time = row[gpu.name]
            time["bound"] = "arithmetic" if time["arithmetic_s"] > time["memory_s"] else "memory"
            time["target_s"] = time["memory_s"] / COPY_SHARE if time["bound"] == "memory" else None
    return sorted(rows.values(), key=lambda row: -row[gpus[0].name]["roof_s"])


def others_of(counted, others):
    """Returns rows by section and phase for operations, other than GEMMs, that no earlier section has."""
    seen = {line["operation"] for phase in PHASES for line in counted[phase]}
    found = []
    for name, other in others.items():
        for phase in (*PHASES, "evaluation"):
            lines = [line for line in other.get(phase, []) if not is_gemm(line) and line["operation"] not in seen]
            found += [(name, phase, row) for row in rows_of({phase: lines}, phase)]
            seen |= {line["operation"] for line in lines}
    return found


def summary(counted, gpu):
    """Of a micro-batch: the minimum seconds, the share of the bf16 peak that they correspond to, and the seconds at PEAK_SHARE."""
    lines = [line for phase in PHASES[:2] for line in counted[phase]]
    roof = sum(line["calls"] * max(gpu.seconds(line)) for line in lines)
    on_f32 = sum(line["calls"] * (line["flops"] / gpu.f32_attention - max(gpu.seconds(line))) for line in lines if is_attention(line))
    flops = model_flops(counted)
    return {"roof_s": roof, "peak_share": flops / gpu.bf16 / roof, "peak_share_s": flops / gpu.bf16 / PEAK_SHARE,
            "memory_bound_s": sum(line["calls"] * max(gpu.seconds(line)) for line in lines
                                  if gpu.seconds(line)[1] >= gpu.seconds(line)[0]),
            "attention_without_tensor_cores_s": on_f32,
            "update_s": sum(line["calls"] * max(gpu.seconds(line)) for line in counted["update"])}


def cells_of(row, gpus=GPUS):
    cells = [row["operation"], str(row["calls"]), number(row["flops"] / 1e9), number(row["bytes"] / 1e9),
             number(row["flops"] / row["bytes"]) if row["bytes"] else ""]
    for gpu in gpus:
        time = row[gpu.name]
        target = time["target_s"]
        cells += [time["bound"], number(1e3 * time["roof_s"]), "" if target is None else number(1e3 * target)]
    return cells


def text_of(counted, others):
    s = counted["section"]
    text = (f"\nA section of {s['parameters'] / 1e9:.3f} billion weights, bf16, with {s['samples']} sample of {s['tokens']} tokens: "
            f"{model_flops(counted) / 1e12:.1f} TFLOP.\n{s['layers']} layers of width {s['width']}, {s['heads']} heads of {s['head_dim']}, "
            f"{s['kv_heads']} kv heads, MLP {s['mlp']}, vocabulary {s['vocabulary']}, tied.\n\n")
    text += line_of(["", "at the roof, ms", "of that bound by memory", "share of the bf16 peak", "50% of the peak demands, ms",
                     "attention without tensor cores, at 20 TFLOP/s, adds, ms", "optimizer, once a step, ms"]) + "|" + "---|" * 7 + "\n"
    for gpu in GPUS:
        total = summary(counted, gpu)
        ms = {key: number(1e3 * value) for key, value in total.items() if key.endswith("_s")}
        text += line_of([gpu.name, ms["roof_s"], ms["memory_bound_s"], f"{total['peak_share']:.0%}", ms["peak_share_s"],
                         ms["attention_without_tensor_cores_s"], ms["update_s"]])
    for phase in PHASES:
        head = [f"{phase}: {HEADER[0]}", *HEADER[1:]]
        text += "\n" + line_of(head) + "|" + "---|" * len(head) + "\n"
        text += "".join(line_of(cells_of(row)) for row in rows_of(counted, phase))
    head = [f"elsewhere: {HEADER[0]}", "where", *HEADER[1:]]
    text += "\n" + line_of(head) + "|" + "---|" * len(head) + "\n"
    for name, phase, row in others_of(counted, others):
        first, *rest = cells_of(row)
        text += line_of([first, f"{name}, {phase}", *rest])
    return text + "\n"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="section_costs of a build folder")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "cuda.md")
    options = parser.parse_args(arguments)
    counted = costs(options.program)
    others = {name: costs(options.program, *words) for name, words in OTHERS.items()}
    if options.json:
        print(json.dumps({"section": counted["section"], "model_flops": model_flops(counted),
                          **{gpu.name: summary(counted, gpu) for gpu in GPUS},
                          **{phase: rows_of(counted, phase) for phase in PHASES},
                          "elsewhere": [{"section": name, "phase": phase, **row} for name, phase, row in others_of(counted, others)]}, indent=1))
        return 0
    return document.write_or_check(options.document, "roofline", text_of(counted, others), options.check, "scripts/cuda/roofline.py")


if __name__ == "__main__":
    sys.exit(main())
