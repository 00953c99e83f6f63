"""Draws and summarises how evenly the experts of each layer were loaded."""

from dataclasses import dataclass

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

from .figures import COLOURS, new_figure, save

MOST_COLUMNS = 200  # on the axis of steps
MOST_LINES = len(COLOURS)  # layers that are drawn as lines; of more, the median and the range, and a map


@dataclass
class LayerLoads:
    """The loads of a section by layer [L] and column [N], each a mean over `width` recorded steps, or over those that are left for the
    last. NaN where a layer has none."""

    layers: np.ndarray  # [L], ascending
    edges: np.ndarray  # [N + 1], steps between which the columns extend
    width: int
    largest: np.ndarray
    smallest: np.ndarray
    entropy: np.ndarray

    @property
    def middles(self):
        return (self.edges[1:] + self.edges[:-1]) / 2


def layer_loads(experts, section, columns=MOST_COLUMNS):
    """Returns the LayerLoads of a section with rows, in at most `columns` columns."""
    rows = experts.select(experts.section == section)
    layers, layer = np.unique(rows.layer, return_inverse=True)
    steps, place = np.unique(rows.step, return_inverse=True)
    width = -(-len(steps) // columns)
    shape = (len(layers), -(-len(steps) // width))
    cell = layer * shape[1] + place // width
    count = np.bincount(cell, minlength=shape[0] * shape[1])

    def means(values):
        with np.errstate(invalid="ignore"):
            return (np.bincount(cell, weights=values, minlength=len(count)) / count).reshape(shape)

    edges = np.append(steps[::width], steps[-1] + 1) - 0.5
    return LayerLoads(layers, edges, width, means(rows.largest), means(rows.smallest), means(rows.entropy))


def sections_with_experts(run):
    return [int(section) for section in np.unique(run.experts.section)]


def latest_loads(run):
    """Returns, for each section with experts, a dictionary of plain values: medians over its layers of the means over the last tenth of
    the recorded steps, and the layer with the largest load."""
    found = []
    for section in sections_with_experts(run):
        steps = np.unique(run.experts.step[run.experts.section == section])
        steps = steps[-max(1, len(steps) // 10):]
        loads = layer_loads(run.experts.select(run.experts.step >= steps[0]), section, columns=1)
        worst = int(np.argmax(loads.largest[:, 0]))
        found.append(dict(section=run.sections[section], layers=len(loads.layers), steps=len(steps),
                          **{name: float(np.median(getattr(loads, name))) for name in ("largest", "smallest", "entropy")},
                          worst_layer=int(loads.layers[worst]), worst_largest=float(loads.largest[worst, 0])))
    return found


def plot_experts(run, path):
    """Draws for each section with experts, below each other and over the steps, the load of the most and of the least loaded expert and
    the entropy. Up to six layers have a line each. Of more, the median and the range over the layers are drawn, and the largest loads
    also as a map by layer."""
    loads = {section: layer_loads(run.experts, section) for section in sections_with_experts(run)}
    panels = [ratio for some in loads.values() for ratio in ((1.3, 1, 1, 1.6) if len(some.layers) > MOST_LINES else (1.3, 1, 1))]
    figure, axes = new_figure(8.5, 0.8 + 1.55 * sum(panels), panels)
    left = list(axes)
    for section, some in loads.items():
        lines, left = left[:3], left[3:]
        lines[0].set_title(f"experts of {run.sections[section]}", loc="left", fontsize=11)
        for panel, name in zip(lines, ("largest", "smallest", "entropy")):
            _draw_layers(panel, some, getattr(some, name))
        _scale_largest(lines[0], some.largest)
        lines[0].set_ylabel("largest load\n(mean load = 1)")
        lines[1].set_ylabel("smallest load\n(mean load = 1)")
        lines[1].set_ylim(0, 1.05)
        lines[2].set_ylabel("entropy\n(uniform = 1)")
        handles = lines[0].get_legend_handles_labels()
        lines[0].legend(*handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncol=len(handles[0]), frameon=False, fontsize=9,
                        borderaxespad=0.2, handlelength=1.4, columnspacing=1.2)
        last = lines[2]
        if len(some.layers) > MOST_LINES:
            last, left = left[0], left[1:]
            _draw_map(last, some)
        for panel in (*lines, last):
            panel.set_xlim(some.edges[0], some.edges[-1])
            panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            panel.tick_params(labelbottom=panel is last)
        last.set_xlabel("step" if some.width == 1 else f"step (each value is a mean of {some.width} steps)")
    figure.align_ylabels(axes)
    save(figure, path)


def _draw_layers(axes, loads, values):
    """Draws the values [L, N] as a line by layer, or their median and range, with a line at 1."""
    axes.axhline(1, color="#555555", linestyle=(0, (4, 3)), linewidth=0.9)
    axes.set_axisbelow(True)
    axes.grid(True, which="major", color="#E6E6E6", linewidth=0.8)
    marker = "o" if len(loads.middles) == 1 else None  # a line needs two points
    if len(loads.layers) <= MOST_LINES:
        for layer, line, colour in zip(loads.layers, values, COLOURS):
            axes.plot(loads.middles, line, color=colour, linewidth=1.3, marker=marker, label=f"layer {layer}")
        return
    known = np.ma.masked_invalid(values)
    x = loads.middles if marker is None else loads.edges  # a single column fills the panel
    median, low, high = (np.broadcast_to(some, len(x)) for some in (np.ma.median(known, axis=0), known.min(axis=0), known.max(axis=0)))
    axes.fill_between(x, low, high, color=COLOURS[4], alpha=0.35, linewidth=0, label=f"range of {len(loads.layers)} layers")
    axes.plot(x, median, color=COLOURS[0], linewidth=1.5, label="median")


def _scale_largest(axes, values):
    """The axis of largest loads, logarithmic where they differ much."""
    if np.nanmax(values) > 8:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_map(axes, loads):
    """Draws the largest loads by layer and step in colours."""
    rows = np.append(loads.layers, loads.layers[-1] + 1) - 0.5
    highest = max(1.01, np.nanmax(loads.largest))
    image = axes.pcolormesh(loads.edges, rows, loads.largest, norm=LogNorm(1, highest), cmap="viridis", rasterized=True)
    axes.set_ylabel("layer")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    bar = axes.figure.colorbar(image, cax=axes.inset_axes([1.015, 0, 0.018, 1]), label="largest load")
    if highest >= 1.5:
        bar.set_ticks([tick for tick in (1, 1.5, 2, 3, 5, 10, 20, 50, 100) if tick <= highest], minor=False)
    else:
        bar.ax.yaxis.set_major_locator(MaxNLocator(4))
    bar.minorticks_off()
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
