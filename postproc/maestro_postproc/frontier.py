"""Draws what `maestro plan --ranks A-B` has found: the fastest plan of each number of ranks, beside one layout for all sections."""

import json
import math
import pathlib
from dataclasses import dataclass

from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from .figures import COLOURS, new_figure, save
from .run import BAD_DATA, INPUT_MISSING, RunError

MOST_LINES = 26  # of the table of layouts
LINE_CHARACTERS = 122


@dataclass
class OneLayout:
    """The best layout for all sections together on as many ranks: in the order of the data, and in that of wavefront."""

    step_s: float
    wavefront_step_s: float
    tokens_per_rank_hour: float

    @property
    def wavefront_tokens_per_rank_hour(self):
        return self.tokens_per_rank_hour * self.step_s / self.wavefront_step_s


@dataclass
class FrontierPlan:
    ranks: int
    step_s: float
    tokens_per_rank_hour: float
    layouts: list  # of its sections, as `maestro plan` prints them
    one: OneLayout | None  # None: there is none, or an older build did not tell

    @property
    def gain(self):
        """(in all, by the order, by the layouts), over one layout in the order of the data; None where that is not known."""
        if not self.one:
            return None
        total, order = self.tokens_per_rank_hour / self.one.tokens_per_rank_hour, self.one.step_s / self.one.wavefront_step_s
        return total, order, total / order


