#!/usr/bin/env python3
"""Checks what `maestro plan` promises of the decks that it writes.

written   simulated steps take the planned time, and a dry run on the same cluster has the planned windows and memory
memory    real steps allocate what was planned, and have the losses of the deck before it was planned (fp32)
emulated  three plans for 64 ranks, whose steps differ by 3% or more, on emulated ranks: times and their order
bias      emulated over simulated steps of 20 plans for 8 to 20 ranks, and the mean of the ratios

Names of cases as arguments run these alone.
"""

import argparse
import json
import re
import sys

import h5py
import numpy as np
from emulated import samples
from memory import LINE
from runs import BINARY, ROOT, call, mpirun, plan, planned_values, simulate, train, words_of_layout

H100 = "inputs/clusters/h100.toml"
CPUS = "inputs/clusters/this_machine.toml"
VLM = "inputs/emulated_vlm.toml"
WRITTEN = [("vlm_glyphs", CPUS, (2, 4)), ("distill", CPUS, (3, 4)), ("layouts_moe", CPUS, (4,)), ("emulated_vlm", H100, (8, 20, 64)),
           ("plan_vlm", H100, (8, 16)), ("plan_distill", H100, (8, 16))]
TEACHER = ["section.teacher.weights=random"]
# Name, ranks, values of --set, keys that are fixed.
REAL = [("vlm_glyphs", 2, [], []), ("vlm_glyphs", 4, [], []), ("vlm_glyphs", 3, [], ["section.language.colocate_with"]),
        ("distill", 3, TEACHER, []), ("distill", 4, TEACHER, ["section.student.colocate_with"]), ("layouts_moe", 4, [], []),
        ("layouts_moe", 4, [], ["section.language.layout"]), ("layouts_deep", 4, ["section.language.layout.pp=2"], ["section.language.layout.pp"])]
APART = ["section.language.colocate_with"]
EXPERTS = ["model.llm.experts=16", "model.llm.experts_per_token=4", "model.llm.expert_mlp=1408"]
FAN_IN = ["model.vit.layers=88", "model.llm.layers=4", "data.global_batch=128"]


def pipeline(pp):
    return [f"section.language.layout.pp={pp}", "data.global_batch=128"], ["section.language.layout.pp"]


# What it is, deck, ranks, values of --set, keys that are fixed.
BIAS = [
    ("encoder", "emulated_vlm", 8, [], []),
    ("encoder", "emulated_vlm", 12, [], []),
    ("encoder", "emulated_vlm", 16, [], []),
    ("encoder", "emulated_vlm", 20, [], []),
    ("encoder, seed 2", "emulated_vlm", 10, ["run.seed=2"], []),
    ("encoder, seed 3", "emulated_vlm", 14, ["run.seed=3"], []),
    ("frozen encoder", "emulated_vlm", 16, ["section.vision.mode=forward", "section.vision.weights=random"], []),
    ("separate ranks", "emulated_vlm", 8, [], APART),
    ("separate ranks", "emulated_vlm", 12, [], APART),
    ("separate ranks, seed 2", "emulated_vlm", 20, ["run.seed=2"], APART),
    ("pipeline of 2", "emulated_vlm", 12, *pipeline(2)),
    ("pipeline of 4", "emulated_vlm", 16, *pipeline(4)),
    ("fan-in", "emulated_vlm", 10, FAN_IN, APART),
    ("fan-in", "emulated_vlm", 16, FAN_IN, APART),
    ("experts", "emulated_vlm", 8, EXPERTS, []),
    ("experts, ep 4", "emulated_vlm", 16, [*EXPERTS, "section.language.layout.ep=4"], ["section.language.layout.ep"]),
    ("Qwen3-VL-8B", "plan_vlm", 8, [], []),
    ("Qwen3-VL-8B", "plan_vlm", 16, [], []),
    ("distillation", "plan_distill", 8, [], []),
    ("distillation, separate ranks", "plan_distill", 12, [], ["section.student.colocate_with"]),
]


def dry_run(deck, cluster):
    return json.loads(call([BINARY, "train", deck, "--dry-run", "--json", "--cluster", cluster]).splitlines()[-1])


