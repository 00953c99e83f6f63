"""The summary of a run and the comparison of two, as text and as dictionaries of plain values."""

import difflib

import numpy as np

from .experts import latest_loads
from .shares import section_shares


def summarise(run, skip=1):
    """Returns what `summary` prints as a dictionary of plain values."""
    steps = run.steps
    facts = {"run": str(run.path), "steps": len(steps), "sections": run.sections, "checkpoints": run.checkpoints,
             "exit": run.exit}
    if len(steps):
        warm = slice(skip if len(steps) > skip else 0, None)
        seconds = float(steps.time_s[warm].sum())
        known = np.flatnonzero(np.isfinite(steps.loss))  # a step without targets has no loss
        lowest = known[np.argmin(steps.loss[known])] if len(known) else None
        facts.update(
            first_step=int(steps.step[0]), last_step=int(steps.step[-1]),
            first_loss=_plain(steps.loss[0]), last_loss=_plain(steps.loss[-1]),
            lowest_loss=None if lowest is None else float(steps.loss[lowest]),
            lowest_loss_step=None if lowest is None else int(steps.step[lowest]), steps_without_targets=len(steps) - len(known),
            tokens=int(steps.tokens.sum()), seconds=float(steps.time_s.sum()), step_s=float(np.median(steps.time_s[warm])),
            tokens_per_s=float(steps.tokens[warm].sum() / seconds) if seconds > 0 else None,
            shares=[share.as_dict() for share in section_shares(run, skip)], experts=latest_loads(run),
            terms=[dict(section=run.sections[section], term=name, first=_plain(rows.value[0]), last=_plain(rows.value[-1]))
                   for (section, name), rows in run.losses.by_term().items()])
    return facts


def _plain(value):
    """A number for JSON; None where it is none."""
    return float(value) if np.isfinite(value) else None


def _shown(value, form, none="none"):
    return none if value is None else form.format(value)


def summary_text(run, skip=1):
    facts = summarise(run, skip)
    lines = [f"run          {facts['run']}", f"ended        {_ending(run.exit)}"]
    if not facts["steps"]:
        return "\n".join([*lines, "steps        none recorded yet"])
    lines += [
        f"steps        {facts['steps']} ({facts['first_step']} to {facts['last_step']})",
        f"loss         {_shown(facts['first_loss'], '{:.4f}')} at the first step, {_shown(facts['last_loss'], '{:.4f}')} at the last; lowest "
        f"{_shown(facts['lowest_loss'], '{:.4f}')}" + (f" at step {facts['lowest_loss_step']}" if facts["lowest_loss_step"] else ""),
        *([f"             {facts['steps_without_targets']} steps have no loss, because they had no targets"]
          if facts["steps_without_targets"] else []),
        *(map(_term_line, facts["terms"]) if len(facts["terms"]) > 1 else ()),
        f"tokens       {facts['tokens']:,} in {facts['seconds']:.1f} s of steps",
        f"speed        {_shown(facts['tokens_per_s'], '{:,.0f}')} tokens/s; median step {facts['step_s'] * 1e3:.1f} ms",
        f"checkpoints  {', '.join(map(str, facts['checkpoints'])) or 'none'}", *map(_experts_line, facts["experts"]), "",
        shares_text(section_shares(run, skip))]
    return "\n".join(lines)


def _term_line(term):
    return (f"term         {term['term']} of {term['section']}: {_shown(term['first'], '{:.4g}')} at first, "
            f"{_shown(term['last'], '{:.4g}')} at last")


def _experts_line(loads):
    layers, steps = ("1 layer" if loads["layers"] == 1 else f"{loads['layers']} layers"), loads["steps"]
    return (f"experts      {loads['section']}, {layers}, {'last step' if steps == 1 else f'last {steps} steps'}: the most loaded has "
            f"{loads['largest']:.2f} times the mean load (layer {loads['worst_layer']}: {loads['worst_largest']:.2f}), the least "
            f"{loads['smallest']:.2f}; entropy {loads['entropy']:.3f}")


