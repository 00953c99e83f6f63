"""The command line. Exit codes are those of maestro: 0 done, 1 outside the tolerance, 64 usage, 65, 66, 73."""

import argparse
import json
import pathlib
import sys

import numpy as np

from . import plots
from .run import BAD_DATA, USAGE, RunError, load_run
from .shares import section_shares
from .summary import compare, compare_text, shares_text, summarise, summary_text


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
    parser = Parser(prog="maestro-postproc", description="Summaries, plots and timelines of Maestro runs.")
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
        sub.add_argument("--skip", type=_count, default=1, metavar="N", help="leave the first N steps out of times (1)")

    sub = command("summary", _summary, "print what a run did, how fast, and how it ended")
    skip(sub)
    sub.add_argument("--json", action="store_true", help="print a JSON object instead")
    sub = command("loss", _loss, "draw the loss curves of one or more runs", "+")
    sub.add_argument("--out", type=pathlib.Path, help="PNG to write (the first RUN's plots/loss.png)")
    sub.add_argument("--smooth", type=_count, default=0, metavar="N", help="running mean over N steps (a fiftieth of the run)")
    sub.add_argument("--axis", choices=("step", "tokens", "time"), default="step")
    sub = command("timeline", _timeline, "draw who ran which task when, and write it as Chrome-trace JSON for Perfetto")
    sub.add_argument("--steps", type=_range, default=None, metavar="A[:B]", help="steps to show (the last two)")
    sub.add_argument("--out", type=pathlib.Path, help="PNG to write (RUN/plots/timeline.png)")
    sub.add_argument("--trace", type=pathlib.Path, help="JSON to write (RUN/plots/timeline.json)")
    sub = command("waiting", _waiting, "print which share of the steps each section computes and waits")
    skip(sub)
    sub.add_argument("--out", type=pathlib.Path, help="also draw it into this PNG")
    sub.add_argument("--json", action="store_true", help="print a JSON list instead")
    sub = command("compare", _compare, "compare the losses, speed, waiting and decks of two runs", 2)
    skip(sub)
    sub.add_argument("--tolerance", type=float, metavar="X", help="exit with 1 unless losses agree to X, relative")
    sub.add_argument("--json", action="store_true", help="print a JSON object instead")
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
    plots.plot_loss(runs, out, options.smooth, options.axis)
    print(out)


def _timeline(options):
    run = load_run(options.run)
    recorded = [int(step) for step in np.unique(run.timeline.step)]
    steps = recorded[-2:]
    if options.steps:
        steps = [step for step in recorded if options.steps[0] <= step <= options.steps[1]]
    out = options.out or run.path / "plots" / "timeline.png"
    trace = options.trace or run.path / "plots" / "timeline.json"
    plots.plot_timeline(run, steps, out)
    plots.write_trace(run, steps, trace)
    print(out)
    print(f"{trace} (open it in https://ui.perfetto.dev or chrome://tracing)")


def _waiting(options):
    shares = section_shares(load_run(options.run), options.skip)
    print(json.dumps([share.as_dict() for share in shares]) if options.json else shares_text(shares))
    if options.out:
        plots.plot_waiting(shares, options.out)
        print(options.out)


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
        raise argparse.ArgumentTypeError(f"{text}: the first step lies after the last")
    return bounds
