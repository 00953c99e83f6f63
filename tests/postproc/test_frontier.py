"""`maestro-postproc frontier`: what it draws of the JSON object that `maestro plan --ranks A-B` prints."""

import json
import warnings

import pytest
from maestro_postproc import frontier
from maestro_postproc.cli import main


def layout(**keys):
    return {"dp": 1, "tp": 1, "cp": 1, "pp": 1, "chunks": 1, "ep": 1, "etp": 1, "micro_batch": 1, "recompute": "none", "window": 2} | keys


def entry(ranks, step_s, one=True):
    """A plan of 360 tokens a step. One layout takes 1.2 times as long in the order of the data, and 1.1 times in wavefront's."""
    best = {"ranks": ranks, "step_s": step_s, "tokens_per_rank_hour": 3600 * 360 / step_s / ranks,
            "layout": {"vision": layout(tp=2, recompute="cheap"), "language": layout(dp=ranks, micro_batch=4, colocate_with="vision")}}
    of_one = {"ranks": ranks, "step_s": 1.2 * step_s, "wavefront_step_s": 1.1 * step_s, "tokens_per_rank_hour": 3000 * 360 / step_s / ranks}
    return best | ({"one_size": of_one} if one else {})


def write(path, entries, before=""):
    path.write_text(before + json.dumps({"plans": entries[:1], "one_size": None, "frontier": entries}) + "\n")
    return path


@pytest.fixture
def drawn(monkeypatch):
    """Draws FILE without any warning, and returns the panels."""
    figures = []
    monkeypatch.setattr(frontier, "save", lambda figure, path: (figure.canvas.draw(), figures.append(figure)))

    def draw(file):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            frontier.plot_frontier(frontier.read_frontier(file), "plan.png")
        return figures[-1].axes

    return draw


def lines_of(axes):
    return {line.get_label().split(":")[0]: ([int(x) for x in line.get_xdata()], list(line.get_ydata())) for line in axes.lines}


def test_every_plan_is_beside_one_layout_on_as_many_ranks(tmp_path, drawn):
    file = write(tmp_path / "plan.log", [entry(8, 1.5), entry(4, 2), entry(6, 1.6, one=False)], before="a line\n")
    times, tokens, table = drawn(file)
    best = "best"  # 4 ranks: 162,000 tokens per rank-hour; 8: 108,000
    of_one, in_wavefront = "one layout for all sections, in the order of the data", "the same layout, in wavefront's order"
    times, tokens = lines_of(times), lines_of(tokens)
    assert times["fastest plan"] == ([4, 6, 8], pytest.approx([2000, 1600, 1500])) and times[best] == ([4], [2000])
    assert times[of_one] == ([4, 8], pytest.approx([2400, 1800])) and times[in_wavefront] == ([4, 8], pytest.approx([2200, 1650]))
    assert tokens["fastest plan"] == ([4, 6, 8], pytest.approx([0.162, 0.135, 0.108])) and tokens[best] == ([4], pytest.approx([0.162]))
    assert tokens[of_one] == ([4, 8], pytest.approx([0.135, 0.09]))
    assert tokens[in_wavefront] == ([4, 8], pytest.approx([0.162 / 1.1, 0.108 / 1.1]))
    rows = [text.get_text().split(maxsplit=7) for text in table.texts]
    assert rows[1] == ["4", "2000", "1.200", "=", "1.091", "x", "1.100", "vision: dp 1 tp 2 cheap; language: dp 4 mb 4, with vision"]
    assert rows[2][:3] == ["6", "1600", "-"]
    assert [text.get_weight() for text in table.texts] == ["normal", "bold", "normal", "normal"]


def test_the_layouts_of_many_plans_stay_legible(tmp_path, drawn):
    entries = [entry(8 + k, 20 / (8 + k) + 0.5 * (k != 77), one=False) for k in range(120)]
    for some in entries:
        some["layout"] = {f"section_{k}": layout(dp=3, tp=4, pp=2, chunks=2, ep=8, cp=2, cp_kind="all-to-all", recompute="layer",
                                                 recompute_layers=12) for k in range(3)}
    times, _, table = drawn(write(tmp_path / "plan.json", entries))
    assert len(lines_of(times)["fastest plan"][0]) == 120 and times.get_xscale() == "log"
    texts = [text.get_text() for text in table.texts]
    assert len(texts) < 40 and texts[-1].endswith("of 120 plans") and max(map(len, texts)) <= frontier.LINE_CHARACTERS
    assert {text.split()[0] for text in texts} >= {"8", "85", "127"}, "the first, the best and the last are never left out"
    assert texts[1].endswith("section_0: dp 3 tp 4 cp 2 all-to-all pp 2x2 ep 8 layer 12;") and texts[2].strip().startswith("section_1: dp 3")
    # Within the figure, and none upon another.
    boxes = [text.get_window_extent() for text in table.texts]
    assert all(box.x1 <= table.figure.bbox.x1 and box.y0 >= 0 for box in boxes)
    assert all(above.y0 >= below.y1 - 1 for above, below in zip(boxes, boxes[1:]))


def test_a_picture_is_written_beside_the_file(tmp_path, capsys):
    file = write(tmp_path / "plan.log", [entry(1, 1.0)])
    assert main(["frontier", str(file)]) == 0 and capsys.readouterr().out.strip() == str(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "pretty.json").write_text(json.dumps(json.loads(file.read_text()), indent=1))
    assert main(["frontier", str(tmp_path / "pretty.json"), "--out", str(tmp_path / "other.png")]) == 0
    assert (tmp_path / "other.png").exists()


def test_what_is_no_frontier_is_refused(tmp_path, capsys):
    for text, message in (("", "neither it nor its last line is"), ('{"loss": 1}', "neither it nor its last line is"), ("[1]\n", "neither it"),
                          ('{"plans": [], "frontier": [], "impossible": []}', "no plan fits"),
                          ('{"plans": [{}], "frontier": []}', "give maestro plan a range"),
                          ('{"plans": [{}], "frontier": [{"ranks": 1}]}', "not as docs/file_formats.md describes it"),
                          (json.dumps({"plans": [{}], "frontier": [entry(1, 1) | {"step_s": 0}]}), "not as docs/file_formats.md describes it")):
        (tmp_path / "plan.log").write_text(text)
        assert main(["frontier", str(tmp_path / "plan.log")]) == 65 and message in capsys.readouterr().err
    assert main(["frontier", str(tmp_path / "none.log")]) == 66 and "No such file" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.png"))
