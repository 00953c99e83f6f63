"""Figures as PNG, and the timeline as Chrome-trace JSON. Nothing here needs a display."""

import json
import os
import pathlib
from dataclasses import replace

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .run import BACKWARD, BAD_DATA, CANNOT_CREATE, FORWARD, USAGE, RunError

# Colours of sections and curves, told apart by colour-blind readers too (Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
WAITING = "#D9D9D9"
PHASES = {FORWARD: "forward", BACKWARD: "backward"}


def plot_loss(runs, path, smooth=0, axis="step"):
    """Loss of every step, faint, and its running mean over `smooth` steps (0: a fiftieth of the run)."""
    figure, axes = _figure(7.5, 4.2)
    finite = []
    for index, run in enumerate(runs):
        colour = COLOURS[index % len(COLOURS)]
        x = {"step": run.steps.step, "tokens": np.cumsum(run.steps.tokens), "time": np.cumsum(run.steps.time_s)}[axis]
        loss = run.steps.loss
        window = smooth or max(1, len(loss) // 50)
        label = run.name if [r.name for r in runs].count(run.name) == 1 else str(run.path)
        if window > 1:
            axes.plot(x, loss, color=colour, alpha=0.25, linewidth=0.8)
            label += f" (mean of {window} steps)"
        axes.plot(x, _running_mean(loss, window), color=colour, linewidth=1.6, label=label)
        finite.append(loss[np.isfinite(loss)])
    axes.set_xlabel({"step": "step", "tokens": "tokens", "time": "time in steps (s)"}[axis])
    axes.set_ylabel("loss per weighted target token")
    finite = np.concatenate(finite) if finite else np.zeros(0)
    if len(finite) and finite.min() > 0 and finite.max() > 20 * finite.min():
        axes.set_yscale("log")
    axes.grid(True, which="major", color="#E6E6E6", linewidth=0.8)
    axes.legend(frameon=False)
    _save(figure, path)


def plot_timeline(run, steps, path):
    """One row a rank: tasks in the colour of their section (forward paler), waiting before a task in grey."""
    rows = tasks_of(run, steps)
    steps = [int(step) for step in np.unique(rows.step)]
    ranks = [int(rank) for rank in np.unique(rows.rank)]
    origin = float((rows.start_s - rows.wait_s).min())
    scale, unit = _unit(float(rows.end_s.max()) - origin)
    figure, axes = _figure(11, 1.5 + 0.5 * len(ranks))
    for row, rank in enumerate(ranks):
        own = rows.select(rows.rank == rank)
        own = own.select(np.argsort(own.start_s, kind="stable"))
        spans = _waits(own)
        bars = [((a - origin) * scale, (b - a) * scale) for a, b in spans if b > a]
        axes.broken_barh(bars, (row - 0.4, 0.8), color=WAITING, linewidth=0)
        for section in range(len(run.sections)):
            for phase in PHASES:
                some = own.select((own.section == section) & (own.phase == phase))
                bars = [((a - origin) * scale, (b - a) * scale) for a, b in zip(some.start_s, some.end_s)]
                axes.broken_barh(bars, (row - 0.4, 0.8), facecolor=_shade(section, phase), edgecolor="white", linewidth=0.4)
    _number_tasks(axes, rows, ranks, origin, scale)
    for step in steps[1:]:
        border = float((rows.start_s - rows.wait_s)[rows.step == step].min())
        axes.axvline((border - origin) * scale, color="#555555", linestyle=(0, (4, 3)), linewidth=0.9)
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.set_ylim(len(ranks) - 0.4, -0.6)
    axes.set_xlim(0, (float(rows.end_s.max()) - origin) * scale)
    axes.set_xlabel(f"time since the start of step {steps[0]} ({unit})")
    shown = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    figure.suptitle(f"{run.name}: tasks of {shown} (numbers: micro-batches)", fontsize=11)
    present = np.unique(rows.section)
    handles = [Patch(facecolor=_shade(s, p), label=f"{run.sections[s]} {name}") for s in present for p, name in PHASES.items()
               if ((rows.section == s) & (rows.phase == p)).any()]
    axes.legend(handles=[*handles, Patch(facecolor=WAITING, label="waiting")], loc="lower center",
                bbox_to_anchor=(0.5, 1.0), ncol=min(7, len(handles) + 1), frameon=False, fontsize=9)
    _save(figure, path)


def plot_waiting(shares, path):
    """A bar per section: compute, waiting and the rest of the steps' time."""
    figure, axes = _figure(7.5, 1.6 + 0.5 * len(shares))
    left = np.zeros(len(shares))
    for name, colour in (("compute", COLOURS[0]), ("waiting", COLOURS[1]), ("rest", WAITING)):
        values = np.array([getattr(share, name) for share in shares]) * 100
        axes.barh(range(len(shares)), values, left=left, color=colour, label=name, height=0.6)
        for row, (start, value) in enumerate(zip(left, values)):
            if value >= 6:
                axes.text(start + value / 2, row, f"{value:.1f}%", ha="center", va="center", fontsize=9,
                          color="white" if name == "compute" else "black")
        left += values
    axes.set_yticks(range(len(shares)), [share.section for share in shares])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of the steps' time (%), mean over the section's ranks")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=3, frameon=False)
    _save(figure, path)


def write_trace(run, steps, path):
    """Chrome-trace JSON: a process per rank, a thread per section; times in microseconds since the run's start."""
    rows = tasks_of(run, steps)
    events = []
    for rank in np.unique(rows.rank):
        events.append({"name": "process_name", "ph": "M", "pid": int(rank), "tid": 0, "args": {"name": f"rank {rank}"}})
        events.append({"name": "process_sort_index", "ph": "M", "pid": int(rank), "tid": 0,
                       "args": {"sort_index": int(rank)}})
        own = rows.select(rows.rank == rank)
        for section in np.unique(own.section):
            events.append({"name": "thread_name", "ph": "M", "pid": int(rank), "tid": int(section) + 1,
                           "args": {"name": run.sections[section]}})
        own = own.select(np.argsort(own.start_s, kind="stable"))
        for i, (wait_from, wait_to) in enumerate(_waits(own)):
            place = {"pid": int(rank), "tid": int(own.section[i]) + 1}
            facts = {"section": run.sections[own.section[i]], "replica": int(own.replica[i]),
                     "stage": int(own.stage[i]), "step": int(own.step[i]), "micro_batch": int(own.micro_batch[i]),
                     "wait_s": float(own.wait_s[i])}
            if wait_to > wait_from:
                events.append({"name": "waiting", "cat": "waiting", "ph": "X", **place, **_span(wait_from, wait_to),
                               "args": facts})
            name = PHASES[int(own.phase[i])]
            events.append({"name": f"{name} {int(own.micro_batch[i])}", "cat": name, "ph": "X", **place,
                           **_span(own.start_s[i], own.end_s[i]), "args": facts})
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
    _publish(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def tasks_of(run, steps):
    """The timeline's rows of `steps`; RunError where there are none or a phase is unknown."""
    rows = run.timeline.select(np.isin(run.timeline.step, steps))
    if not len(rows):
        known = np.unique(run.timeline.step)
        has = f"it has those of steps {known[0]} to {known[-1]}" if len(known) else "it has none (metrics.timeline_every = 0?)"
        raise RunError(USAGE if len(known) else BAD_DATA, f"{run.path}: no tasks of the chosen steps are recorded; {has}")
    if not np.isin(rows.phase, list(PHASES)).all():
        raise RunError(BAD_DATA, f"{run.path}: /timeline/phase holds a value that is neither 0 (forward) nor 1 (backward)")
    return _one_clock(rows)


def _one_clock(rows):
    """Times begin at zero again when a run is resumed: later steps are moved behind the steps before them."""
    shift, last_start, last_end = 0.0, -np.inf, -np.inf
    start_s, end_s = rows.start_s.copy(), rows.end_s.copy()
    for step in np.unique(rows.step):
        own = rows.step == step
        first = float((rows.start_s - rows.wait_s)[own].min())
        if first + shift < last_start:
            shift = last_end - first
        start_s[own] += shift
        end_s[own] += shift
        last_start, last_end = first + shift, float(end_s[own].max())
    return replace(rows, start_s=start_s, end_s=end_s)


def _figure(width, height):
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _publish(path, write):
    """A file that exists under its final name is whole: written beside it, then renamed."""
    path = pathlib.Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True) if path.parent.is_dir() else None
        raise RunError(CANNOT_CREATE, f"{path}: cannot be written ({error.strerror or error})") from error


def _save(figure, path):
    _publish(path, lambda partial: figure.savefig(partial, format="png"))


def _running_mean(values, window):
    """Mean of the last `window` values (fewer at the start)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    last = np.arange(1, len(values) + 1)
    first = np.maximum(0, last - window)
    return (total[last] - total[first]) / np.maximum(1, last - first)


def _waits(own):
    """(from, to) of the waiting before each task of a rank, in order of start; never over the task before it."""
    before = np.concatenate([[-np.inf], own.end_s[:-1]])
    return list(zip(np.minimum(own.start_s, np.maximum(own.start_s - own.wait_s, before)), own.start_s))


def _shade(section, phase):
    """The section's colour; paler for forward."""
    base = np.array(to_rgb(COLOURS[section % len(COLOURS)]))
    return tuple(base if phase == BACKWARD else 0.45 * base + 0.55)


def _ink(background):
    """Black or white, whichever reads better on a colour."""
    return "white" if np.dot(background, (0.299, 0.587, 0.114)) < 0.5 else "black"


def _unit(seconds):
    return (1.0, "s") if seconds >= 2 else (1e3, "ms")


def _span(start, end):
    return {"ts": round(float(start) * 1e6, 3), "dur": round(float(end - start) * 1e6, 3)}


def _number_tasks(axes, rows, ranks, origin, scale):
    """Micro-batch numbers, on the bars that are wide enough for them."""
    whole = float(rows.end_s.max()) - origin
    for i in range(len(rows)):
        length = rows.end_s[i] - rows.start_s[i]
        if length > 0.012 * whole:
            middle = (rows.start_s[i] + length / 2 - origin) * scale
            axes.text(middle, ranks.index(int(rows.rank[i])), str(int(rows.micro_batch[i])),
                      ha="center", va="center", fontsize=7, color=_ink(_shade(rows.section[i], rows.phase[i])))
