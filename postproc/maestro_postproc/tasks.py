"""The tasks of chosen steps on one clock, and the time between them.

The idle time of a rank, in a pipeline its bubbles, is the time from the first task of a step on any rank to the last one in which
the rank runs no task of any section."""

from dataclasses import replace

import numpy as np

from .run import BAD_DATA, GATHER, KINDS, PHASES, USAGE, RunError


def tasks_of(run, steps):
    """Returns the timeline rows of `steps`. Raises RunError if there are none or if a phase is unknown."""
    rows = run.timeline.select(np.isin(run.timeline.step, steps))
    if not len(rows):
        known = np.unique(run.timeline.step)
        has = f"steps {known[0]} to {known[-1]} have some" if len(known) else "no step has any (is metrics.timeline_every 0?)"
        raise RunError(USAGE if len(known) else BAD_DATA, f"{run.path}: no tasks of the chosen steps are recorded; {has}")
    if not np.isin(rows.phase, list(PHASES)).all():
        raise RunError(BAD_DATA, f"{run.path}: /timeline/phase holds a value that is neither 0 (forward) nor 1 (backward)")
    return _shifted(rows, _shifts(rows))


def syncs_of(run, steps):
    """Returns the sums of gradients and gathers of weights that were under way in `steps`, on the clock of tasks_of(run, steps). The
    weights that the step before has updated are gathered in the first of them."""
    rows = run.timeline.select(np.isin(run.timeline.step, [*steps, min(steps) - 1]))
    shifts = _shifts(rows)
    first = min(shifts.keys() & set(steps))
    under_way = np.isin(run.syncs.step, steps) | ((run.syncs.step == first - 1) & (run.syncs.kind == GATHER))
    syncs = run.syncs.select(under_way & np.isin(run.syncs.step, list(shifts)))
    if not np.isin(syncs.kind, list(KINDS)).all():
        raise RunError(BAD_DATA, f"{run.path}: /syncs/kind holds a value that is neither 0 (sums) nor 1 (gathers)")
    return _shifted(syncs, {step: shift - shifts[first] for step, shift in shifts.items()})


def _shifts(rows):
    """Returns, by step, what to add to its times. The clock of a resumed run starts at zero again with every start: its steps move
    behind the steps before them."""
    shifts, shift, last_start, last_end = {}, 0.0, -np.inf, -np.inf
    for step in np.unique(rows.step):
        tasks = rows.select(rows.step == step)
        first = origin(tasks)
        if first + shift < last_start:
            shift = last_end - first
        shifts[int(step)] = shift
        last_start, last_end = first + shift, float(tasks.end_s.max()) + shift
    return shifts


def _shifted(rows, shifts):
    by = np.array([shifts[int(step)] for step in rows.step], float)
    return replace(rows, start_s=rows.start_s + by, end_s=rows.end_s + by)


def on_every_rank(rows):
    """Returns `rows` with the tasks of a replica on each rank that records tasks, not on its first alone. Where several replicas of a
    section share a lane, their first ranks record their tasks, but those of a colocated section with one replica there are recorded by
    the first rank of the lane."""
    ranks = np.unique(rows.rank)
    recorders = {int(section): np.unique(rows.rank[rows.section == section]) for section in np.unique(rows.section)}
    # A section has the ranks from its first one to the first one of the next section.
    begins = np.array(sorted({int(of[0]) for of in recorders.values()}))
    chosen, at = [], []
    for section, of in recorders.items():
        later = begins[begins > of[0]]
        for rank in ranks[(ranks >= of[0]) & (ranks < (later[0] if len(later) else np.inf))]:
            index = np.flatnonzero((rows.section == section) & (rows.rank == of[of <= rank].max()))
            chosen.append(index)
            at.append(np.full(len(index), rank))
    return replace(rows.select(np.concatenate(chosen)), rank=np.concatenate(at))


def origin(rows):
    """The time at which the first task, or the wait before it, begins."""
    return float((rows.start_s - rows.wait_s).min())


def of_rank(rows, rank):
    """The tasks of one rank in order of their start."""
    rows = rows.select(rows.rank == rank)
    return rows.select(np.argsort(rows.start_s, kind="stable"))


def waits(tasks):
    """(start, end) of the wait before each task of a rank, in order of start. A wait never overlaps the task before it."""
    before = np.concatenate([[-np.inf], tasks.end_s[:-1]])
    return list(zip(np.minimum(tasks.start_s, np.maximum(tasks.start_s - tasks.wait_s, before)), tasks.start_s))


def spans(rows):
    """Returns the steps of `rows`, ascending, with the times at which their first task starts and their last task ends."""
    steps, place = np.unique(rows.step, return_inverse=True)
    begin, end = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(begin, place, rows.start_s)
    np.maximum.at(end, place, rows.end_s)
    return steps, begin, end


def gaps(rows, rank):
    """Returns the idle times of a rank as (start, end), step by step. `rows` are the tasks of all ranks."""
    found = []
    for step, begin, end in zip(*spans(rows)):
        tasks = of_rank(rows.select(rows.step == step), rank)
        done = np.concatenate([[begin], np.maximum.accumulate(tasks.end_s)])
        found += [(a, b) for a, b in zip(done, [*tasks.start_s, end]) if b > a]
    return found


def idle_shares(rows, ranks):
    """Returns the idle share of each of `ranks` over the steps of `rows`, from 0 to 1; NaN if they take no time. `rows` are the tasks of all
    ranks."""
    _, begin, end = spans(rows)
    elapsed = float((end - begin).sum())
    known, place = np.unique(rows.rank, return_inverse=True)
    busy = dict(zip(known, np.bincount(place, weights=rows.end_s - rows.start_s)))
    return np.maximum(0.0, [1 - busy.get(rank, 0.0) / elapsed if elapsed > 0 else np.nan for rank in ranks])
