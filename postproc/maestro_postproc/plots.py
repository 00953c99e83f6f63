"""Draws loss curves, the terms of losses and the shares of time of sections."""

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from .figures import COLOURS, GREY, new_figure, save


def plot_loss(runs, path, smooth=0, axis="step", held_out=None):
    """Draws the loss of every step, faintly, and its running mean over `smooth` steps (0: a fiftieth of the run). `held_out`: the loss
    of an evaluation of the first run, drawn where that ends."""
    figure, (axes,) = new_figure(7.5, 4.2)
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
        if held_out is not None and index == 0:
            axes.plot(x[-1:], [held_out], "o", color=colour, markerfacecolor="white", markersize=8, markeredgewidth=1.6, clip_on=False, zorder=3,
                      label=f"held-out samples, at the end: {held_out:.3g}")
            finite.append(np.array([held_out])[np.isfinite([held_out])])
    axes.set_xlabel({"step": "step", "tokens": "tokens", "time": "time spent in steps (s)"}[axis])
    axes.set_ylabel("loss per weighted target token")
    finite = np.concatenate(finite) if finite else np.zeros(0)
    if len(finite) and finite.min() > 0 and finite.max() > 20 * finite.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    if axis == "step":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True, which="major", color="#E6E6E6", linewidth=0.8)
    axes.legend(frameon=False)
    save(figure, path)


def plot_terms(run, path, smooth=0):
    """Draws each term of the losses of a run, below each other and over the steps, faintly, and its running mean over `smooth` steps
    (0: a fiftieth of the run)."""
    terms = run.losses.by_term()
    figure, axes = new_figure(7.5, 0.8 + 1.9 * len(terms), [1] * len(terms))
    names = [name for _, name in terms]
    for index, (panel, ((section, name), rows)) in enumerate(zip(axes, terms.items())):
        colour = COLOURS[sorted(set(names)).index(name) % len(COLOURS)]
        window = smooth or max(1, len(rows) // 50)
        if window > 1:
            panel.plot(rows.step, rows.value, color=colour, alpha=0.25, linewidth=0.8)
        panel.plot(rows.step, _running_mean(rows.value, window), color=colour, linewidth=1.6, marker="o" if len(rows) == 1 else None)
        panel.set_title(f"{name} of {run.sections[section]}" + (f" (mean of {window} steps)" if window > 1 else ""), loc="left", fontsize=11)
        panel.set_ylabel("value")
        panel.grid(True, which="major", color="#E6E6E6", linewidth=0.8)
        panel.set_xlim(run.losses.step.min() - 0.5, run.losses.step.max() + 0.5)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.tick_params(labelbottom=index == len(terms) - 1)
    axes[-1].set_xlabel("step")
    figure.align_ylabels(axes)
    save(figure, path)


def plot_waiting(shares, path):
    """Draws one bar per section: the shares of the steps' time spent computing, waiting and otherwise. Below it, a section of several
    stages has a thinner bar for each of them."""
    bars, place = [], 0.0  # (name, share, height, position)
    for share in shares:
        bars.append((share.section, share, 0.6, place))
        bars += [(f"stage {stage.stage}", stage, 0.38, place + 0.1 + 0.5 * (k + 1)) for k, stage in enumerate(share.stages)]
        place += 1 + 0.5 * len(share.stages) + 0.1 * bool(share.stages)
    names, bar_shares, heights, places = zip(*bars)
    figure, (axes,) = new_figure(7.5, 1.6 + 0.5 * place)
    left = np.zeros(len(bars))
    for name, colour in (("compute", COLOURS[0]), ("waiting", COLOURS[1]), ("rest", GREY)):
        values = np.array([getattr(share, name) or 0.0 for share in bar_shares]) * 100
        axes.barh(places, values, left=left, color=colour, label=name, height=heights)
        for at, start, value in zip(places, left, values):
            if value >= 6:
                axes.text(start + value / 2, at, f"{value:.1f}%", ha="center", va="center", fontsize=9,
                          color="white" if name == "compute" else "black")
        left += values
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    of = "section or the stage" if len(bars) > len(shares) else "section"
    axes.set_xlabel(f"share of the time of the steps (%), mean over the ranks of the {of}")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=3, frameon=False)
    save(figure, path)


def _running_mean(values, window):
    """The mean of the finite ones of the last `window` values (of fewer at the start); NaN where none is."""
    known = np.isfinite(values)
    total, count = (np.concatenate([[0.0], np.cumsum(some)]) for some in (np.where(known, values, 0.0), known))
    last = np.arange(1, len(values) + 1)
    first = np.maximum(0, last - window)
    with np.errstate(invalid="ignore"):
        return (total[last] - total[first]) / (count[last] - count[first])
