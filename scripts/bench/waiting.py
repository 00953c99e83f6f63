#!/usr/bin/env python3
"""Measures how well the vision section overlaps with the language section on two cores, with one rank and core each.

In every round each policy runs once, and the language section alone: one rank on one core, on the same samples with as many text
tokens in place of the pictures. Prints the medians over the rounds of: the work of the vision section over that of the language
section, the share of the step that the language section waits, the step over the time that the language section computes in the same
run, and the step over the step of the language section alone.
"""

import argparse
import os
import pathlib
import re
import shutil
import statistics
import sys

import h5py
import numpy as np
from runs import ROOT, train

sys.path.insert(0, str(ROOT / "scripts/data"))
import sample_file  # noqa: E402
import sample_reader  # noqa: E402

DECK = ROOT / "inputs/vlm_glyphs.toml"
SAMPLES = "data/glyphs-train.h5"
TOKEN_PIXELS = 16  # side of the square that becomes a token: 2 x 2 patches of 8 x 8
FILLER = ord(" ")
LANGUAGE = ["section.language.layout.dp=1", "section.language.micro_batch=8", "data.global_batch=128", "checkpoint.every=0"]
VISION = ["section.vision.micro_batch=8", "section.vision.window=8", "model.glyph-vision.width=128", "model.glyph-vision.heads=4",
          "model.glyph-vision.mlp=320"]


def without_pictures(source, target):
    """Writes the same samples with a text token for every token that a picture would become."""
    with h5py.File(source) as file:
        vocabulary, marker = int(file.attrs["vocabulary"]), int(file.attrs["marker"])
    writer = sample_file.SampleWriter(target, vocabulary=vocabulary, marker=marker)
    for sample in sample_reader.read_samples(source):
        pictures = iter(sample.pictures)
        flat = sample_file.Sample()
        for token, weight, flag in zip(sample.tokens.tolist(), sample.weights.tolist(), sample.flags.tolist()):
            if token != marker:
                flat.add([token], weight, flag)
                continue
            height, width, _ = next(pictures).shape
            flat.add([FILLER] * (-(-height // TOKEN_PIXELS) * -(-width // TOKEN_PIXELS)), 0.0)
        writer.add(flat)
    writer.close()


def language_deck(target):
    """Writes the deck without its vision section and edge."""
    head, *tables = re.split(r"(?m)^(?=\[\[)", DECK.read_text())
    target.write_text(head + next(t for t in tables if t.startswith("[[section]]") and 'name = "language"' in t))


class Bench:
    def __init__(self, options):
        self.options = options
        self.folder = pathlib.Path(options.output)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        without_pictures(SAMPLES, self.folder / "without-pictures.h5")
        language_deck(self.folder / "language.toml")
        self.core = str(min(os.sched_getaffinity(0)))

    def run(self, ranks, deck, values, before=()):
        skip = self.options.skip
        rows = train(ranks, deck, self.folder / "run", [*LANGUAGE, f"train.steps={self.options.steps}", *values], before=before)
        steps, timeline = rows["steps"], rows["timeline"]
        late = timeline["step"] > skip
        busy = [float(np.sum((timeline["end_s"] - timeline["start_s"])[late & (timeline["section"] == s)])) for s in (0, 1)]
        waits = float(np.sum(timeline["wait_s"][late & (timeline["section"] == 1)]))
        return {"step": float(steps["time_s"][skip:].sum()), "tokens": int(steps["tokens"].sum()), "vision": busy[0], "language": busy[1],
                "waits": waits}

    def alone(self):
        return self.run(1, self.folder / "language.toml", [f"data.train={self.folder / 'without-pictures.h5'}"], ("taskset", "-c", self.core))

    def policy(self, name, layers):
        return self.run(2, DECK, [*VISION, f"schedule.policy={name}", f"model.glyph-vision.layers={layers}"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--skip", type=int, default=5, metavar="N", help="leave the first N steps out")
    parser.add_argument("--vision-layers", type=int, nargs="+", default=[8, 11, 14])
    parser.add_argument("--output", default="runs/bench-waiting")
    options = parser.parse_args()
    os.chdir(ROOT)
    bench = Bench(options)
    print("vision layers  policy     vision/language  language waits  step/language busy  step/language alone")
    for layers in options.vision_layers:
        rows = {"wavefront": [], "fifo": []}
        for _ in range(options.rounds):
            alone = bench.alone()
            for policy in rows:
                run = bench.policy(policy, layers)
                if run["tokens"] != alone["tokens"]:
                    sys.exit(f"{run['tokens']} tokens with pictures, {alone['tokens']} without")
                rows[policy].append((run["vision"] / run["language"], run["waits"] / run["step"], run["step"] / run["language"],
                                     run["step"] / alone["step"]))
        for policy, row in rows.items():
            work, waiting, busy, ratio = (statistics.median(column) for column in zip(*row))
            print(f"{layers:13}  {policy:9}  {work:15.2f}  {waiting:13.1%}  {busy:18.3f}  {ratio:19.3f}", flush=True)


if __name__ == "__main__":
    main()
