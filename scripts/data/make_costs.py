#!/usr/bin/env python3
"""Draws log-normal task times for the sections of a deck, for `maestro simulate --costs`.

Every sample has work in the sections without an outgoing edge. The other sections process a fraction of the samples (--share), and
their work per lane is a fraction of that of the last section (--load); a replica of `layout.pp` pipeline ranks has as many lanes. A
backward takes twice as long as its forward. With --by-stage a section's time is divided among its stages as `layout.stages` divides
the layers, or evenly, and each line is of one stage."""

import argparse
import math
import pathlib
import random
import sys

if sys.version_info < (3, 11):
    sys.exit(f"{sys.argv[0]}: {sys.executable} is older than Python 3.11; use Debian's: /usr/bin/python3 {' '.join(sys.argv)}")
import tomllib


def draw(deck, *, per_replica, share, load, sigma, seed):
    """Returns rows (sample, section, forward_s, backward_s). `share` and `load` apply to every section that feeds another."""
    sections = {}  # name: (replicas, lanes, frozen)
    for section in deck["section"]:
        layout = section.get("layout", {})
        dp = layout.get("dp", 1)
        sections[section["name"]] = dp, dp * layout.get("pp", 1), section.get("mode", "train") == "forward"
    upstream = {e["from"] for e in deck.get("edge", [])}
    last = [name for name in sections if name not in upstream]
    if not last:
        raise SystemExit("every section has an outgoing edge")
    samples = per_replica * max(sections[name][0] for name in last)
    times = {}
    for name in sections:  # one random stream per section, so that the samples of a small share are among those of a larger one
        dice = random.Random(f"{seed}/{name}")
        drawn = [(math.exp(sigma * dice.gauss(0, 1)), dice.random()) for _ in range(samples)]
        times[name] = {sample: t for sample, (t, lot) in enumerate(drawn) if name in last or lot < share}
    work = {name: sum(times[name].values()) * (1 if frozen else 3) / lanes for name, (_, lanes, frozen) in sections.items()}
    most = max(work[name] for name in last)
    for name in upstream:
        if work[name] > 0:
            times[name] = {sample: t * load * most / work[name] for sample, t in times[name].items()}
    return [(sample, name, times[name][sample], 0.0 if sections[name][2] else 2 * times[name][sample])
            for sample in range(samples) for name in sections if sample in times[name]]


def by_stage(deck, rows):
    """Returns rows (sample, section, forward_s, backward_s, stage) of the stages of every section."""
    shares = {}
    for section in deck["section"]:
        layout = section.get("layout", {})
        count = layout.get("pp", 1) * layout.get("chunks", 1)
        layers = layout.get("stages", [1] * count)
        if len(layers) != count:
            raise SystemExit(f"section {section['name']}: layout.stages has {len(layers)} numbers; pp x chunks is {count}")
        shares[section["name"]] = [n / sum(layers) for n in layers]
    return [(sample, name, f * share, b * share, stage) for sample, name, f, b in rows for stage, share in enumerate(shares[name])]


def write(path, rows):
    """Writes rows of draw() or of by_stage(), which have a column more."""
    header = ["sample", "section", "forward_s", "backward_s", "stage"][: len(rows[0])]
    lines = [",".join(header)]
    lines += [",".join([str(sample), name, f"{f:.9g}", f"{b:.9g}", *map(str, stage)]) for sample, name, f, b, *stage in rows]
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deck")
    parser.add_argument("costs", help="CSV file to write")
    parser.add_argument("--per-replica", type=int, default=16, help="samples per replica of the last section")
    parser.add_argument("--share", type=float, default=1 / 3, help="fraction of the samples with work in the other sections")
    parser.add_argument("--load", type=float, default=0.9, help="work per lane of the other sections over that of the last")
    parser.add_argument("--sigma", type=float, default=0.6, help="standard deviation of the logarithm of the times")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--by-stage", action="store_true", help="write the times of each stage, with a column `stage`")
    options = parser.parse_args()
    with open(options.deck, "rb") as file:
        deck = tomllib.load(file)
    rows = draw(deck, per_replica=options.per_replica, share=options.share, load=options.load, sigma=options.sigma, seed=options.seed)
    if options.by_stage:
        rows = by_stage(deck, rows)
    write(options.costs, rows)
    print(f"{options.costs}: {len(rows)} tasks of {len({row[0] for row in rows})} samples")


if __name__ == "__main__":
    main()
