"""The shares of time that the ranks of each section spend computing and waiting."""

from dataclasses import asdict, dataclass

import numpy as np


@dataclass
class SectionShare:
    """Shares of the time of the steps, from 0 to 1: the mean over the section's ranks, and for waiting also the extremes.

    `compute` is the time in tasks, `waiting` the time before tasks, for inputs, gradients or a free slot to send to. `rest` is
    everything else: sending, reducing gradients, the optimizer, waiting for the slowest rank there, and tasks of colocated sections.
    """

    section: str
    ranks: int
    tasks: int
    compute_s: float  # seconds per step and rank
    compute: float
    waiting: float
    waiting_min: float
    waiting_max: float
    rest: float

    def as_dict(self):
        return asdict(self)


def section_shares(run, skip=1):
    """Returns one SectionShare per section, over the steps whose tasks are recorded, without the first `skip` (warm-up) steps."""
    recorded = np.intersect1d(run.steps.step, run.timeline.step)
    chosen = recorded[skip:] if len(recorded) > skip else recorded
    steps_s = float(run.steps.time_s[np.isin(run.steps.step, chosen)].sum())
    timeline = run.timeline.select(np.isin(run.timeline.step, chosen))
    return [_share(run, index, timeline, steps_s, max(1, len(chosen))) for index in range(len(run.sections))]


def _share(run, index, timeline, steps_s, steps):
    ranks = np.unique(run.timeline.rank[run.timeline.section == index])
    rows = timeline.select(timeline.section == index)
    if not len(ranks) or steps_s <= 0:
        return SectionShare(run.sections[index], len(ranks), len(rows), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    compute = np.array([(rows.end_s - rows.start_s)[rows.rank == rank].sum() for rank in ranks])
    waiting = np.array([rows.wait_s[rows.rank == rank].sum() for rank in ranks]) / steps_s
    busy = float(compute.mean() / steps_s)
    return SectionShare(run.sections[index], len(ranks), len(rows), float(compute.mean() / steps), busy,
                        float(waiting.mean()), float(waiting.min()), float(waiting.max()),
                        max(0.0, 1.0 - busy - float(waiting.mean())))
