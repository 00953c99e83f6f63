"""The command line. Exit codes are those of maestro (64 usage, 65 bad data, 66 input missing, 73 cannot write the output) and 1 if
`compare` finds the losses outside the tolerance."""

import argparse
import json
import pathlib
import sys

import numpy as np

from .experts import plot_experts
from .frontier import plot_frontier, read_frontier
from .plots import plot_loss, plot_terms, plot_waiting
from .run import BAD_DATA, INPUT_MISSING, USAGE, RunError, load_run
from .shares import section_shares
from .summary import compare, compare_text, shares_text, summarise, summary_text
from .timeline_plot import plot_timeline
from .trace import write_trace


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def main(arguments=None):
    options = _parser().parse_args(arguments)
    try:
        return options.command(options) or 0
    except RunError as error:
        print(f"maestro-postproc: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:
        return 0


def _parser():
    parser = Parser(prog="maestro-postproc", description="Summarises, plots and compares Maestro runs, and draws plans.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name, function, help, runs=None):
        sub = commands.add_parser(name, help=help, description=help)
        sub.set_defaults(command=function)
        if runs is None:
            sub.add_argument("run", metavar="RUN", help="a run directory")
        else:
            sub.add_argument("runs", metavar="RUN", nargs=runs, help="run directories")
        return sub

    def skip(sub):
        sub.add_argument("--skip", type=_count, default=1, metavar="N", help="leave the first N steps out of all times (default: 1)")

    sub = command("summary", _summary, "print steps, loss, speed and waiting times of a run, and how it ended")
    skip(sub)
    sub.add_argument("--json", action="store_true", help="print a JSON object instead of text")
    sub = command("loss", _loss, "draw the loss curves of one or more runs", "+")
    sub.add_argument("--out", type=pathlib.Path, help="PNG file to write (default: plots/loss.png of the first RUN)")
    sub.add_argument("--smooth", type=_count, default=0, metavar="N", help="draw a running mean over N steps (default: a fiftieth of the run)")
    sub.add_argument("--evaluation", type=pathlib.Path, metavar="FILE", help="what maestro evaluate printed for the first RUN: also mark its held-out loss")
    sub.add_argument("--axis", choices=("step", "tokens", "time"), default="step", help="quantity on the horizontal axis (default: step)")
    sub = command("terms", _terms, "draw the terms of the losses of a run, each by itself")
    sub.add_argument("--out", type=pathlib.Path, help="PNG file to write (default: RUN/plots/terms.png)")
    sub.add_argument("--smooth", type=_count, default=0, metavar="N", help="draw a running mean over N steps (default: a fiftieth of the run)")
    sub = command("timeline", _timeline, "draw which rank ran which task when, and write Chrome-trace JSON for Perfetto", "+")
    sub.add_argument("--steps", type=_range, default=None, metavar="A[:B]", help="steps to draw (default: the last two)")
    sub.add_argument("--out", type=pathlib.Path, help="PNG file to write (default: plots/timeline.png of the first RUN)")
    sub.add_argument("--trace", type=pathlib.Path, help="JSON file to write, for one RUN (default: RUN/plots/timeline.json)")
    sub = command("waiting", _waiting, "print the share of the time that each section computes and waits")
    skip(sub)
    sub.add_argument("--out", type=pathlib.Path, help="also draw the shares to this PNG file")
    sub.add_argument("--json", action="store_true", help="print a JSON list instead of text")
    sub = command("experts", _experts, "draw how evenly the experts of each layer were loaded")
    sub.add_argument("--out", type=pathlib.Path, help="PNG file to write (default: RUN/plots/experts.png)")
    sub = commands.add_parser("frontier", help="draw the plans of maestro plan --ranks A-B", description="Draws step time and tokens per "
                              "rank-hour of the fastest plan of each number of ranks, with the best one layout for all sections beside it.")
    sub.set_defaults(command=_frontier)
    sub.add_argument("file", type=pathlib.Path, metavar="FILE", help="what maestro plan --ranks A-B printed, or its last line alone")
    sub.add_argument("--out", type=pathlib.Path, help="PNG file to write (default: FILE with the ending .png)")
    sub = command("compare", _compare, "compare the losses, speed, waiting times and decks of two runs", 2)
    skip(sub)
    sub.add_argument("--tolerance", type=float, metavar="X", help="exit with code 1 unless the losses agree within the relative tolerance X")
    sub.add_argument("--json", action="store_true", help="print a JSON object instead of text")
    return parser


def _summary(options):
    run = load_run(options.run)
    print(json.dumps(summarise(run, options.skip)) if options.json else summary_text(run, options.skip))


def _loss(options):
    runs = [load_run(path) for path in options.runs]
    for run in runs:
        if not len(run.steps):
            raise RunError(BAD_DATA, f"{run.path}: no steps recorded yet")
    out = options.out or runs[0].path / "plots" / "loss.png"
    plot_loss(runs, out, options.smooth, options.axis, _held_out_loss(options.evaluation) if options.evaluation else None)
    print(out)


def _terms(options):
    run = load_run(options.run)
    if not len(run.losses):
        raise RunError(BAD_DATA, f"{run.path}: no terms of losses recorded; the run is emulated, has not begun, or an older build wrote it")
    out = options.out or run.path / "plots" / "terms.png"
    plot_terms(run, out, options.smooth)
    print(out)


def _held_out_loss(path):
    """The loss in the last line of the file, the JSON object that `maestro evaluate` ends with."""
    try:
        return float(json.loads(path.read_text().splitlines()[-1])["loss"])
    except OSError as error:
        raise RunError(INPUT_MISSING, f"--evaluation {path}: {error.strerror}") from None
    except (IndexError, KeyError, TypeError, ValueError):
        raise RunError(BAD_DATA, f"--evaluation {path}: its last line is not the JSON object with \"loss\" that maestro evaluate prints") from None


def _timeline(options):
    runs = [load_run(path) for path in options.runs]
    if options.trace and len(runs) > 1:
        raise RunError(USAGE, f"--trace names one file, but there are {len(runs)} runs")
    steps = [_steps_to_draw(run, options.steps) for run in runs]
    out = options.out or runs[0].path / "plots" / "timeline.png"
    plot_timeline(runs, steps, out)
    print(out)
    for run, chosen in zip(runs, steps):
        trace = options.trace or run.path / "plots" / "timeline.json"
        write_trace(run, chosen, trace)
        print(f"{trace} (open it in https://ui.perfetto.dev or chrome://tracing)")


def _steps_to_draw(run, bounds):
    """The recorded steps within `bounds`, or the last two."""
    recorded = [int(step) for step in np.unique(run.timeline.step)]
    return [step for step in recorded if bounds[0] <= step <= bounds[1]] if bounds else recorded[-2:]


def _waiting(options):
    shares = section_shares(load_run(options.run), options.skip)
    print(json.dumps([share.as_dict() for share in shares]) if options.json else shares_text(shares))
    if options.out:
        plot_waiting(shares, options.out)
        print(options.out)


def _experts(options):
    run = load_run(options.run)
    if not len(run.experts):
        raise RunError(BAD_DATA, f"{run.path}: no loads of experts recorded; the models that it trains have none, or an older build wrote it")
    out = options.out or run.path / "plots" / "experts.png"
    plot_experts(run, out)
    print(out)


def _frontier(options):
    plans = read_frontier(options.file)
    out = options.out or options.file.with_suffix(".png")
    plot_frontier(plans, out)
    print(out)


def _compare(options):
    first, second = (load_run(path) for path in options.runs)
    facts = compare(first, second, options.skip)
    print(json.dumps(facts) if options.json else compare_text(first, second, options.skip))
    if options.tolerance is not None and not (facts["common_steps"] and facts["largest_difference"] <= options.tolerance):
        return 1


def _count(text):
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def _range(text):
    first, _, last = text.partition(":")
    bounds = int(first), int(last or first)
    if bounds[0] > bounds[1]:
        raise argparse.ArgumentTypeError(f"{text}: the first step is larger than the last")
    return bounds