def written(options):
    print(f"{'deck':14}{'ranks':>6}{'planned step s':>16}{'simulated / planned - 1':>25}{'dry run: step 1':>19}{'windows':>9}{'memory differs':>16}")
    for name, cluster, numbers in WRITTEN:
        for ranks in numbers:
            deck = f"{options.output}/{name}-{ranks}.toml"
            found = plan(f"inputs/{name}.toml", cluster, ranks, deck, TEACHER if name == "distill" else ())
            best = found["plans"][0]
            steps = [simulate(deck, [], "--cluster", cluster, "--step", step) for step in range(1, found["steps"] + 1)]
            facts = dry_run(deck, cluster)
            bytes_of, windows = [], []
            for section, layout in best["layout"].items():
                dry = facts["sections"][section]
                here = max(rank["memory_bytes"] for rank in facts["placement"] if section in rank["sections"])
                bytes_of += [best["memory_bytes"][section] - other for other in (dry["memory_bytes"], here)]
                windows.append(layout["window"] == dry["window"] == steps[0]["sections"][section]["window"])
            bytes_of.append(max(best["memory_bytes"].values()) - steps[0]["peak_memory_bytes"])
            print(f"{name:14}{best['ranks']:6}{best['step_s']:16.6g}{np.mean([s['step_s'] for s in steps]) / best['step_s'] - 1:25.1e}"
                  f"{facts['step_s'] / steps[0]['step_s'] - 1:19.1e}{'equal' if all(windows) else 'DIFFER':>9}"
                  f"{max(map(abs, bytes_of)):14.0f} B", flush=True)


def memory(options):
    print(f"{'deck':14}{'ranks':>6}{'rank':>5}{'promised MB':>12}{'run / promised':>15}{'buffers: planned / allocated':>30}{'windows':>9}"
          f"{'losses differ by':>18}   plan")
    before = {}
    for number, (name, ranks, values, fixed) in enumerate(REAL):
        cluster = f"{options.output}/cluster-{ranks}.toml"
        if not (ROOT / cluster).exists():
            mpirun(ranks, "calibrate", "--out", cluster)
        deck, source = f"{options.output}/real-{number}.toml", f"inputs/{name}.toml"
        short = ["train.steps=3", "train.log_every=1", "checkpoint.every=0"]
        best = plan(source, cluster, ranks, deck, [*values, *short], fixed)["plans"][0]
        facts = dry_run(deck, cluster)
        if (name, *values) not in before:
            enough = simulate(source, values, "--cluster", H100)["ranks"]
            before[(name, *values)] = train(enough, source, f"{options.output}/before", [*values, *short])["steps"]["loss"]
        run = f"{options.output}/real"
        losses = train(best["ranks"], deck, run, [])["steps"]["loss"]
        difference = np.abs(losses / before[(name, *values)] - 1).max()
        with h5py.File(ROOT / run / "metrics.h5") as file:
            windows = iter(file.attrs["windows"].decode().splitlines())  # of every stage
        of_stages = [[int(next(windows)) for _ in range(layout["pp"] * layout["chunks"])] for layout in best["layout"].values()]
        same = [of_section[0] for of_section in of_stages] == [facts["sections"][section]["window"] for section in best["layout"]]
        for rank, planned, buffers, allocated, *_ in (map(float, line) for line in LINE.findall((ROOT / run / "log.txt").read_text())):
            promised = facts["placement"][int(rank)]["memory_bytes"]
            print(f"{name:14}{best['ranks']:6}{rank:5.0f}{promised / 1e6:12.1f}{planned * 2**20 / promised:15.4f}{buffers / allocated:30.4f}"
                  f"{'equal' if same else 'DIFFER':>9}{difference:18.1e}   {words_of_layout(best['layout'])}", flush=True)


def simulated_steps(deck, options):
    return [simulate(deck, [], "--cluster", H100, "--step", step) for step in range(1, options.steps + 1)]


def emulate(deck, found, options, seconds, output):
    """Runs a plan's deck, and prints emulated and simulated steps without the first one. `seconds`: of a step on this machine. Returns the
    sum of the emulated steps, and its ratio to the simulated ones."""
    steps = simulated_steps(deck, options)
    predicted = np.array([step["step_s"] for step in steps])
    scale = max(seconds / predicted.mean(), 4)  # tasks of 20 ms or more are measured well
    values = ["run.device=emulated", f"emulated.cluster={H100}", f"emulated.time_scale={scale:.6g}", "run.timeout_s=600",
              f"train.steps={options.steps}", "train.log_every=1"]
    rows = train(found["ranks"], deck, output, values)
    measured, tasks = rows["steps"]["time_s"] / scale, rows["timeline"]
    ratios = (measured / predicted)[1:]
    after = tasks["step"] > 1
    worked = (tasks["end_s"] - tasks["start_s"] - tasks["weights_s"])[after].sum() / scale
    work = sum(stage["work_s"] * found["layout"][name]["dp"] for step in steps[1:] for name, section in step["sections"].items()
               for stage in section.get("stages", [section]))
    print(f"{found['ranks']:6}{predicted[1:].mean():18.5f}{measured[1:].mean():11.5f}{measured[1:].sum() / predicted[1:].sum():8.4f}"
          f"{ratios[np.abs(ratios - 1).argmax()]:12.4f}{worked / work:13.4f}   {words_of_layout(found['layout'])}", flush=True)
    return measured[1:].sum(), measured[1:].sum() / predicted[1:].sum()