def read_frontier(path):
    """Returns the FrontierPlans of a file that is, or whose last line is, the JSON object that `maestro plan` prints, by ascending ranks."""
    path = pathlib.Path(path)
    try:
        text = path.read_text()
    except OSError as error:
        raise RunError(INPUT_MISSING, f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RunError(BAD_DATA, f"{path}: not a text") from None
    plan = _json_of(text)
    if not isinstance(plan, dict) or not isinstance(plan.get("frontier"), list) or "plans" not in plan:
        raise RunError(BAD_DATA, f"{path}: neither it nor its last line is the JSON object that maestro plan prints")
    if not plan["plans"]:
        raise RunError(BAD_DATA, f"{path}: no plan fits; the messages of maestro plan say why")
    if not plan["frontier"]:
        raise RunError(BAD_DATA, f"{path}: a plan for one number of ranks has no frontier; give maestro plan a range, such as --ranks 8-64")
    try:
        plans = [_plan_of(entry) for entry in plan["frontier"]]
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise RunError(BAD_DATA, f"{path}: an entry of \"frontier\" is not as docs/file_formats.md describes it ({type(error).__name__}: {error})") from None
    return sorted(plans, key=lambda plan: plan.ranks)


def _json_of(text):
    """The object that the text is, or its last line; None if neither is JSON."""
    for candidate in (text, *text.strip().splitlines()[-1:]):
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    return None


def _plan_of(entry):
    one = entry.get("one_size")
    return FrontierPlan(int(entry["ranks"]), _positive(entry["step_s"]), _positive(entry["tokens_per_rank_hour"]),
                        [f"{section}: {layout_text(layout)}" for section, layout in entry["layout"].items()],
                        OneLayout(*(_positive(one[key]) for key in ("step_s", "wavefront_step_s", "tokens_per_rank_hour"))) if one else None)


def _positive(value):
    value = float(value)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{value} where a positive number belongs")
    return value


def layout_text(layout):
    """A layout of the JSON object in the words of the table that `maestro plan` prints: "dp 2 tp 4 mb 8 cheap, with vision"."""
    words = [f"{key} {layout[key]}" for key in ("dp", "tp", "cp") if key == "dp" or layout[key] > 1]
    if layout["cp"] > 1 and layout["cp_kind"] != "ring":
        words.append(layout["cp_kind"])
    if layout["pp"] > 1:
        words.append(f"pp {layout['pp']}" + (f"x{layout['chunks']}" if layout["chunks"] > 1 else ""))
    words += [f"{name} {layout[key]}" for key, name in (("ep", "ep"), ("etp", "etp"), ("micro_batch", "mb")) if layout[key] > 1]
    if layout["recompute"] != "none":
        words.append(layout["recompute"])
    if layout.get("recompute_layers"):
        words.append(str(layout["recompute_layers"]))
    host = layout.get("colocate_with")
    return " ".join(words) + (f", with {host}" if host else "")


def plot_frontier(plans, path):
    """Draws step time and tokens per rank-hour of the FrontierPlans over their ranks, those of one layout beside them, and marks the plan
    with the most tokens per rank-hour. Below, a table has the gains and the layouts."""
    best = max(plans, key=lambda plan: plan.tokens_per_rank_hour)
    lines, bold = _table(plans, best)
    heights = (2.7, 2.7, 0.165 * len(lines) + 0.1)
    figure, (times, tokens, table) = new_figure(9.5, sum(heights) + 0.6, heights)
    known = [plan for plan in plans if plan.one]
    ranks, known_ranks = [plan.ranks for plan in plans], [plan.ranks for plan in known]
    for axes, value, of_one, of_wavefront in (
            (times, lambda p: p.step_s * 1e3, lambda p: p.one.step_s * 1e3, lambda p: p.one.wavefront_step_s * 1e3),
            (tokens, lambda p: p.tokens_per_rank_hour / 1e6, lambda p: p.one.tokens_per_rank_hour / 1e6,
             lambda p: p.one.wavefront_tokens_per_rank_hour / 1e6)):
        if known:
            axes.plot(known_ranks, [of_one(plan) for plan in known], "s-", color=COLOURS[1], linewidth=1.3, markersize=4,
                      label="one layout for all sections, in the order of the data")
            # Before the plans, which often take as long.
            axes.plot(known_ranks, [of_wavefront(plan) for plan in known], "D--", color=COLOURS[2], markerfacecolor="none", linewidth=1.2,
                      markersize=7, markeredgewidth=1.2, zorder=3, label="the same layout, in wavefront's order")
        axes.plot(ranks, [value(plan) for plan in plans], "o-", color=COLOURS[0], linewidth=1.8, markersize=5, label="fastest plan")
        axes.plot([best.ranks], [value(best)], "*", color=COLOURS[5], markeredgecolor="white", markeredgewidth=0.6, markersize=16, zorder=4,
                  label=f"best: {best.ranks} rank{'s' if best.ranks > 1 else ''}, {best.tokens_per_rank_hour / 1e6:.4g} M tokens per rank-hour")
        axes.grid(True, which="major", color="#E6E6E6", linewidth=0.8)
        axes.set_axisbelow(True)
        _scale_ranks(axes, ranks)
    _scale_times(times, plans)
    times.set_ylabel("step time (ms)")
    times.tick_params(labelbottom=False)
    tokens.set_ylabel("M tokens per rank-hour")
    tokens.set_xlabel("ranks")
    handles = times.get_legend_handles_labels()
    times.legend(*handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncol=2, frameon=False, fontsize=9, columnspacing=1.5)
    figure.align_ylabels([times, tokens])
    _draw_table(table, lines, bold)
    save(figure, path)


def _scale_ranks(axes, ranks):
    """The axis of ranks: logarithmic over a wide range, with ticks at whole numbers."""
    if ranks[-1] > 8 * ranks[0]:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator([2**k for k in range(15) if ranks[0] <= 2**k <= ranks[-1]]))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _scale_times(axes, plans):
    """The axis of step times: logarithmic over a wide range, with ticks at 1, 2 and 5."""
    values = [1e3 * plan.step_s for plan in plans] + [1e3 * plan.one.step_s for plan in plans if plan.one]
    if max(values) <= 4 * min(values):
        axes.set_ylim(bottom=0)
        return
    axes.set_yscale("log")
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    axes.yaxis.set_major_locator(FixedLocator([digit * 10.0**k for k in range(low, high + 1) for digit in (1, 2, 5)]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _table(plans, best):
    """Returns the lines of the table and the numbers of those of the best plan. Of many plans, some are left out between others."""
    gains = any(plan.gain for plan in plans)
    head = f"{'ranks':>7}{'step ms':>11}" + (f"{'gain = order x layouts':>25}" if gains else "") + "  "
    layouts = {plan.ranks: _lines_of(plan.layouts, LINE_CHARACTERS - len(head)) for plan in plans}
    rows = max(6, MOST_LINES // max(map(len, layouts.values())))
    places = {round(k * (len(plans) - 1) / (rows - 1)) for k in range(rows)} if len(plans) > rows else range(len(plans))
    shown = [plan for k, plan in enumerate(plans) if k in places or plan is best]
    lines, bold = [head + "layouts"], []
    for plan in shown:
        cells = f"{plan.ranks:>7}{1e3 * plan.step_s:>11.4g}"
        if gains:
            cells += f"{'{:.3f} = {:.3f} x {:.3f}'.format(*plan.gain) if plan.gain else '-':>25}"
        if plan is best:
            bold = range(len(lines), len(lines) + len(layouts[plan.ranks]))
        lines += [(cells + "  " if k == 0 else " " * len(head)) + part for k, part in enumerate(layouts[plan.ranks])]
    if len(shown) < len(plans):
        lines.append(f"{len(shown)} of {len(plans)} plans")
    return lines, bold


def _lines_of(layouts, width):
    """The layouts of the sections in lines that break between sections."""
    lines = []
    for layout in layouts:
        if lines and len(lines[-1]) + len(layout) + 3 <= width:
            lines[-1] += "; " + layout
        else:
            lines[-1:] = [*(line + ";" for line in lines[-1:]), layout]
    return lines


def _draw_table(axes, lines, bold):
    axes.set_axis_off()
    for k, line in enumerate(lines):
        colour = "#555555" if k == 0 else COLOURS[5] if k in bold else "black"
        axes.text(0, 1 - (k + 0.5) / len(lines), line, family="monospace", fontsize=8, color=colour, va="center",
                  weight="bold" if k in bold else "normal", transform=axes.transAxes)
