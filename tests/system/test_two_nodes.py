"""Two hosts made of network namespaces (tests/support/nodes.sh): runs across them give the same numbers, and end in time when one is lost."""

import json
import os
import re
import signal
import subprocess
import time

import numpy as np
import pytest
from conftest import BINARY, DISTILL, FOUR_RANKS, ROOT, TEACHER, VLM, relative, settings

NODES = str(ROOT / "tests/support/nodes.sh")


class Nodes:
    def __init__(self, state):
        self.environment = {**os.environ, "NODES_STATE": str(state)}

    def call(self, *words):
        return subprocess.run([NODES, *words], env=self.environment, capture_output=True, text=True, timeout=60)

    def sent(self, node):
        """Bytes that the node has sent to others."""
        return json.loads(self.call("in", node, "ip", "-json", "-statistics", "link", "show", "eth0").stdout)[0]["stats64"]["tx"]["bytes"]

    def start(self, hosts, ranks, command, cwd, options=()):
        words = [NODES, "mpirun", "--oversubscribe", "--host", hosts, *options, "-n", str(ranks), BINARY, *command]
        return subprocess.Popen(words, cwd=cwd, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                stdin=subprocess.DEVNULL)

    def run(self, hosts, ranks, command, cwd, expect=0, options=()):
        job = self.start(hosts, ranks, command, cwd, options)
        output, _ = job.communicate(timeout=300)
        assert job.returncode == expect, f"exit {job.returncode}, not {expect}\n{output[-3000:]}"
        return output