def shares_text(shares):
    lines = [("section", "ranks", "compute/step", "compute", "waiting (min - max of ranks)", "rest", "idle")]
    for share in shares:
        lines += [_share_line(share.section, share), *(_share_line(f"  stage {stage.stage}", stage) for stage in share.stages)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    text = ["  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]) for line in lines]
    return "\n".join([*text, "idle: share of the time from the first task of a step to the last in which these ranks run none"])


def _share_line(name, s):
    if s.idle is None:
        return (name, f"{s.ranks}", *["-"] * 5)
    return (name, f"{s.ranks}", f"{s.compute_s * 1e3:.1f} ms", f"{s.compute:.1%}",
            f"{s.waiting:.1%} ({s.waiting_min:>6.1%} - {s.waiting_max:>6.1%})", f"{s.rest:.1%}", f"{s.idle:.1%}")


def _ending(report):
    if report is None:
        return "still running, or killed (no exit.json)"
    text = f"code {report.get('code', '?')}"
    if report.get("step") is not None:
        text += f" at step {report['step']}"
    return text + (f": {report['reason']}" if report.get("reason") else "")


def compare(first, second, skip=1):
    """Compares the losses of common steps, speed, waiting times and decks of two runs; returns a dictionary of plain values."""
    steps, a, b = np.intersect1d(first.steps.step, second.steps.step, return_indices=True)
    left, right = first.steps.loss[a], second.steps.loss[b]
    facts = {"first": summarise(first, skip), "second": summarise(second, skip), "common_steps": len(steps),
             "equal_bit_for_bit": bool(len(steps) and np.array_equal(left, right, equal_nan=True)),
             "largest_difference": None, "largest_difference_step": None, "first_difference_step": None,
             "deck_difference": _difference(first.deck, second.deck)}
    if len(steps):
        with np.errstate(divide="ignore", invalid="ignore"):
            # Two steps without targets have equal losses: none.
            relative = np.where((left == right) | (np.isnan(left) & np.isnan(right)), 0.0, np.abs(left - right) / np.abs(left))
        relative = np.where(np.isnan(relative), np.inf, relative)
        worst = int(np.argmax(relative))
        facts.update(largest_difference=float(relative[worst]), largest_difference_step=int(steps[worst]))
        if relative[worst] > 0:
            facts["first_difference_step"] = int(steps[np.argmax(relative > 0)])
    return facts


def _difference(first, second):
    """The lines that only one of two texts has, marked with - and +."""
    lines = list(difflib.unified_diff(first.splitlines(), second.splitlines(), n=0, lineterm=""))
    return [line for line in lines[2:] if not line.startswith("@@")]


def compare_text(first, second, skip=1):
    facts = compare(first, second, skip)
    lines = []
    if not facts["common_steps"]:
        lines.append("losses       the runs have no step in common")
    elif facts["equal_bit_for_bit"]:
        lines.append(f"losses       equal bit for bit over {facts['common_steps']} common steps")
    else:
        lines.append(f"losses       {facts['common_steps']} common steps; first difference at step {facts['first_difference_step']}, "
                     f"largest {facts['largest_difference']:.2e} relative at step {facts['largest_difference_step']}")
    rows = [("", first.name, second.name)]
    for title, key, form in (("steps", "steps", "{}"), ("last loss", "last_loss", "{:.6g}"),
                             ("tokens/s", "tokens_per_s", "{:,.0f}"), ("median step", "step_s", "{:.4f} s")):
        rows.append((title, *(_shown(facts[side].get(key), form, "-") for side in ("first", "second"))))
    shares = [{s["section"]: s for s in facts[side].get("shares", [])} for side in ("first", "second")]
    for section in dict.fromkeys([*shares[0], *shares[1]]):
        for what in ("waiting", "idle"):
            rows.append((f"{what}, {section}", *(_shown(side.get(section, {}).get(what), "{:.1%}", "-") for side in shares)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines += ["", *(f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}" for row in rows), ""]
    lines.append("decks        equal" if not facts["deck_difference"] else "decks        differ (- first, + second):")
    return "\n".join([*lines, *("  " + line for line in facts["deck_difference"])])
