"""Draws figures as PNG files and writes the timeline as Chrome-trace JSON. Needs no display."""

import json
import os
import pathlib
from dataclasses import replace

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from .run import BACKWARD, BAD_DATA, CANNOT_CREATE, FORWARD, USAGE, RunError

# Colours of sections and curves that colour-blind readers can distinguish (the palette of Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
WAITING = "#D9D9D9"
PHASES = {FORWARD: "forward", BACKWARD: "backward"}


def plot_loss(runs, path, smooth=0, axis="step"):
    """Draws the loss of every step, faintly, and its running mean over `smooth` steps (0: a fiftieth of the run)."""
    figure, (axes,) = _figure(7.5, 4.2)
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
    axes.set_xlabel({"step": "step", "tokens": "tokens", "time": "time spent in steps (s)"}[axis])
    axes.set_ylabel("loss per weighted target token")
    finite = np.concatenate(finite) if finite else np.zeros(0)
    if len(finite) and finite.min() > 0 and finite.max() > 20 * finite.min():
        axes.set_yscale("log")
    if axis == "step":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True, which="major", color="#E6E6E6", linewidth=0.8)
    axes.legend(frameon=False)
    _save(figure, path)


def plot_timeline(runs, steps, path):
    """Draws the tasks of `steps` (a list for each run), one row per rank and the runs below each other on one time axis. A task
    has the colour of its section, paler for a forward pass; time spent waiting before a task is grey."""
    tables = [tasks_of(run, chosen) for run, chosen in zip(runs, steps)]
    longest = max(float(rows.end_s.max()) - _origin(rows) for rows in tables)
    scale, unit = _unit(longest)
    heights = [len(np.unique(rows.rank)) for rows in tables]
    figure, (legend, *panels) = _figure(11, 1.0 + sum(0.5 + 0.32 * height for height in heights), [0.5, *heights])
    for axes, run, rows in zip(panels, runs, tables):
        _draw_tasks(axes, run, rows, scale)
        shown = np.unique(rows.step)
        title = f"{run.name}, step {shown[0]}" if len(shown) == 1 else f"{run.name}, steps {shown[0]} to {shown[-1]}"
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlim(0, longest * scale)
        axes.tick_params(labelbottom=axes is panels[-1])
    panels[-1].set_xlabel(f"time since the start of the step ({unit}); the numbers are micro-batches")
    handles = {}
    for run, rows in zip(runs, tables):
        for section, phase in np.unique(np.stack([rows.section, rows.phase]), axis=1).T:
            label = f"{run.sections[section]}, {PHASES[phase]}"
            handles.setdefault(label, Patch(facecolor=_shade(section, phase), label=label))
    handles = [*handles.values(), Patch(facecolor=WAITING, label="waiting")]
    legend.set_axis_off()
    legend.legend(handles=handles, loc="center", ncol=min(7, len(handles)), frameon=False, fontsize=10)
    _save(figure, path)


def _draw_tasks(axes, run, rows, scale):
    """Draws the tasks of one run, with a dashed line where a new step begins; times are multiplied by `scale`."""
    ranks = [int(rank) for rank in np.unique(rows.rank)]
    origin = _origin(rows)
    for row, rank in enumerate(ranks):
        tasks = _of_rank(rows, rank)
        bars = [((a - origin) * scale, (b - a) * scale) for a, b in _waits(tasks) if b > a]
        axes.broken_barh(bars, (row - 0.4, 0.8), color=WAITING, linewidth=0)
        for section in range(len(run.sections)):
            for phase in PHASES:
                some = tasks.select((tasks.section == section) & (tasks.phase == phase))
                bars = [((a - origin) * scale, (b - a) * scale) for a, b in zip(some.start_s, some.end_s)]
                axes.broken_barh(bars, (row - 0.4, 0.8), facecolor=_shade(section, phase), edgecolor="white", linewidth=0.4)
    _number_tasks(axes, rows, ranks, origin, scale)
    for step in np.unique(rows.step)[1:]:
        begin = _origin(rows.select(rows.step == step))
        axes.axvline((begin - origin) * scale, color="#555555", linestyle=(0, (4, 3)), linewidth=0.9)
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def plot_waiting(shares, path):
    """Draws one bar per section: the shares of the steps' time spent computing, waiting and otherwise."""
    figure, (axes,) = _figure(7.5, 1.6 + 0.5 * len(shares))
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
    axes.set_xlabel("share of the time of the steps (%), mean over the ranks of the section")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=3, frameon=False)
    _save(figure, path)