@pytest.fixture
def nodes(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("making hosts needs root")
    nodes = Nodes(tmp_path / "nodes")
    up = nodes.call("up", "north", "south")
    if up.returncode != 0:
        nodes.call("down")
        pytest.skip(f"no hosts can be made here: {up.stderr.strip()[-300:]}")
    yield nodes
    nodes.call("down")


def train(deck, name, values, *options):
    return ["train", deck, *options, *settings([f"run.output=runs/{name}", *values])]


def test_losses_are_those_of_one_node_bit_for_bit(workspace, nodes):
    values = [*FOUR_RANKS, "train.steps=8", "checkpoint.every=0"]
    workspace.train(4, VLM, "one", values)
    output = nodes.run("north:1,south:3", 4, train(VLM, "two", values), workspace.path)
    assert "edge vision-language: by messages, because its ranks are on north, south" in output
    assert np.array_equal(workspace.losses("one"), workspace.losses("two"))
    # Edges are the same thing by messages on one node, and under `ready`, where the order of sums may differ.
    workspace.train(4, VLM, "messages", [*values, "run.transport=messages"])
    assert np.array_equal(workspace.losses("one"), workspace.losses("messages"))
    nodes.run("north:2,south:2", 4, train(VLM, "ready", [*values, "schedule.dispatch=ready"]), workspace.path)
    assert np.allclose(workspace.losses("one"), workspace.losses("ready"), rtol=1e-5, atol=0)


ON_SIX_RANKS = {"ring": dict(cp=2, cp_kind="ring"), "all-to-all": dict(cp=2, cp_kind="all-to-all"), "pipeline": dict(pp=2)}


@pytest.mark.parametrize("kind", ["ring", pytest.param("all-to-all", marks=pytest.mark.nightly), "pipeline"])
def test_lanes_across_nodes_give_the_numbers_of_one_node_bit_for_bit(workspace, nodes, kind):
    """Ranks 0 and 1, the cp ranks or stages of vision, and 2 to 5, cp or pp x tp of language, on hosts by turns: every group and every
    stage edge has both."""
    deck = str(ROOT / "inputs/layouts.toml")
    values = ["train.steps=8", "checkpoint.every=4", "section.language.layout.tp=2",
              *(f"section.{section}.layout.{key}={value}" for section in ("vision", "language") for key, value in ON_SIX_RANKS[kind].items())]
    workspace.train(6, deck, "one", values)
    # Host by host: north has ranks 0, 3, 4, south the others; both pairs of tp ranks and both of cp ranks are apart, and so are the stages.
    (workspace.path / "ranks").write_text("".join(f"rank {rank}={host} slot=0-1\n" for rank, host in
                                                  enumerate(["north", "south", "south", "north", "north", "south"])))
    output = nodes.run("north:3,south:3", 6, train(deck, "two", values), workspace.path, options=["--rankfile", "ranks"])
    assert "edge vision-language: by messages, because its ranks are on north, south" in output
    assert kind != "pipeline" or "edge language stage 0-1: by messages, because its ranks are on north, south" in output
    assert np.array_equal(workspace.losses("one"), workspace.losses("two"))
    for section in ("vision", "language"):
        one, two = workspace.checkpoint("one", 8, section), workspace.checkpoint("two", 8, section)
        assert all(np.array_equal(one[group][name], two[group][name]) for group in one for name in one[group])


def test_experts_across_nodes_give_the_numbers_of_one_node(workspace, nodes):
    """Rank 0 has vision, and 1 to 4, on hosts by turns, share the experts of language. Sums of results are taken in another order."""
    deck = str(ROOT / "inputs/layouts_moe.toml")
    values = ["train.steps=6", "checkpoint.every=0", *(f"section.language.layout.{degree}" for degree in ("dp=2", "tp=2", "ep=4"))]
    workspace.train(5, deck, "one", values)
    (workspace.path / "ranks").write_text("".join(f"rank {rank}={host} slot=0-1\n" for rank, host in
                                                  enumerate(["north", "north", "south", "north", "south"])))
    nodes.run("north:3,south:2", 5, train(deck, "two", values), workspace.path, options=["--rankfile", "ranks"])
    assert relative(workspace.losses("two"), workspace.losses("one")) <= 1e-5


def test_gradients_and_weights_cross_between_nodes_once(workspace, nodes):
    """Two replicas on each host. With P weights 4 P bytes of gradients cross in each step, as sums of a host's two, and 4 P of new weights;
    were they sent to each replica, it would be twice that. Counted on the hosts' network devices, without what two steps take."""
    values = ["section.teacher.layout.dp=4", "model.text-teacher.width=256", "model.text-teacher.heads=4", "model.text-teacher.kv_heads=4",
              "model.text-teacher.mlp=1024"]
    sent = {}
    for steps in (2, 6):
        before = nodes.sent("north") + nodes.sent("south")
        nodes.run("north:2,south:2", 4, train(TEACHER, f"of-{steps}", [*values, f"train.steps={steps}"]), workspace.path)
        sent[steps] = nodes.sent("north") + nodes.sent("south") - before
    weights = sum(array.size for array in workspace.checkpoint("of-6", 6, "teacher")["weights"].values())
    ratio = (sent[6] - sent[2]) / 4 / (8 * weights)
    assert 1 <= ratio < 1.2, f"{ratio:.3f} of the bytes of {weights} weights"  # headers of packets, plans, heartbeats


def test_sections_begin_at_the_border_of_a_node(workspace, nodes):
    """On one node vision is rank 0 and language, two tp ranks, 1 and 2. On nodes of two ranks language has the first one, and the run goes
    on as if nothing had moved. layout.first_rank puts the sections back."""
    deck = str(ROOT / "inputs/layouts.toml")
    values = ["checkpoint.every=4", "section.language.layout.tp=2"]
    workspace.train(3, deck, "one", ["train.steps=8", *values])
    workspace.train(3, deck, "two", ["train.steps=4", *values])
    command = train(deck, "two", ["train.steps=8", *values], "--resume", "auto")
    table = nodes.run("north:2,south:1", 3, [*command, "--dry-run"], workspace.path)
    assert re.findall(r"^ +(\d) +(\d) +[\d.]+ MiB +(\w+) +(\w+) ", table, re.MULTILINE) == [
        ("0", "0", "north", "language"), ("1", "0", "north", "language"), ("2", "1", "south", "vision")], table
    nodes.run("north:2,south:1", 3, command, workspace.path)
    assert np.array_equal(workspace.losses("one"), workspace.losses("two"))
    for section in ("vision", "language"):
        one, two = workspace.checkpoint("one", 8, section), workspace.checkpoint("two", 8, section)
        assert all(np.array_equal(one[group][name], two[group][name]) for group in one for name in one[group])
    by_hand = train(deck, "three", [*values, "section.vision.layout.first_rank=0"], "--dry-run")
    assert re.search(r"^ +0 +0 +[\d.]+ MiB +north +vision ", nodes.run("north:2,south:1", 3, by_hand, workspace.path), re.MULTILINE)


@pytest.mark.nightly
def test_distillation_sends_hidden_states_between_nodes(workspace, nodes):
    workspace.train(2, TEACHER, "teacher", ["train.steps=2"])
    values = ["data.global_batch=18", "train.steps=6", "checkpoint.every=0", "section.teacher.weights=runs/teacher"]
    workspace.train(3, DISTILL, "one", values)
    nodes.run("north:1,south:2", 3, train(DISTILL, "two", values), workspace.path)
    assert np.array_equal(workspace.losses("one"), workspace.losses("two"))


def test_a_window_between_nodes_is_refused(workspace, nodes):
    output = nodes.run("north:1,south:3", 4, train(VLM, "run", ["run.transport=window"]), workspace.path, expect=78)
    assert output.count('set it to "auto" or "messages"') == 1, output
    assert not workspace.run("run").exists()


ENDLESS = [*FOUR_RANKS, "train.steps=100000", "checkpoint.every=0", "run.timeout_s=5"]


@pytest.mark.nightly
def test_a_cut_link_ends_the_job(workspace, nodes):
    """As started by the Slurm script, whose mpirun would stay: the ranks say what they miss, and nothing is left."""
    (workspace.path / "hosts").write_text("north slots=1\nsouth slots=3\n")
    script = [NODES, "in", "north", "env", f"MAESTRO={BINARY}", "SLURM_NTASKS=4", "SLURM_JOB_ID=1", "OMPI_ALLOW_RUN_AS_ROOT=1",
              "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_plm=rsh", f"OMPI_MCA_plm_rsh_agent={NODES} agent",
              f"OMPI_MCA_orte_default_hostfile={workspace.path / 'hosts'}", "OMPI_MCA_rmaps_base_oversubscribe=1",
              "bash", str(ROOT / "scripts/slurm/train.sbatch"), *train(VLM, "cut", ENDLESS)[1:]]
    with open(workspace.path / "log", "w") as log:  # a pipe would stay open: the launcher's daemon on the other node holds it
        job = subprocess.Popen(script, cwd=workspace.path, env=nodes.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    workspace.wait_for_metrics("cut", job)
    time.sleep(2)
    assert [len(nodes.call("pids", node, "maestro").stdout.split()) for node in ("north", "south")] == [1, 3]
    nodes.call("cut", "south")
    job.wait(timeout=90)
    output = (workspace.path / "log").read_text()
    assert job.returncode != 0 and "mpirun cannot reach the others" in output, output
    report = workspace.exit_report("cut")
    assert report["code"] == 76 and "waiting for" in report["reason"], (report, output)
    missing = "ranks 1 (south), 2 (south), 3 (south)" if report["rank"] == 0 else "rank 0 (north)"
    assert report["reason"].endswith("; no answer from " + missing), (report, output)
    assert not any(nodes.call("pids", node, "maestro").stdout for node in ("north", "south"))


def test_a_stopped_rank_of_another_node_is_missed(workspace, nodes):
    job = nodes.start("north:1,south:3", 4, train(VLM, "stopped", ENDLESS), workspace.path)
    workspace.wait_for_metrics("stopped", job)
    time.sleep(2)
    os.kill(int(nodes.call("pids", "north", "maestro").stdout), signal.SIGSTOP)
    output, _ = job.communicate(timeout=60)
    assert job.returncode != 0 and workspace.exit_report("stopped")["code"] == 76 and "waiting for" in output, output
    assert workspace.exit_report("stopped")["reason"].endswith("; no answer from rank 0 (north)"), output
