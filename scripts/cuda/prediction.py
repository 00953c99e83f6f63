#!/usr/bin/env python3
"""Predicts training steps on H100s and H200s, with rates that libraries reach instead of peaks, and with exchanges, launches and the
optimizer: the table "prediction" of docs/cuda.md. Nothing in it was measured on a GPU.
The operations count FLOPs and bytes (section_costs); the table "counts" of docs/cuda.md has the launches and the groups of NCCL.

  scripts/cuda/prediction.py build/cpu-release/section_costs            # writes the table
  scripts/cuda/prediction.py build/cpu-release/section_costs --check    # fails if the table differs"""

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import document
import step_counts
from costs import COPY_SHARE, GPUS, PHASES, costs, is_attention, is_gemm, line_of, model_flops, number

ROOT = Path(__file__).resolve().parents[2]
H100, H200 = GPUS
MICRO_BATCHES = 8  # of a step, on each replica

# Assumptions. Rates are FLOP/s or bytes/s.
GEMM = 680e12
ATTENTION = {64: (400e12, 280e12), 128: (550e12, 400e12)}  # by head size: forward, backward
NVLINK, NIC, GPUS_OF_A_NODE = 0.8 * 450e9, 0.8 * 50e9, 8  # per GPU and direction, 80% of the peak
EXCHANGE_S = 15e-6   # from the start of a group of NCCL to its first bytes
GAP_S = 2.5e-6       # between two kernels of a stream
LAUNCH_S = 5e-6      # of the host
STEP_S = 2e-3        # plan, norm and loss of a step, between hosts
CHUNK_LAUNCHES, CHUNK_EXCHANGES, CHUNK_ROWS = 7, 3, 4096  # of a chunk of the head; exchanges with tp alone
# Bytes that kernels move, relative to what the operations count: rows of logits do not fit the L2 cache between the two passes of the
# loss.
REREAD = {"cross_entropy_rows": 3 / 2}
KEPT_SCORES = 256 << 20  # bytes of the gradients of all scores that are kept at most

BILLION = {"layers": 16, "width": 2048, "heads": 32, "kv_heads": 8, "head_dim": 64, "mlp": 8192, "vocabulary": 128256}
SEVEN_BILLION = {"layers": 32, "width": 4096, "heads": 32, "kv_heads": 32, "head_dim": 128, "mlp": 11008, "vocabulary": 32000}


@dataclass(frozen=True)
class Case:
    name: str
    sizes: dict
    tp: int = 1
    cp: int = 1
    tokens: int = 8192
    gpu: object = H100
    before: tuple = ("", "")   # the share of the peak of commit 5efa902, predicted from its code in the same way: on 1 and 8 nodes
    by_hand: tuple = ("", "")  # independent estimates on one node: of 5efa902, and of a goal

    @property
    def layout(self):
        return f"cp {self.cp}" if self.cp > 1 else f"tp {self.tp}"


CASES = (
    Case("1.2B", BILLION, before=("39%", "35%"), by_hand=("40-44%", "46-48%")),
    Case("1.2B", BILLION, tp=2, before=("22%", "20%")),
    Case("1.2B", BILLION, tp=8, before=("14%", "13%")),
    Case("1.2B", BILLION, tokens=16384, before=("7%", "7%")),
    Case("1.2B", BILLION, cp=4, tokens=65536, before=("3%", "3%")),
    Case("7B", SEVEN_BILLION, gpu=H200, before=("53%", "46%"), by_hand=("48-52%", "52-55%")),
    Case("7B", SEVEN_BILLION, tp=2, before=("29%", "27%"), by_hand=("~33%", "~52%")),
    Case("7B", SEVEN_BILLION, tp=8, before=("21%", "19%"), by_hand=("22-28%", "38-42%")),
)


def exchange_bytes(case):
    """What a rank sends in one exchange of the rows of a micro-batch along tp."""
    return case.tokens / case.cp * case.sizes["width"] * 2 * (case.tp - 1) / case.tp


def score_bytes(case):
    """The gradients of all scores of a rank's heads, in bf16."""
    return 2 * case.sizes["heads"] / case.tp * case.tokens ** 2


def beside(exchange_s, work_s):
    """What is left to wait for of an exchange that goes on beside work."""
    return max(0.0, exchange_s - work_s)


