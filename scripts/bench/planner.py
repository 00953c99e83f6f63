#!/usr/bin/env python3
"""Times `maestro plan` on decks of two, three and eight sections, on up to 16,384 ranks of inputs/clusters/h100.toml.

Each line has the seconds that the command used of one core, how many layouts fit, how many were looked at and
simulated, whether the plan is proved or how much faster another may be, the gain over the best one layout in
data order (of the order, and of the layouts), and what the plan loses where rates are wrong. Names of cases as
arguments run these alone.
"""

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def block(text, kind, name):
    """The table [kind.NAME], or the first [[kind]] with this name, of a deck."""
    for part in re.split(r"\n(?=\[\[|\[run\]|\[data\]|\[data\.|\[train\]|\[optimizer\]|\[checkpoint\]|\[model\.|\[cluster)", text):
        if part.startswith(f"[{kind}.{name}]") or (part.startswith(f"[[{kind}]]") and f'name = "{name}"' in part):
            return part.strip() + "\n"
    raise ValueError(f"no {kind} {name}")


def head(text, batch):
    """Everything before the models, with another batch."""
    return re.sub(r"global_batch = \d+", f"global_batch = {batch}", text[: text.index("[model.")])


def three(batch):
    """Qwen3-VL-8B, frozen, teaches another one behind the same frozen encoder."""
    vlm = (ROOT / "inputs/plan_vlm.toml").read_text()
    text = head(vlm, batch) + block(vlm, "model", "qwen3-vl-vision") + block(vlm, "model", "qwen3-vl-text")
    for name, model in (("vision", "qwen3-vl-vision"), ("teacher", "qwen3-vl-text"), ("student", "qwen3-vl-text")):
        frozen = "" if name == "student" else 'mode = "forward"\nweights = "random"\n'
        text += f'[[section]]\nname = "{name}"\nmodel = "{model}"\n{frozen}micro_batch = 1\n[section.layout]\ndp = 1\ntp = {1 if name == "vision" else 4}\n'
        if name == "student":
            text += "[section.distill]\nalpha = 0.9\n"
    for sender, receiver, tensor in (("vision", "teacher", "embeddings"), ("vision", "student", "embeddings"), ("teacher", "student", "hidden")):
        text += f'[[edge]]\nfrom = "{sender}"\nto = "{receiver}"\ntensor = "{tensor}"\n'
    return text


def eight(batch):
    """Two vision-language models, and two pairs of teacher and student, which train side by side."""
    vlm = (ROOT / "inputs/plan_vlm.toml").read_text()
    distill = (ROOT / "inputs/plan_distill.toml").read_text()
    text = head(vlm, batch)
    for name in ("qwen3-vl-vision", "qwen3-vl-text"):
        text += block(vlm, "model", name)
    for name in ("qwen3-32b", "qwen3-8b"):
        text += block(distill, "model", name)
    for k in (1, 2):
        for name, model, more in (("vision", "qwen3-vl-vision", ""), ("language", "qwen3-vl-text", ""), ("teacher", "qwen3-32b", 'mode = "forward"\nweights = "random"\n'), ("student", "qwen3-8b", "")):
            text += f'[[section]]\nname = "{name}{k}"\nmodel = "{model}"\n{more}micro_batch = 1\n[section.layout]\ndp = 1\ntp = {1 if name == "vision" else 4}\n'
            if name == "student":
                text += "[section.distill]\nalpha = 0.9\n"
        text += f'[[edge]]\nfrom = "vision{k}"\nto = "language{k}"\ntensor = "embeddings"\n'
        text += f'[[edge]]\nfrom = "teacher{k}"\nto = "student{k}"\ntensor = "hidden"\n'
    return text


def deck(name):
    return lambda: (ROOT / f"inputs/{name}.toml").read_text()


CASES = {
    "vlm-8": (deck("emulated_vlm"), 8),
    "vlm-64": (deck("emulated_vlm"), 64),
    "qwen3-vl-8b-8": (deck("plan_vlm"), 8),
    "qwen3-vl-30b-a3b-64": (deck("plan_vlm_moe"), 64),
    "distillation-16": (deck("plan_distill"), 16),
    "three-1024": (lambda: three(2048), 1024),
    "eight-1024": (lambda: eight(2048), 1024),
    "three-16384": (lambda: three(16384), 16384),
}


def run(binary, name, folder):
    text, ranks = CASES[name]
    path = Path(folder) / f"{name}.toml"
    path.write_text(text())
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run([binary, "plan", path, "--cluster", "inputs/clusters/h100.toml", "--ranks", str(ranks)], cwd=ROOT, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if result.returncode != 0:
        sys.exit(f"{name}: {result.stderr.strip()}")
    plan = json.loads(result.stdout.splitlines()[-1])
    best, one = plan["plans"][0], plan["one_size"]
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    proof = "proved" if plan["proved"] else f"another at most {plan['gap']:.0%} faster"
    gain = "no one layout fits" if one is None else f"{one['step_s'] / best['step_s']:.2f} = {one['step_s'] / one['wavefront_step_s']:.2f} x {one['wavefront_step_s'] / best['step_s']:.2f}"
    print(f"{name:20} {seconds:6.1f} s {plan['layouts']:9.3g} layouts, {plan['bounded']} looked at, {plan['simulated']} simulated, {proof}; gain {gain}; worst loss {best.get('worst', 0):.1%}; {best['ranks']} ranks, {best['step_s']:.4g} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="default: all")
    parser.add_argument("--binary", default=ROOT / "build/cpu-release/maestro")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.cases or CASES:
            run(arguments.binary, name, folder)


if __name__ == "__main__":
    main()
