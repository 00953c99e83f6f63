#!/usr/bin/env python3
"""Draws log-normal task times for the sections of a deck, for `maestro simulate --costs`.

Every sample has work in the sections without an outgoing edge. The other sections process a fraction of the samples (--share), and
their work per replica is a fraction of that of the last section (--load). A backward takes twice as long as its forward."""

import argparse
import math
import pathlib
import random
import tomllib


def draw(deck, *, per_replica, share, load, sigma, seed):
    """Returns rows (sample, section, forward_s, backward_s). `share` and `load` apply to every section that feeds another."""
    sections = {s["name"]: (s.get("layout", {}).get("dp", 1), s.get("mode", "train") == "forward") for s in deck["section"]}
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
    work = {name: sum(times[name].values()) * (1 if frozen else 3) / dp for name, (dp, frozen) in sections.items()}
    most = max(work[name] for name in last)
    for name in upstream:
        if work[name] > 0:
            times[name] = {sample: t * load * most / work[name] for sample, t in times[name].items()}
    return [(sample, name, times[name][sample], 0.0 if sections[name][1] else 2 * times[name][sample])
            for sample in range(samples) for name in sections if sample in times[name]]


def write(path, rows):
    lines = ["sample,section,forward_s,backward_s", *(f"{sample},{name},{f:.9g},{b:.9g}" for sample, name, f, b in rows)]
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deck")
    parser.add_argument("costs", help="CSV file to write")
    parser.add_argument("--per-replica", type=int, default=16, help="samples per replica of the last section")
    parser.add_argument("--share", type=float, default=1 / 3, help="fraction of the samples with work in the other sections")
    parser.add_argument("--load", type=float, default=0.9, help="work per replica of the other sections over that of the last")
    parser.add_argument("--sigma", type=float, default=0.6, help="standard deviation of the logarithm of the times")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with open(options.deck, "rb") as file:
        deck = tomllib.load(file)
    rows = draw(deck, per_replica=options.per_replica, share=options.share, load=options.load, sigma=options.sigma, seed=options.seed)
    write(options.costs, rows)
    print(f"{options.costs}: {len(rows)} tasks of {len({row[0] for row in rows})} samples")


if __name__ == "__main__":
    main()
