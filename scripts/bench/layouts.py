#!/usr/bin/env python3
"""Compares losses, gradient norms and first gradients of many layouts with those of one rank, in fp32 or fp64.

Prints the largest relative differences over the steps. For the gradients of step 1 this is the largest difference of a parameter over
the norm of its gradient, with the name of the parameter. In fp64 there are no checkpoints, from which they are read.
"""

import argparse
import time

from layout_cases import CASES, IN_DOUBLE, differences, differences_of_steps, make_samples, remove_checkpoints, same_choices
from runs import ROOT, train


def run(case, output, precision):
    saving = IN_DOUBLE if precision == "fp64" else ["checkpoint.every=1", f"checkpoint.keep={case.steps}"]
    values = [*case.values, f"train.steps={case.steps}", *saving]
    train(case.ranks, f"inputs/{case.deck}.toml", output, values)
    remove_checkpoints(ROOT / output)
    return ROOT / output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "fp64"])
    parser.add_argument("--output", default="runs/bench-layouts")
    options = parser.parse_args()
    cases = [c for c in CASES if options.only in f"{c.deck} {c.name}"]
    make_samples(ROOT)
    references, worst, free = {}, {}, 0
    compared = ["loss", "grad_norm", *(["gradient"] if options.precision == "fp32" else [])]
    print(f"{'deck':12} ranks " + "".join(f"{name:>10}" for name in compared) + "  seconds  layout")
    for case in cases:
        key = (case.deck, case.model)
        if key not in references:
            references[key] = run(case.reference, f"{options.output}/reference-{len(references)}", options.precision)
        begin = time.monotonic()
        directory = run(case, f"{options.output}/case", options.precision)
        if options.precision == "fp64":
            found = differences_of_steps(directory, references[key])
        else:
            found = differences(directory, references[key], case.sections)
        print(f"{case.deck:12} {case.ranks:5} " + "".join(f"{found[name]:10.1e}" for name in compared) + f" {time.monotonic() - begin:8.1f}  {case.name}"
              + (f" ({found['worst']})" if "worst" in found else ""), flush=True)
        worst = {name: max(worst.get(name, 0), found[name]) for name in compared}
        free += not same_choices(directory, references[key])
    print(f"{len(cases)} layouts, {free} of them with rows that chose other experts, at most: " + ", ".join(f"{name} {value:.1e}" for name, value in worst.items()))


if __name__ == "__main__":
    main()
