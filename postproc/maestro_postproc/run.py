"""Loads a run directory. docs/file_formats.md describes the layout of metrics.h5."""

import errno
import json
import pathlib
import time
from dataclasses import dataclass, field, fields
from functools import cached_property

import h5py
import numpy as np

FORMAT = "maestro-metrics"
VERSION = 1
USAGE = 64
BAD_DATA = 65
INPUT_MISSING = 66
CANNOT_CREATE = 73

FORWARD, BACKWARD = 0, 1
PHASES = {FORWARD: "forward", BACKWARD: "backward"}
SUM, GATHER = 0, 1
KINDS = {SUM: "sums of gradients", GATHER: "gathers of weights"}


class RunError(Exception):
    """An input that cannot be read or an output that cannot be written; `code` is the exit code of the command line."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


@dataclass
class Steps:
    """One row per step. `time_s` is the duration of the step, `tokens` the number of tokens that it processed."""

    step: np.ndarray
    loss: np.ndarray
    tokens: np.ndarray
    time_s: np.ndarray
    grad_norm: np.ndarray
    learning_rate: np.ndarray

    def __len__(self):
        return len(self.step)


@dataclass
class Timeline:
    """One row per task. Times are in seconds since the start of the run; `wait_s` is the time spent waiting before `start_s`, and
    `weights_s` that spent waiting for updated weights between `start_s` and `end_s`. `rank` is the first of the ranks that run the replica's
    task together, and `stage` the index of the stage within its section."""

    section: np.ndarray
    replica: np.ndarray
    stage: np.ndarray
    rank: np.ndarray
    step: np.ndarray
    micro_batch: np.ndarray
    phase: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray
    wait_s: np.ndarray
    weights_s: np.ndarray

    def __len__(self):
        return len(self.step)

    def select(self, rows):
        """Returns the rows that a mask or an index array selects."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


@dataclass
class Syncs:
    """One row per stage, replica, step and kind: all sums of the stage's gradients in the step, or all gathers of the weights that the
    step updated, as the leader of the ranks that run its tasks saw them. `groups` is the number of operations, `busy_s` the time in
    which at least one was under way between the beginning of the first, `start_s`, and the end of the last, `end_s`."""

    section: np.ndarray
    replica: np.ndarray
    stage: np.ndarray
    rank: np.ndarray
    step: np.ndarray
    kind: np.ndarray
    groups: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray
    busy_s: np.ndarray

    __len__ = Timeline.__len__
    select = Timeline.select


@dataclass
class Experts:
    """One row per step and layer with experts: the load of the most and of the least loaded expert, each divided by the mean load, and
    the entropy of the distribution of choices, divided by that of a uniform one. All three are 1 where the loads are equal."""

    step: np.ndarray
    section: np.ndarray
    layer: np.ndarray
    largest: np.ndarray
    smallest: np.ndarray
    entropy: np.ndarray

    __len__ = Timeline.__len__
    select = Timeline.select


@dataclass
class Losses:
    """One row per step, section and term of its loss: the name of the term and its value, before its weight in the loss."""

    step: np.ndarray
    section: np.ndarray
    name: np.ndarray
    value: np.ndarray

    __len__ = Timeline.__len__
    select = Timeline.select

    def by_term(self):
        """Returns {(section, name): rows}, by section and name."""
        keys = sorted(set(zip(self.section.tolist(), self.name.tolist())))
        return {key: self.select((self.section == key[0]) & (self.name == key[1])) for key in keys}


@dataclass
class Run:
    path: pathlib.Path  # the run directory
    steps: Steps
    timeline: Timeline
    syncs: Syncs  # without rows in a run of an older build
    experts: Experts  # likewise, and where no trained model has experts
    losses: Losses  # likewise, and of an emulated run
    sections: list  # names; the `section` of a timeline row is an index into this list
    deck: str = ""
    environment: str = ""
    exit: dict = None  # the contents of exit.json; None while the run continues or after it was killed
    checkpoints: list = field(default_factory=list)  # steps, ascending

    @property
    def name(self):
        return self.path.name

    @cached_property
    def stages(self):
        """The stages of every section that recorded tasks, ascending. A section without pipeline parallelism has one."""
        pairs = np.unique(np.stack([self.timeline.section, self.timeline.stage]), axis=1)
        return [[int(stage) for stage in pairs[1][pairs[0] == section]] for section in range(len(self.sections))]

    def pipelined(self, section):
        return len(self.stages[section]) > 1

    def stage_name(self, section, stage):
        """The name of the section, with the stage if it has several."""
        return f"{self.sections[section]}, stage {stage}" if self.pipelined(section) else self.sections[section]


