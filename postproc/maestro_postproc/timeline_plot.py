"""Draws which rank ran which task when."""

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch

from .figures import COLOURS, GREY, SYNC_COLOURS, new_figure, save
from .run import BACKWARD, KINDS, PHASES
from .tasks import gaps, idle_shares, of_rank, on_every_rank, origin, syncs_of, tasks_of, waits


def plot_timeline(runs, steps, path):
    """Draws the tasks of `steps` (a list for each run), one row per rank and the runs below each other on one time axis. A task
    has the colour of its section, paler for a forward pass, and in a section of several stages darker from stage to stage.

    Grey is the time spent waiting before a task. If a section has several stages, it is all idle time (tasks.py), whose share is
    written beside each row. Where sums of gradients and gathers of weights were recorded, a thin row below the tasks of a rank shows
    when they were under way."""
    tables = [on_every_rank(tasks_of(run, chosen)) for run, chosen in zip(runs, steps)]
    syncs = [syncs_of(run, chosen) for run, chosen in zip(runs, steps)]
    pipelined = any(run.pipelined(section) for run in runs for section in range(len(run.sections)))
    longest = max(float(max(rows.end_s.max(), some.end_s.max(initial=0))) - origin(rows) for rows, some in zip(tables, syncs))
    scale, unit = _unit(longest)
    heights = [len(np.unique(rows.rank)) for rows in tables]
    handles = _legend_handles(runs, tables)
    handles["idle" if pipelined else "waiting"] = Patch(facecolor=GREY)
    for kind in np.unique(np.concatenate([some.kind for some in syncs])):
        handles[KINDS[kind]] = Patch(facecolor=SYNC_COLOURS[int(kind)])
    figure, (legend, *panels) = new_figure(11, 1.0, [1, *heights])
    for axes, run, rows, some in zip(panels, runs, tables, syncs):
        _draw_tasks(axes, run, rows, some, scale, pipelined)
        shown = np.unique(rows.step)
        title = f"{run.name}, step {shown[0]}" if len(shown) == 1 else f"{run.name}, steps {shown[0]} to {shown[-1]}"
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlim(0, longest * scale)
        axes.tick_params(labelbottom=axes is panels[-1])
        if pipelined:
            _write_idle(axes, run, rows)
    shades = "; later stages are darker" if pipelined else ""
    panels[-1].set_xlabel(f"time since the start of the step ({unit}); the numbers are micro-batches{shades}")
    _draw_legend(figure, legend, heights, handles)
    save(figure, path)


def _legend_handles(runs, tables):
    """Returns the handles of sections and phases by label: a patch, or for a section of several stages the shades from the first stage
    to the last, which do not depend on how many there are."""
    handles = {}
    for run, rows in zip(runs, tables):
        for section, phase in np.unique(np.stack([rows.section, rows.phase]), axis=1).T:
            label = f"{run.sections[section]}, {PHASES[phase]}"
            if run.pipelined(section):
                shades = tuple(Patch(facecolor=_stage_shade(section, phase, at)) for at in (0, 1 / 3, 2 / 3, 1))
                handles.setdefault(f"{label} by stage", shades)
            else:
                handles.setdefault(label, Patch(facecolor=_section_shade(section, phase)))
    return handles


