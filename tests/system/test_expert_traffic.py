"""What ranks that share experts send each other, counted where MPI is called (count_shim.c) and equal to the closed form.

Where every row chooses all experts, it goes to all ranks of its group, and each of the n - 1 others sends a result back. With R rows
of a rank, C width, k choices and e bytes of an element, a layer takes of the group, forward and backward together,
* rows: there, back; there with its gradient, and the gradient back: 5 (n - 1) C e for each row;
* choices, which all ranks need, and with the rows their weights, there and again, and the gradients of these: 4 (n - 1) k e for each row.
"""

import pytest
from conftest import ROOT
from test_traffic import run, samples, shim  # noqa: F401
from test_two_nodes import NODES, nodes  # noqa: F401
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
QUICK = {"tp2-cp2-ep2-etp2", "dp2-tp4-ep2"}  # the others are nightly


def settings_of(ep, etp):
    return [*ALL_EXPERTS, f"section.language.layout.ep={ep}", f"section.language.layout.etp={etp}"]


def rows_of_micro_batches(layout, batches, samples):
    """Yields (replica, rows of each of its ranks) of every micro-batch of the language model."""
    for (_, section, replica, _), numbers in batches.items():
        if section == "language":
            slices = zigzag([samples[i].length for i in numbers], layout.cp)[0]
            yield replica, [share(len(slices[cp]), tp, layout.tp) for cp in range(layout.cp) for tp in range(layout.tp)]


@pytest.mark.parametrize("case", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.nightly) for name in CASES])
def test_rows_travel_once_to_each_rank(workspace, shim, samples, monkeypatch, case):  # noqa: F811
    values, ep, etp = CASES[case]
    layout, size = Layout(**values), ep * etp
    monkeypatch.setattr(test_traffic, "DECK", DECK)
    counted, batches = run(workspace, shim, [Layout(), layout], settings_of(ep, etp))
    sent, total = [0] * layout.ranks, 0
    for replica, rows in rows_of_micro_batches(layout, batches, samples):
        total += sum(rows)
        for rank, mine in enumerate(rows):
            first = rank // size * size
            others = sum(rows[first:first + size]) - mine
            to_each = mine * (3 * WIDTH + 3 * EXPERTS)  # rows, rows again with gradients; choices, weights twice
            sent[replica * layout.lane + rank] += LAYERS * BYTES * ((size - 1) * to_each + others * (2 * WIDTH + EXPERTS))
    for rank, expected in enumerate(sent):
        name = f"section language, ranks that share experts, group {rank // size}"
        assert counted[1 + rank]["send 3", name][1] == expected, f"rank {rank} of the section"
    assert sum(sent) == total * LAYERS * BYTES * (size - 1) * (5 * WIDTH + 4 * EXPERTS)


# Where the ranks of the language model run, by rank of the section.
PLACEMENTS = {"by turns": "nsns", "three and one": "nsnn"}


@pytest.mark.parametrize("where", [pytest.param(where, id=name, marks=[] if name == "by turns" else pytest.mark.nightly) for name, where in PLACEMENTS.items()])
def test_rows_cross_between_nodes_once(workspace, nodes, shim, samples, monkeypatch, where):  # noqa: F811
    """Four ranks on two nodes. A row goes to each rank of its node and to its proxy on the other one, the rank with the same position there
    modulo their number, which forwards it within the node. Results come back the same way, summed by the proxy, and choices and weights
    spread likewise. Of a row 5 C e + 4 k e thus cross the border, whatever number of ranks is behind it."""
    layout = Layout(tp=2, cp=2)
    monkeypatch.setattr(test_traffic, "DECK", DECK)
    hosts = {"n": "north", "s": "south"}
    (workspace.path / "ranks").write_text("".join(f"rank {rank}={hosts[host]} slot=0-1\n" for rank, host in enumerate("n" + where)))
    launcher = [NODES, "mpirun", "--oversubscribe", "--host", f"north:{1 + where.count('n')},south:{where.count('s')}", "--rankfile", "ranks"]
    counted, batches = run(workspace, shim, [Layout(), layout], settings_of(4, 1), launcher=launcher, environment=nodes.environment)
    on = {host: [rank for rank in range(4) if where[rank] == host] for host in hosts}
    proxied = {rank: [] for rank in range(4)}  # ranks of the other node whose rows come here first
    for host, other in (("n", "s"), ("s", "n")):
        for position, rank in enumerate(on[host]):
            proxied[on[other][position % len(on[other])]].append(rank)
    sent, crossing, found, total = [0] * 4, [0] * 4, [0] * 4, 0
    there, back, spread = 3 * WIDTH, 2 * WIDTH + EXPERTS, 3 * EXPERTS  # elements of a row
    for _, rows in rows_of_micro_batches(layout, batches, samples):
        total += sum(rows)
        of_proxy = [sum(rows[source] for source in proxied[rank]) for rank in range(4)]
        for rank, mine in enumerate(rows):
            peers = [peer for peer in on[where[rank]] if peer != rank]
            across = mine * (there + spread) + of_proxy[rank] * back
            within = len(peers) * (mine + of_proxy[rank]) * (there + spread) + sum(rows[peer] + of_proxy[peer] for peer in peers) * back
            crossing[rank] += LAYERS * BYTES * across
            sent[rank] += LAYERS * BYTES * (across + within)
    name = "section language, ranks that share experts, group 0"
    for rank in range(4):
        found[rank] = sum(counted[1 + rank].get((f"to {1 + peer}", name), (0, 0))[1] for peer in range(4) if where[peer] != where[rank])
        assert found[rank] == crossing[rank], f"rank {rank} of the section, between nodes"
        assert counted[1 + rank]["send 3", name][1] == sent[rank], f"rank {rank} of the section"
    assert sum(found) == total * LAYERS * BYTES * (5 * WIDTH + 4 * EXPERTS)