class Prediction:
    """The seconds of a case on `nodes` nodes of 8 GPUs."""

    def __init__(self, case, nodes, counted, counts):
        self.case, self.nodes, self.counted = case, nodes, counted
        self.data_ranks = GPUS_OF_A_NODE * nodes // case.tp  # with cp
        self.counts = counts[case.layout]
        self.gemms = self.attention = self.memory = 0.0
        for phase in PHASES[:2]:
            for line in counted[phase]:
                self.add(phase, line)
        # Of the gradients of all scores a causal mask leaves half: they are written and read.
        if case.cp == 1 and score_bytes(case) <= KEPT_SCORES:
            self.attention += case.sizes["layers"] * score_bytes(case) / self.bandwidth
        self.tensor_parallel = self.exposed_tp() if case.tp > 1 else 0.0
        self.context_parallel = self.exposed_cp() if case.cp > 1 else 0.0
        self.gaps = GAP_S * self.launches()
        host = LAUNCH_S * (self.launches() + self.exchanges())
        device = self.gemms + self.attention + self.memory + self.tensor_parallel + self.context_parallel + self.gaps
        self.host_bound = host > device
        self.micro_batch = max(host, device)
        self.step_end = self.update() + self.exposed_data() + STEP_S
        self.step = MICRO_BATCHES * self.micro_batch + self.step_end
        self.share = MICRO_BATCHES * model_flops(counted) / case.gpu.bf16 / self.step

    @property
    def bandwidth(self):
        return COPY_SHARE * self.case.gpu.bandwidth

    def add(self, phase, line):
        moved_s = line["bytes"] * REREAD.get(line["operation"], 1) / self.bandwidth
        if is_gemm(line):
            self.gemms += line["calls"] * max(line["flops"] / GEMM, moved_s)
        elif is_attention(line):
            self.attention += line["calls"] * line["flops"] / self.attention_rate(phase)
        elif line["operation"] != "reduce":  # NCCL sums
            self.memory += line["calls"] * max(line["flops"] / self.case.gpu.f32, moved_s)

    def attention_rate(self, phase):
        return ATTENTION[self.case.sizes["head_dim"]][phase == "backward"]

    def count(self, row, column):
        return float(self.counts[row][step_counts.COLUMNS.index(column)].replace(",", ""))

    def of_micro_batch(self, row, more_per_chunk):
        """A row of the table "counts" for this number of layers and of chunks of the head."""
        layer = self.count(row, "a layer forward") + self.count(row, "a layer backward")
        chunks = math.ceil(self.case.tokens / self.case.cp / CHUNK_ROWS)
        return self.case.sizes["layers"] * layer + self.count(row, "rest of a micro-batch") + (chunks - 1) * more_per_chunk

    def launches(self):
        return self.of_micro_batch("launches", CHUNK_LAUNCHES)

    def exchanges(self):
        return self.of_micro_batch("NCCL groups", CHUNK_EXCHANGES if self.case.tp > 1 else 0)

    def exposed_tp(self):
        """Attention and MLP gather once in forward and sum once. In backward each gathers twice and sums once. The MLP does so in two
        chunks."""
        case, sizes = self.case, self.case.sizes
        layers, rows_s = sizes["layers"], exchange_bytes(case) / NVLINK
        whole_s, half_s = rows_s + EXCHANGE_S, rows_s / 2 + EXCHANGE_S
        qkv_s, gate_up_s, down_s = (2 * case.tokens * sizes["width"] * columns / case.tp / GEMM for columns in (
            (sizes["heads"] + 2 * sizes["kv_heads"]) * sizes["head_dim"], 2 * sizes["mlp"], sizes["mlp"]))
        # Exposed are the gather and the sum of forward and the gather of the gradient. The gather of the input goes on beside the GEMM for
        # dx, and the sum beside that for dw.
        attention = 3 * whole_s + 2 * beside(whole_s, qkv_s)
        # Exposed are the gather of the first chunk and the sum of the second.
        forward = 2 * half_s + beside(half_s, gate_up_s / 2) + beside(half_s, (gate_up_s + down_s) / 2)
        backward = half_s + beside(half_s, down_s / 2)
        # Gathers of both chunks, then their sums, each as soon as its dx is there, beside dx and dw.
        gathered_s = 2 * half_s
        first_sum_s = max(gathered_s, gate_up_s / 2) + half_s
        last_sum_s = max(first_sum_s, gate_up_s) + half_s
        dw_s = max(gathered_s, gate_up_s) + gate_up_s
        backward += max(dw_s, last_sum_s) - 2 * gate_up_s
        # Of embedding, head and loss; few of these move rows.
        of_rows = (self.counted["exchanged"]["forward"]["tp"] + self.counted["exchanged"]["backward"]["tp"]) / exchange_bytes(case)
        others = (of_rows - 10 * layers) * rows_s + EXCHANGE_S * (self.exchanges() - 15 * layers)
        return layers * (attention + forward + backward) + others

    def exposed_cp(self):
        """Each exchange of a ring goes on beside the attention to the keys that came before."""
        exchanged = self.counted["exchanged"]
        steps = (self.case.cp - 1) * self.case.sizes["layers"]
        exposed = 0.0
        for phase in PHASES[:2]:
            flops = sum(line["calls"] * line["flops"] for line in self.counted[phase] if is_attention(line))
            part_s = flops / self.attention_rate(phase) / (self.case.cp * self.case.sizes["layers"])
            exposed += steps * beside(exchanged[phase]["cp"] / steps / NVLINK + EXCHANGE_S, part_s)
        return exposed

    def update(self):
        return sum(line["calls"] * line["bytes"] / self.bandwidth for line in self.counted["update"] if not is_gemm(line))

    def data_bandwidth(self):
        """Of a ring along dp and cp: within a node by NVLink, across nodes by the NICs of the group's ranks on a node."""
        ranks_of_a_node = self.data_ranks // self.nodes
        return NVLINK if self.nodes == 1 else min(NVLINK, ranks_of_a_node * NIC)

    def exposed_data(self):
        """Sums of gradients go on beside the last backward, gathers of weights beside the first forward; those of the embedding, whose
        gradient is final last and which forward needs first, do not."""
        ranks, weights = self.data_ranks, self.counted["section"]["parameters"]
        if ranks == 1:
            return 0.0
        sent = self.counted["exchanged"]["update"]["data"] / self.data_bandwidth()
        embedding = self.case.sizes["vocabulary"] * self.case.sizes["width"] / self.case.tp / weights
        forward_s = self.micro_batch / 3
        return sum(max(part * sent * embedding, beside(part * sent, work_s))
                   for part, work_s in ((4 / 6, self.micro_batch - forward_s), (2 / 6, forward_s)))


