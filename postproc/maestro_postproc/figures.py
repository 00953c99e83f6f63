"""What all figures share: colours, the canvas, and files that are complete under their final names. Needs no display."""

import os
import pathlib

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .run import CANNOT_CREATE, RunError

# Colours of sections and curves that colour-blind readers can distinguish (the palette of Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
GREY = "#D9D9D9"
SYNC_COLOURS = ("#333333", "#D4C200")  # of sums and gathers


def new_figure(width, height, panels=(1,)):
    """Returns a figure of `width` x `height` inches and its axes, below each other in the proportions of `panels`."""
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(panels), squeeze=False, height_ratios=panels)[:, 0]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def publish(path, write):
    """Calls write(partial) with a temporary name and renames the file, so that a file under its final name is always complete."""
    path = pathlib.Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True) if path.parent.is_dir() else None
        raise RunError(CANNOT_CREATE, f"{path}: cannot be written ({error.strerror or error})") from error


def save(figure, path):
    publish(path, lambda partial: figure.savefig(partial, format="png"))
