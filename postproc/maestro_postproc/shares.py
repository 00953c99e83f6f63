"""The shares of time that the ranks of each section spend computing, waiting and idle."""

from dataclasses import asdict, dataclass

import numpy as np

from .tasks import idle_shares, on_every_rank


@dataclass
class Share:
    """Shares of the time of the steps, from 0 to 1: means over ranks, and for waiting also the extremes. A rank stands for all that
    run its tasks together.

    `compute` is the time in tasks, `waiting` the time before tasks, for inputs, gradients or a free slot to send to, and within them
    for updated weights. `rest` is everything else: sending, what tasks do not hide of the sums of gradients, the optimizer, waiting for
    the slowest rank there, and other tasks on these ranks, of colocated sections or of other stages.

    `idle` is a share of the time from the first task of a step on any rank to the last: in it, the ranks run no task of any section.
    In a pipeline these are its bubbles.

    Without tasks or time, shares are None.
    """

    ranks: int
    tasks: int
    compute_s: float  # seconds per step and rank
    compute: float
    waiting: float
    waiting_min: float
    waiting_max: float
    rest: float
    idle: float


@dataclass
class StageShare(Share):
    stage: int


@dataclass
class SectionShare(Share):
    section: str
    stages: list  # a StageShare for each stage, if there are several

    def as_dict(self):
        return asdict(self)


def section_shares(run, skip=1):
    """Returns one SectionShare per section, over the steps whose tasks are recorded, without the first `skip` (warm-up) steps."""
    recorded = np.intersect1d(run.steps.step, run.timeline.step)
    chosen = recorded[skip:] if len(recorded) > skip else recorded
    steps_s = float(run.steps.time_s[np.isin(run.steps.step, chosen)].sum())
    rows = run.timeline.select(np.isin(run.timeline.step, chosen))
    ranks = np.unique(run.timeline.rank)
    idle = dict(zip(ranks, idle_shares(on_every_rank(rows), ranks)))

    def share_of(mask_of):
        return _share(run.timeline.rank[mask_of(run.timeline)], rows.select(mask_of(rows)), idle, steps_s, max(1, len(chosen)))

    shares = []
    for section, name in enumerate(run.sections):
        stages = [StageShare(**share_of(lambda t: (t.section == section) & (t.stage == stage)), stage=stage)
                  for stage in run.stages[section]] if run.pipelined(section) else []
        shares.append(SectionShare(**share_of(lambda t: t.section == section), section=name, stages=stages))
    return shares


def _share(ranks, rows, idle, steps_s, steps):
    """Returns the members of Share for the tasks `rows`; `ranks` are those that ran such tasks in any step."""
    ranks = np.unique(ranks)
    if not len(ranks) or steps_s <= 0 or np.isnan(idle[ranks[0]]):
        return dict(ranks=len(ranks), tasks=len(rows), **dict.fromkeys(
            ("compute_s", "compute", "waiting", "waiting_min", "waiting_max", "rest", "idle")))  # fmt: skip
    compute = np.array([(rows.end_s - rows.start_s - rows.weights_s)[rows.rank == rank].sum() for rank in ranks])
    waiting = np.array([(rows.wait_s + rows.weights_s)[rows.rank == rank].sum() for rank in ranks]) / steps_s
    busy = float(compute.mean() / steps_s)
    return dict(ranks=len(ranks), tasks=len(rows), compute_s=float(compute.mean() / steps), compute=busy, waiting=float(waiting.mean()),
                waiting_min=float(waiting.min()), waiting_max=float(waiting.max()), rest=max(0.0, 1.0 - busy - float(waiting.mean())),
                idle=float(np.mean([idle[rank] for rank in ranks])))
