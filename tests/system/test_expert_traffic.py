"""What ranks that share experts send each other, counted where MPI is called (count_shim.c) and equal to the closed form.

Where every row chooses all experts, it goes to all ranks of its group, and each of the n - 1 others sends a result back. With R rows
of a rank, C width, k choices and e bytes of an element, a layer takes of the group, forward and backward together,
* rows: there, back; there with its gradient, and the gradient back: 5 (n - 1) C e for each row;
* choices and their weights, which all ranks need, and the gradients of the weights: 3 (n - 1) k e for each row.
"""

import pytest
from conftest import ROOT
from test_traffic import run, samples, shim  # noqa: F401
from traffic import BYTES, Layout, share, zigzag

import test_traffic

DECK = str(ROOT / "inputs/layouts_moe.toml")
LAYERS, EXPERTS, WIDTH = 2, 12, 96  # layers with experts
ALL_EXPERTS = [f"model.language-12.experts_per_token={EXPERTS}", "model.language-12.expert_mlp=12"]

# The language model's layout, ep and etp.
CASES = {
    "tp2-ep2": (dict(tp=2), 2, 1),
    "cp2-etp2": (dict(cp=2), 1, 2),
    "tp2-cp2-ep4": (dict(tp=2, cp=2), 4, 1),
    "tp2-cp2-ep2-etp2": (dict(tp=2, cp=2), 2, 2),
    "dp2-tp4-ep2": (dict(dp=2, tp=4), 2, 1),
}
QUICK = {"tp2-cp2-ep2-etp2", "dp2-tp4-ep2"}  # the others run under --all alone


@pytest.mark.parametrize("case", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.nightly) for name in CASES])
def test_rows_travel_once_to_each_rank(workspace, shim, samples, monkeypatch, case):  # noqa: F811
    values, ep, etp = CASES[case]
    layout, size = Layout(**values), ep * etp
    monkeypatch.setattr(test_traffic, "DECK", DECK)
    expert_layout = [f"section.language.layout.ep={ep}", f"section.language.layout.etp={etp}"]
    counted, batches = run(workspace, shim, [Layout(), layout], [*ALL_EXPERTS, *expert_layout])
    sent = [0] * layout.ranks
    for (_, section, replica, _), numbers in batches.items():
        if section != "language":
            continue
        slices = zigzag([samples[i].length for i in numbers], layout.cp)[0]
        rows = [share(len(slices[cp]), tp, layout.tp) for cp in range(layout.cp) for tp in range(layout.tp)]
        for rank, mine in enumerate(rows):
            first = rank // size * size
            others = sum(rows[first:first + size]) - mine
            to_each = mine * (3 * WIDTH + 2 * EXPERTS)  # rows, rows again with gradients; choices and weights
            sent[replica * layout.lane + rank] += LAYERS * BYTES * ((size - 1) * to_each + others * (2 * WIDTH + EXPERTS))
    for rank, expected in enumerate(sent):
        name = f"section language, ranks that share experts, group {rank // size}"
        assert counted[1 + rank]["send 3", name][1] == expected, f"rank {rank} of the section"
    total = sum(samples[i].length for (_, section, *_), numbers in batches.items() if section == "language" for i in numbers)
    assert sum(sent) == total * LAYERS * BYTES * (size - 1) * (5 * WIDTH + 3 * EXPERTS)