HEAD = f"{'ranks':>6}{'simulated step s':>18}{'emulated':>11}{'ratio':>8}{'worst step':>12}{'tasks alone':>13}   plan"


def unlike(plans, count=3, apart=1.03):
    """Of pairs of seconds and anything, in ascending order, the first `count` of which each has at least `apart` times the seconds of the
    one before."""
    chosen = []
    for candidate in plans:
        if not chosen or candidate[0] >= apart * chosen[-1][0]:
            chosen.append(candidate)
    if len(chosen) < count:
        sys.exit(f"of {len(plans)} plans only {len(chosen)} differ by {apart - 1:.0%}; use a larger --top")
    return chosen[:count]


def emulated(options):
    data = samples(f"{options.output}/samples.h5", 1024)
    best = plan(VLM, H100, 64, f"{options.output}/best.toml", [data], (), "--top", str(options.top))["plans"]
    simulated = []
    for number, found in enumerate(best):
        deck = f"{options.output}/emulated-{number}.toml"
        again = plan(VLM, H100, found["ranks"], deck, [data, *planned_values(found["layout"])], ["section"])["plans"][0]
        if again["step_s"] != found["step_s"]:
            sys.exit(f"written by itself, the plan takes {again['step_s']} s, not {found['step_s']}: {words_of_layout(found['layout'])}")
        # A plan is chosen by its first steps, one of 256 samples. Those that are emulated have other samples.
        simulated.append((sum(step["step_s"] for step in simulated_steps(deck, options)[1:]), number, found))
    simulated.sort(key=lambda each: each[:2])
    place = [number for _, number, _ in simulated].index(0)
    slower = simulated[place][0] / simulated[0][0] - 1
    print(f"in these steps the best plan is at place {place + 1} of {len(simulated)}, {slower:.1%} slower than the first")
    print(HEAD)
    times = [emulate(f"{options.output}/emulated-{number}.toml", found, options, options.large_seconds, f"{options.output}/emulated")[0]
             for _, number, found in unlike(simulated)]
    print("the order is kept" if times == sorted(times) else "the order is NOT kept")


def bias(options):
    data = samples(f"{options.output}/samples.h5", 1024)
    print(f"{'deck':32}" + HEAD)
    ratios = []
    for number, (name, source, ranks, values, fixed) in enumerate(BIAS):
        if options.only and not re.search(options.only, f"{number} {name}"):
            continue
        deck = f"{options.output}/bias-{number}.toml"
        mixed = [data] if source == "emulated_vlm" else []
        best = plan(f"inputs/{source}.toml", H100, ranks, deck, [*mixed, *values], fixed)["plans"][0]
        print(f"{name:32}", end="", flush=True)
        ratios.append(emulate(deck, best, options, options.seconds, f"{options.output}/bias")[1])
    off = np.array(ratios) - 1
    print(f"{len(off)} decks: mean of emulated / simulated - 1 is {off.mean():+.2%}, the worst {off[np.abs(off).argmax()]:+.2%}")


CASES = {"written": written, "memory": memory, "emulated": emulated, "bias": bias}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="default: all")
    parser.add_argument("--steps", type=int, default=4, help="of an emulated run; the first does not count")
    parser.add_argument("--seconds", type=float, default=4, help="seconds of this machine for an emulated step of `bias`")
    parser.add_argument("--large-seconds", type=float, default=16, help="the same for the 64 ranks of `emulated`")
    parser.add_argument("--top", type=int, default=12, help="plans from which `emulated` chooses")
    parser.add_argument("--only", help="of `bias`: decks whose number and name match this pattern")
    parser.add_argument("--output", default="runs/bench-planned")
    options = parser.parse_args()
    (ROOT / options.output).mkdir(parents=True, exist_ok=True)
    for name in options.cases or CASES:
        print(f"{name}:")
        CASES[name](options)


if __name__ == "__main__":
    main()