def text_of(program, counts_table):
    _, counts = step_counts.read_table(counts_table)
    head = ["section", "tokens", "layout, nodes", "GPU", "GEMMs", "attention", "bound by memory", "tp and cp exposed", "gaps", "micro-batch",
            "end of a step", "share of the peak now", "by 5efa902", "by hand: by 5efa902", "by hand: the goal"]
    text = "\n" + line_of(head) + "|" + "---|" * len(head) + "\n"
    for case in CASES:
        for nodes in (1, 8):
            data_ranks = GPUS_OF_A_NODE * nodes // (case.tp * case.cp)
            sizes = {**case.sizes, "tokens": case.tokens, "tp": case.tp, "cp": case.cp, "dp": data_ranks}
            counted = costs(program, *(f"{key}={value}" for key, value in sizes.items()))
            p = Prediction(case, nodes, counted, counts)
            ms = [number(1e3 * s) for s in (p.gemms, p.attention, p.memory, p.tensor_parallel + p.context_parallel, p.gaps, p.micro_batch,
                                            p.step_end)]
            share = f"{p.share:.0%}" + " (host)" * p.host_bound
            text += line_of([case.name, str(case.tokens), f"{case.layout}, dp {data_ranks}, {nodes}", case.gpu.name, *ms, share, case.before[nodes > 1],
                             *(case.by_hand if nodes == 1 else ("", ""))])
    return text + "\n"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="section_costs of a build folder")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "cuda.md")
    options = parser.parse_args(arguments)
    table = text_of(options.program, document.read_between(options.document.read_text(), "counts"))
    return document.write_or_check(options.document, "prediction", table, options.check, "scripts/cuda/prediction.py")


if __name__ == "__main__":
    sys.exit(main())
