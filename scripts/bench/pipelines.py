#!/usr/bin/env python3
"""Compares steps of pipelines on the emulated H100 cluster with their closed forms and with the simulator.

--forms: text alone, in micro-batches of one length: m c + (p - 1) c / v seconds for m micro-batches on p pipeline ranks of v chunks, c
being the seconds of a micro-batch on the slowest rank; with one chunk, where stages may differ, (m - 1) c and the sum over the stages.
--sixty-four: a deck of 64 ranks with pp 4 under each policy.
--fed: how much longer a step with pictures is than the same step behind an encoder that takes next to no time, by encoder load and fan-out.
Without an option, all three."""

import argparse
import pathlib

import numpy as np
from emulated import emulate, samples, simulated
from runs import ROOT

# A small vocabulary, so that the head costs next to nothing and stages of equally many layers are equal.
EVEN = ["model.llm.vocabulary=300", "section.vision.layout.dp=1", "section.vision.layout.tp=1", "section.language.layout.dp=1"]


def layout(section, **degrees):
    return [f"section.{section}.layout.{key}={value}" for key, value in degrees.items()]


def compare(ranks, values, options):
    """Returns the mean times of tasks in a step, emulated and simulated, in seconds of the cluster, and the answers of the simulations. The
    first step is left out."""
    _, spans = emulate(ranks, values, f"{options.output}/run", options.scale, options.steps)
    answers = [simulated(values, "--step", step) for step in range(2, options.steps + 1)]
    return spans[1:].mean(), mean(answers, "makespan_s"), answers


def mean(answers, *keys):
    """Returns the mean of a number in the answers; `keys` lead to it."""
    total = 0
    for answer in answers:
        for key in keys:
            answer = answer[key]
        total += answer
    return total / len(answers)


def forms(options):
    data = samples(f"{options.output}/even.h5", 64, 0, 1, "--tokens", "4000", "--longest", "512", "--sigma", "0.01")
    print(f"{'p':>2} {'v':>2} {'m':>3}{'closed form s':>15}{'simulated':>11}{'emulated':>10}{'worst ratio':>13}")
    worst = 0
    for p, v in ((2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (4, 3)):
        for m in (1, 4, 8, 32):
            values = [data, *EVEN, f"data.global_batch={m}", *layout("language", pp=p, chunks=v), "model.llm.layers=24"]
            emulated, planned, answers = compare(1 + p, values, options)
            stages = answers[0]["sections"]["language"]["stages"]
            c = max(sum(s["work_s"] for s in stages[rank::p]) for rank in range(p)) / m
            form = m * c + (p - 1) * c / v if m >= p else p * c + (m - 1) * c / v
            if v == 1:  # exact for unlike stages
                form = (m - 1) * c + sum(s["work_s"] for s in stages) / m
            ratio = max((planned / form, emulated / form), key=lambda r: abs(r - 1))
            worst = max(worst, abs(ratio - 1))
            print(f"{p:2} {v:2} {m:3}{form:15.4f}{planned / form:11.4f}{emulated / form:10.4f}{ratio:13.4f}", flush=True)
    print(f"at most {worst:.1%} from the closed form")


def sixty_four(options):
    data = samples(f"{options.output}/samples.h5", 1024)
    values = [data, *layout("vision", dp=4, tp=4), *layout("language", dp=12, pp=4), "data.global_batch=384", "section.language.micro_batch=2",
              "model.vit.layers=6", "section.vision.window=24"]
    print(f"{'policy':10}{'emulated s':>12}{'simulated':>11}{'ratio':>8}{'gap':>8}")
    for policy in ("fifo", "lpt", "wavefront"):
        emulated, planned, answers = compare(64, [*values, f"schedule.policy={policy}"], options)
        print(f"{policy:10}{emulated:12.4f}{planned:11.4f}{emulated / planned:8.3f}{mean(answers, 'gap'):8.1%}", flush=True)


def fed(options):
    """The same samples, and the same behind an encoder that takes next to no time."""
    print(f"{'fan-out':>7} {'tp':>2} {'layers':>6} {'load':>5} {'policy':10}{'simulated s':>12}{'text alone':>12}{'ratio':>8}{'gap':>7}{'emulated':>10}")
    data = samples(f"{options.output}/fed.h5", 2048)
    for fanout, tp in ((1, 1), (4, 1), (1, 2)):
        for layers in (3, 5) if fanout == 4 else (12, 20) if tp == 1 else (8, 14):
            values = [data, *layout("vision", dp=1, tp=tp), *layout("language", dp=fanout, pp=4, tp=tp), f"data.global_batch={64 * fanout}",
                      "section.language.micro_batch=4", f"model.vit.layers={layers}", "section.vision.window=64"]
            text = [*values, "model.vit.layers=1", "model.vit.width=16", "model.vit.heads=2", "model.vit.head_dim=8", "model.vit.mlp=16"]
            for policy in ("wavefront", "fifo"):
                policy_of = [f"schedule.policy={policy}"]
                emulated, planned, answers = compare(tp + 4 * tp * fanout, [*values, *policy_of], options)
                alone = mean([simulated([*text, "schedule.policy=wavefront"], "--step", step) for step in range(2, options.steps + 1)], "makespan_s")
                load = mean(answers, "sections", "vision", "work_s") / mean(answers, "sections", "language", "work_s")
                print(f"{fanout:7} {tp:2} {layers:6} {load:5.2f} {policy:10}{planned:12.4f}{alone:12.4f}{planned / alone:8.3f}{mean(answers, 'gap'):7.1%}"
                      f"{emulated / planned:10.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"forms": forms, "sixty_four": sixty_four, "fed": fed}
    for part in parts:
        parser.add_argument(f"--{part.replace('_', '-')}", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--scale", type=float, default=8, help="seconds of this machine per second of the cluster")
    parser.add_argument("--output", default="runs/bench-pipelines")
    options = parser.parse_args()
    pathlib.Path(ROOT / options.output).mkdir(parents=True, exist_ok=True)
    chosen = [part for part in parts if getattr(options, part)]
    for part in chosen or parts:
        parts[part](options)


if __name__ == "__main__":
    main()
