import sys
import tomllib

import make_costs
import pytest

DECK = """
[[section]]
name = "vision"
mode = "{mode}"
[section.layout]
dp = 2
[[section]]
name = "language"
[section.layout]
dp = 4
{layout}
[[edge]]
from = "vision"
to = "language"
"""


def deck(layout="", mode="train"):
    return tomllib.loads(DECK.format(layout=layout, mode=mode))


def draw(deck, **changes):
    return make_costs.draw(deck, **{"per_replica": 8, "share": 0.5, "load": 0.6, "sigma": 0.6, "seed": 3, **changes})


def work(rows, section):
    return sum(row[2] + row[3] for row in rows if row[1] == section)


@pytest.mark.parametrize("pp", [1, 4])
def test_the_load_is_of_lanes(pp):
    rows = draw(deck(f"pp = {pp}"))
    assert len({row[0] for row in rows}) == 32
    assert work(rows, "vision") / 2 == pytest.approx(0.6 * work(rows, "language") / (4 * pp))
    assert all(row[3] == 0 for row in draw(deck(mode="forward")) if row[1] == "vision")


@pytest.mark.parametrize("layout, layers", [("", [1]), ("pp = 3", [1, 1, 1]), ("pp = 2\nchunks = 2", [1, 1, 1, 1]), ("pp = 3\nstages = [1, 4, 3]", [1, 4, 3])])
def test_stages_divide_the_time_of_their_section(layout, layers):
    whole = draw(deck(layout))
    parts = {}
    for sample, section, forward, backward, stage in make_costs.by_stage(deck(layout), whole):
        parts.setdefault((sample, section), []).append((stage, forward, backward))
    assert len(parts) == len(whole)
    for sample, section, forward, backward in whole:
        shares = [n / sum(layers) for n in layers] if section == "language" else [1]
        expected = [(stage, forward * share, backward * share) for stage, share in enumerate(shares)]
        assert parts[sample, section] == [pytest.approx(part) for part in expected]


def test_stages_that_the_layout_does_not_have():
    wrong = deck("pp = 2\nstages = [1, 2, 3]")
    with pytest.raises(SystemExit, match="section language: layout.stages has 3 numbers; pp x chunks is 2"):
        make_costs.by_stage(wrong, draw(wrong))


@pytest.mark.parametrize("options, header", [([], "sample,section,forward_s,backward_s"), (["--by-stage"], "sample,section,forward_s,backward_s,stage")])
def test_the_file_has_a_column_for_stages_on_demand(tmp_path, monkeypatch, options, header):
    (tmp_path / "deck.toml").write_text(DECK.format(layout="pp = 3", mode="train"))
    monkeypatch.setattr(sys, "argv", ["make_costs.py", str(tmp_path / "deck.toml"), str(tmp_path / "folder/costs.csv"), *options])
    make_costs.main()
    first, *lines = (tmp_path / "folder/costs.csv").read_text().splitlines()
    assert first == header and all(line.count(",") == header.count(",") for line in lines)
    assert sum(",language," in line for line in lines) == 64 * (3 if options else 1)
