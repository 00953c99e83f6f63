"""Where the time of each section's ranks goes."""

from dataclasses import asdict, dataclass

import numpy as np


@dataclass
class SectionShare:
    """Shares are of the time of the steps, 0 to 1: mean over the section's ranks, and the extremes of waiting.

    `compute` is spent in tasks and `waiting` before them, for inputs, gradients or room to send; `rest` is all else:
    sending, summing gradients, the optimizer, waiting there for the slowest rank, and the other sections of a shared rank.
    """

    section: str
    ranks: int
    tasks: int
    compute_s: float  # per step and rank
    compute: float
    waiting: float
    waiting_min: float
    waiting_max: float
    rest: float

    def as_dict(self):
        return asdict(self)


def section_shares(run, skip=1):
    """One SectionShare per section, over the steps that the timeline covers but the first `skip`, which warm up."""
    covered = np.intersect1d(run.steps.step, run.timeline.step)
    chosen = covered[skip:] if len(covered) > skip else covered
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