def write_trace(run, steps, path):
    """Writes Chrome-trace JSON: one process per rank, one thread per section, times in microseconds since the start of the run."""
    rows = tasks_of(run, steps)
    events = []
    for rank in np.unique(rows.rank):
        events.append({"name": "process_name", "ph": "M", "pid": int(rank), "tid": 0, "args": {"name": f"rank {rank}"}})
        events.append({"name": "process_sort_index", "ph": "M", "pid": int(rank), "tid": 0,
                       "args": {"sort_index": int(rank)}})
        tasks = _of_rank(rows, rank)
        for section in np.unique(tasks.section):
            events.append({"name": "thread_name", "ph": "M", "pid": int(rank), "tid": int(section) + 1,
                           "args": {"name": run.sections[section]}})
        for i, (wait_from, wait_to) in enumerate(_waits(tasks)):
            place = {"pid": int(rank), "tid": int(tasks.section[i]) + 1}
            facts = {"section": run.sections[tasks.section[i]], "replica": int(tasks.replica[i]),
                     "stage": int(tasks.stage[i]), "step": int(tasks.step[i]), "micro_batch": int(tasks.micro_batch[i]),
                     "wait_s": float(tasks.wait_s[i])}
            if wait_to > wait_from:
                events.append({"name": "waiting", "cat": "waiting", "ph": "X", **place, **_span(wait_from, wait_to),
                               "args": facts})
            name = PHASES[int(tasks.phase[i])]
            events.append({"name": f"{name} {int(tasks.micro_batch[i])}", "cat": name, "ph": "X", **place,
                           **_span(tasks.start_s[i], tasks.end_s[i]), "args": facts})
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
    _publish(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def tasks_of(run, steps):
    """Returns the timeline rows of `steps`. Raises RunError if there are none or if a phase is unknown."""
    rows = run.timeline.select(np.isin(run.timeline.step, steps))
    if not len(rows):
        known = np.unique(run.timeline.step)
        has = f"steps {known[0]} to {known[-1]} have some" if len(known) else "no step has any (is metrics.timeline_every 0?)"
        raise RunError(USAGE if len(known) else BAD_DATA, f"{run.path}: no tasks of the chosen steps are recorded; {has}")
    if not np.isin(rows.phase, list(PHASES)).all():
        raise RunError(BAD_DATA, f"{run.path}: /timeline/phase holds a value that is neither 0 (forward) nor 1 (backward)")
    return _one_clock(rows)


def _one_clock(rows):
    """Moves the steps of a resumed run behind the steps before them: its clock starts at zero again with every start."""
    shift, last_start, last_end = 0.0, -np.inf, -np.inf
    start_s, end_s = rows.start_s.copy(), rows.end_s.copy()
    for step in np.unique(rows.step):
        in_step = rows.step == step
        first = _origin(rows.select(in_step))
        if first + shift < last_start:
            shift = last_end - first
        start_s[in_step] += shift
        end_s[in_step] += shift
        last_start, last_end = first + shift, float(end_s[in_step].max())
    return replace(rows, start_s=start_s, end_s=end_s)


def _figure(width, height, panels=(1,)):
    """A figure and its axes, below each other in the proportions of `panels`."""
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(panels), squeeze=False, height_ratios=panels)[:, 0]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _publish(path, write):
    """Writes under a temporary name and renames, so that a file under its final name is always complete."""
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
    """The mean of the last `window` values (of fewer at the start)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    last = np.arange(1, len(values) + 1)
    first = np.maximum(0, last - window)
    return (total[last] - total[first]) / np.maximum(1, last - first)


def _origin(rows):
    """The time at which the first task, or the wait before it, begins."""
    return float((rows.start_s - rows.wait_s).min())


def _of_rank(rows, rank):
    """The tasks of one rank in order of their start."""
    rows = rows.select(rows.rank == rank)
    return rows.select(np.argsort(rows.start_s, kind="stable"))


def _waits(tasks):
    """(start, end) of the wait before each task of a rank, in order of start. A wait never overlaps the task before it."""
    before = np.concatenate([[-np.inf], tasks.end_s[:-1]])
    return list(zip(np.minimum(tasks.start_s, np.maximum(tasks.start_s - tasks.wait_s, before)), tasks.start_s))


def _shade(section, phase):
    """The colour of a section, paler for a forward pass."""
    base = np.array(to_rgb(COLOURS[section % len(COLOURS)]))
    return tuple(base if phase == BACKWARD else 0.45 * base + 0.55)


def _ink(background):
    """Black or white, whichever is easier to read on `background`."""
    return "white" if np.dot(background, (0.299, 0.587, 0.114)) < 0.5 else "black"


def _unit(seconds):
    return (1.0, "s") if seconds >= 2 else (1e3, "ms")


def _span(start, end):
    return {"ts": round(float(start) * 1e6, 3), "dur": round(float(end - start) * 1e6, 3)}


def _number_tasks(axes, rows, ranks, origin, scale):
    """Writes the number of the micro-batch on every bar that is wide enough."""
    duration = float(rows.end_s.max()) - origin
    for i in range(len(rows)):
        length = rows.end_s[i] - rows.start_s[i]
        if length > 0.012 * duration:
            middle = (rows.start_s[i] + length / 2 - origin) * scale
            axes.text(middle, ranks.index(int(rows.rank[i])), str(int(rows.micro_batch[i])),
                      ha="center", va="center", fontsize=7, color=_ink(_shade(rows.section[i], rows.phase[i])))
