#!/usr/bin/env python3
"""Compares the held-out loss of the student of inputs/distill.toml with and without its teacher."""

import argparse
import time

from runs import evaluate, train

TEACHER, DISTILL = "inputs/teacher.toml", "inputs/distill.toml"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--output", default="runs/bench-distillation")
    options = parser.parse_args()
    teacher = f"{options.output}/teacher"
    start = time.monotonic()
    train(2, TEACHER, teacher, [])
    print(f"teacher: held-out loss {evaluate(TEACHER, teacher)['loss']:.3f} after {time.monotonic() - start:.0f} s", flush=True)
    print("seed  student alone  with its teacher")
    for seed in options.seeds:
        losses = []
        for without in (["section.student.distill.alpha=0"], []):
            values = [f"section.teacher.weights={teacher}", f"run.seed={seed}", *without]
            train(3, DISTILL, f"{options.output}/student", values)
            losses.append(evaluate(DISTILL, f"{options.output}/student")["loss"])
        print(f"{seed:4}  {losses[0]:13.3f}  {losses[1]:16.3f}", flush=True)


if __name__ == "__main__":
    main()