def _draw_legend(figure, axes, heights, handles):
    """Draws the legend with as many entries side by side as fit, at most seven, and gives the figure the height that it needs. `heights`
    are those of the panels below, in rows."""
    axes.set_axis_off()
    for columns in range(min(7, len(handles)), 0, -1):
        lines = -(-len(handles) // columns)
        figure.set_figheight(0.75 + 0.25 * lines + sum(0.5 + 0.32 * height for height in heights))
        axes.get_gridspec().set_height_ratios([0.5 * lines, *heights])
        legend = axes.legend(list(handles.values()), list(handles), loc="center", ncol=columns, frameon=False, fontsize=10,
                             handler_map={tuple: HandlerTuple(ndivide=None, pad=0)})
        legend.set_in_layout(False)  # a legend that is too wide would leave the panels no room
        figure.canvas.draw()  # which places the axes
        place = legend.get_window_extent()
        if place.x0 >= 0 and place.x1 <= figure.bbox.width:
            legend.set_in_layout(True)
            return


def _draw_tasks(axes, run, rows, syncs, scale, pipelined):
    """Draws the tasks of one run, and its sums and gathers, with a dashed line where a new step begins; times are multiplied by
    `scale`."""
    ranks = [int(rank) for rank in np.unique(rows.rank)]
    first = origin(rows)
    bottom = 0.22 if len(syncs) else 0.4  # of tasks, below the middle of a row

    def draw(row, spans, place=(-0.4, bottom), **style):
        bars = [((a - first) * scale, (b - a) * scale) for a, b in spans]
        axes.broken_barh(bars, (row + place[0], place[1] - place[0]), **style)

    for row, rank in enumerate(ranks):
        tasks = of_rank(rows, rank)
        draw(row, gaps(rows, rank) if pipelined else [(a, b) for a, b in waits(tasks) if b > a], color=GREY, linewidth=0)
        for section, stage, phase in np.unique(np.stack([tasks.section, tasks.stage, tasks.phase]), axis=1).T:
            some = tasks.select((tasks.section == section) & (tasks.stage == stage) & (tasks.phase == phase))
            draw(row, zip(some.start_s, some.end_s), facecolor=_shade(run, section, stage, phase), edgecolor="white", linewidth=0.4)
        beside = of_rank(syncs, rank)
        for kind in np.unique(beside.kind):
            some = beside.select(beside.kind == kind)
            spans = zip(np.maximum(some.start_s, first), some.end_s)
            draw(row, [(a, b) for a, b in spans if b > a], (0.26, 0.42), color=SYNC_COLOURS[int(kind)], linewidth=0)
    _number_tasks(axes, run, rows, ranks, (bottom - 0.4) / 2, first, scale)
    for step in np.unique(rows.step)[1:]:
        begin = origin(rows.select(rows.step == step))
        axes.axvline((begin - first) * scale, color="#555555", linestyle=(0, (4, 3)), linewidth=0.9)
    axes.set_yticks(range(len(ranks)), [_row_name(run, rows, rank) for rank in ranks])
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def _row_name(run, rows, rank):
    """The number of a rank, and the stages that it runs of sections with several."""
    mine = rows.select(rows.rank == rank)
    pipelines = [section for section in np.unique(mine.section) if run.pipelined(section)]
    parts = []
    for section in pipelines:
        stages = np.unique(mine.stage[mine.section == section])
        name = f"{run.sections[section]} " if len(pipelines) > 1 else "stage " if len(stages) == 1 else "stages "
        parts.append(name + ", ".join(map(str, stages)))
    return f"rank {rank}" + (": " + "; ".join(parts) if parts else "")


def _write_idle(axes, run, rows):
    """Writes the idle share of each rank beside its row, and of each section above."""
    ranks = np.unique(rows.rank)
    shares = idle_shares(rows, ranks)
    for row, share in enumerate(shares):
        axes.text(1.005, row, f"{share:.0%}", transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    means = [f"{run.sections[section]} {shares[np.isin(ranks, rows.rank[rows.section == section])].mean():.1%}"
             for section in np.unique(rows.section)]
    axes.set_title("idle: " + ", ".join(means), loc="right", fontsize=9)


def _number_tasks(axes, run, rows, ranks, above, first, scale):
    """Writes the number of the micro-batch on every bar that is wide enough; the middle of a bar is `above` the middle of its row."""
    duration = float(rows.end_s.max()) - first
    for i in range(len(rows)):
        length = rows.end_s[i] - rows.start_s[i]
        if length > 0.012 * duration:
            middle = (rows.start_s[i] + length / 2 - first) * scale
            axes.text(middle, ranks.index(int(rows.rank[i])) + above, str(int(rows.micro_batch[i])), ha="center", va="center", fontsize=7,
                      color=_ink(_shade(run, rows.section[i], rows.stage[i], rows.phase[i])))


def _shade(run, section, stage, phase):
    stages = run.stages[section]
    return _stage_shade(section, phase, stage / stages[-1]) if len(stages) > 1 else _section_shade(section, phase)


def _section_shade(section, phase):
    """The colour of a section, paler for a forward pass."""
    base = np.array(to_rgb(COLOURS[section % len(COLOURS)]))
    return tuple(base if phase == BACKWARD else 0.45 * base + 0.55)


def _stage_shade(section, phase, at):
    """The colour of a section in its stage `at`, from 0, the first, to 1, the last."""
    base = np.array(to_rgb(COLOURS[section % len(COLOURS)]))
    if phase == BACKWARD:
        return tuple((0.75 * base + 0.25) * (1 - 0.5 * at))
    white = 0.78 - 0.38 * at
    return tuple((1 - white) * base + white)


def _ink(background):
    """Black or white, whichever is easier to read on `background`."""
    return "white" if np.dot(background, (0.299, 0.587, 0.114)) < 0.5 else "black"


def _unit(seconds):
    return (1.0, "s") if seconds >= 2 else (1e3, "ms")
