"""Writes the timeline as Chrome-trace JSON."""

import json

import numpy as np

from .figures import publish
from .run import KINDS, PHASES
from .tasks import of_rank, syncs_of, tasks_of, waits


def write_trace(run, steps, path):
    """Writes one process per rank, two threads per stage of a section, for its tasks and for its sums and gathers, times in
    microseconds since the start of the run."""
    rows, syncs = tasks_of(run, steps), syncs_of(run, steps)
    threads = {}  # of (section, stage)
    for section in range(len(run.sections)):
        for stage in run.stages[section]:
            threads[section, stage] = len(threads) + 1
    events = []
    for rank in np.unique(rows.rank):
        events.append({"name": "process_name", "ph": "M", "pid": int(rank), "tid": 0, "args": {"name": f"rank {rank}"}})
        events.append({"name": "process_sort_index", "ph": "M", "pid": int(rank), "tid": 0,
                       "args": {"sort_index": int(rank)}})
        tasks = of_rank(rows, rank)
        for section, stage in np.unique(np.stack([tasks.section, tasks.stage]), axis=1).T:
            events.append({"name": "thread_name", "ph": "M", "pid": int(rank), "tid": threads[section, stage],
                           "args": {"name": run.stage_name(section, stage)}})
        for i, (wait_from, wait_to) in enumerate(waits(tasks)):
            place = {"pid": int(rank), "tid": threads[tasks.section[i], tasks.stage[i]]}
            facts = {"section": run.sections[tasks.section[i]], "replica": int(tasks.replica[i]),
                     "stage": int(tasks.stage[i]), "step": int(tasks.step[i]), "micro_batch": int(tasks.micro_batch[i]),
                     "wait_s": float(tasks.wait_s[i])}
            if wait_to > wait_from:
                events.append({"name": "waiting", "cat": "waiting", "ph": "X", **place, **_span(wait_from, wait_to),
                               "args": facts})
            name = PHASES[int(tasks.phase[i])]
            events.append({"name": f"{name} {int(tasks.micro_batch[i])}", "cat": name, "ph": "X", **place,
                           **_span(tasks.start_s[i], tasks.end_s[i]), "args": facts})
        events += _syncs_of_rank(run, of_rank(syncs, rank), {stage: len(threads) + tid for stage, tid in threads.items()})
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
    publish(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def _syncs_of_rank(run, syncs, threads):
    """The events of a rank's sums and gathers; `threads` are their numbers by (section, stage)."""
    events = []
    for i in range(len(syncs)):
        section, stage = int(syncs.section[i]), int(syncs.stage[i])
        place = {"pid": int(syncs.rank[i]), "tid": threads[section, stage]}
        name = KINDS[int(syncs.kind[i])]
        events.append({"name": "thread_name", "ph": "M", **place, "args": {"name": f"{run.stage_name(section, stage)}: sums and gathers"}})
        facts = {"section": run.sections[section], "replica": int(syncs.replica[i]), "stage": stage, "step": int(syncs.step[i]),
                 "groups": int(syncs.groups[i]), "busy_s": float(syncs.busy_s[i])}
        events.append({"name": name, "cat": name, "ph": "X", **place, **_span(syncs.start_s[i], syncs.end_s[i]), "args": facts})
    return events


def _span(start, end):
    return {"ts": round(float(start) * 1e6, 3), "dur": round(float(end - start) * 1e6, 3)}