def load_run(path):
    """Reads a run directory, or its metrics.h5. Raises RunError. Never allocates more than the size of the file justifies."""
    path = pathlib.Path(path)
    metrics = path / "metrics.h5" if path.is_dir() else path
    if not metrics.is_file():
        raise RunError(INPUT_MISSING, f"{path}: not a run directory (no metrics.h5); use the directory that run.output names")
    with _open(metrics) as file:
        _check_header(file, metrics)
        steps = Steps(**_columns(file, metrics, "steps", Steps))
        timeline = Timeline(**_columns(file, metrics, "timeline", Timeline, added="weights_s"))
        syncs, experts, losses = (_later_table(file, metrics, group, schema)
                                  for group, schema in (("syncs", Syncs), ("experts", Experts), ("losses", Losses)))
        sections = [name for name in _text(file, "sections").split("\n") if name]
        deck, environment = _text(file, "deck"), _text(file, "environment")
    for name, rows in (("timeline", timeline), ("syncs", syncs), ("experts", experts), ("losses", losses)):
        if len(rows) and not (0 <= rows.section.min() and rows.section.max() < len(sections)):
            raise RunError(BAD_DATA, f"{metrics}: /{name}/section has an index beyond the {len(sections)} sections of the deck")
        part = {"experts": "layer", "losses": "step"}.get(name, "stage")
        if len(rows) and getattr(rows, part).min() < 0:
            raise RunError(BAD_DATA, f"{metrics}: /{name}/{part} has a negative value")
    folder = metrics.parent.resolve()
    return Run(folder, steps, timeline, syncs, experts, losses, sections, deck, environment, _exit_report(folder), _checkpoints(folder))


def _open(path, patience_s=3.0):
    """Opens the file for reading. The program locks it briefly while it appends rows, so a locked file is tried again."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return h5py.File(path, "r")
        except OSError as error:
            locked = isinstance(error, BlockingIOError) or error.errno in (errno.EAGAIN, errno.EWOULDBLOCK)
            if isinstance(error, PermissionError):
                raise RunError(INPUT_MISSING, f"{path}: no permission to read it") from error
            if not locked or time.monotonic() > deadline:
                raise RunError(BAD_DATA, f"{path}: not a readable HDF5 file ({error})") from error
            time.sleep(0.1)


def _check_header(file, path):
    found = _text(file, "format")
    if found != FORMAT:
        raise RunError(BAD_DATA, f"{path}: not the metrics of a run; its format attribute is {found!r}, not {FORMAT!r}")
    version = file.attrs.get("version")
    if version is None or np.ndim(version) or int(version) != VERSION:
        raise RunError(BAD_DATA, f"{path}: schema version {version}; this package reads version {VERSION}")


def _text(file, name):
    value = file.attrs.get(name, "")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _columns(file, path, group, schema, added=None):
    """Returns the datasets of a group by name. That named `added` is 0 in files of older builds, which lack it."""
    names = [f.name for f in fields(schema)]
    columns = {name: _column(file, path, f"{group}/{name}", "S" if name == "name" else "iuf")
               for name in names if name != added or f"{group}/{name}" in file}
    if added and added not in columns:
        columns[added] = np.zeros(len(columns[names[0]]))
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise RunError(BAD_DATA, f"{path}: the datasets of /{group} differ in length")
    return columns


def _later_table(file, path, group, schema):
    """Returns a table that files of older builds lack; from these, without rows."""
    return schema(**(_columns(file, path, group, schema) if group in file else {f.name: np.zeros(0) for f in fields(schema)}))


def _column(file, path, name, kinds):
    """Returns a one-dimensional dataset of numbers, or of short texts as strings. Raises RunError if the data are outside the file or
    claim to be larger than it."""
    try:
        link = file.get(name, getlink=True)
        data = file.get(name) if isinstance(link, h5py.HardLink) else None
        if not isinstance(data, h5py.Dataset):
            raise RunError(BAD_DATA, f"{path}: no dataset /{name}")
        if data.ndim != 1 or data.dtype.kind not in kinds or data.is_virtual or data.external:
            raise RunError(BAD_DATA, f"{path}: /{name} is not a plain one-dimensional dataset of {'texts' if kinds == 'S' else 'numbers'}")
        # Deflate compresses at most 1032:1, so a header that claims more is forged.
        if data.size * data.dtype.itemsize > 1032 * path.stat().st_size:
            raise RunError(BAD_DATA, f"{path}: /{name} claims {data.size} rows, more than the file can hold")
        return np.char.decode(data[:], "ascii", "replace") if kinds == "S" else data[:]
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise RunError(BAD_DATA, f"{path}: /{name} cannot be read ({error})") from error


def _exit_report(folder):
    try:
        report = json.loads((folder / "exit.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def _checkpoints(folder):
    names = (p.name for p in (folder / "checkpoints").glob("step-*") if p.is_dir())
    return sorted(int(name[5:]) for name in names if name[5:].isdigit())
