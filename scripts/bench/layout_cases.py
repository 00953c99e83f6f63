"""Layouts of three decks that must give the results of one rank, and functions that compare two runs.

tests/system/test_layouts.py runs them all, those without `quick` as nightly tests: in fp32, but those with `in_double` in fp64, and only the
quick ones of them in fp32 as well. Every pair of choices occurs in some case. (tests/mpi/sharded_model_test.cpp tries the degrees of one section
alone, and test_random_layouts.py whole programs at random.)
"""

import dataclasses
import pathlib
import shutil
import subprocess
import sys

import h5py
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
# deck: (sections in order, steps, settings that make the deck small)
DECKS = {
    "layouts": (("vision", "language"), 20, []),
    "layouts_deep": (("vision", "language"), 12, []),
    "layouts_moe": (("vision", "language"), 12, []),
    "vlm_glyphs": (("vision", "language"), 8, ["data.global_batch=24"]),
    "distill": (("teacher", "student"), 8, ["data.global_batch=18", "section.teacher.weights=random"]),
}


@dataclasses.dataclass(frozen=True)
class Case:
    deck: str
    up: str  # "dp2 tp3 cp2r pp2 v2", kinds r (ring) and a (all-to-all), v: chunks
    down: str
    settings: tuple = ()  # settings that do not change the results
    model: tuple = ()  # settings that change the results; the reference has them too
    shared: bool = False  # both sections on the same ranks
    quick: bool = False

    @property
    def sections(self):
        return DECKS[self.deck][0]

    @property
    def steps(self):
        return DECKS[self.deck][1]

    @property
    def ranks(self):
        up, down = degrees(self.up), degrees(self.down)
        sizes = [d["dp"] * d["tp"] * d["cp"] * d["pp"] for d in (up, down)]
        assert not self.shared or sizes[0] == sizes[1], self
        return sizes[0] if self.shared else sum(sizes)

    @property
    def values(self):
        found = [*DECKS[self.deck][2], *self.model, *self.settings]
        for section, layout in zip(self.sections, (self.up, self.down)):
            found += [f"section.{section}.layout.{key}={value}" for key, value in degrees(layout).items()]
        return found + ([f"section.{self.sections[1]}.colocate_with={self.sections[0]}"] if self.shared else [])

    @property
    def in_double(self):
        """Whether the sections share ranks in unlike layouts, the edge joins several replicas upstream to one, or there are experts."""
        up, down = degrees(self.up), degrees(self.down)
        return self.deck == "layouts_moe" or up["dp"] > down["dp"] or (self.shared and (up["dp"], up["pp"]) != (down["dp"], down["pp"]))

    @property
    def reference(self):
        return Case(self.deck, "", "", model=self.model, shared=True)

    @property
    def name(self):
        words = [f"{self.up or '1'} -> {self.down or '1'}", *(["shared"] if self.shared else [])]
        return " ".join([*words, *(value.split(".", 1)[-1] for value in (*self.model, *self.settings))])


def degrees(text):
    """Parses "tp3 cp2r" into {"dp": 1, "tp": 3, "cp": 2, "cp_kind": "ring", "pp": 1, "chunks": 1, "ep": 1, "etp": 1}."""
    found = {"dp": 1, "tp": 1, "cp": 1, "cp_kind": "ring", "pp": 1, "chunks": 1, "ep": 1, "etp": 1}
    for word in text.split():
        if word[0] == "v":
            found["chunks"] = int(word[1:])
            continue
        if word[-1] in "ra":
            found["cp_kind"] = "all-to-all" if word[-1] == "a" else "ring"
            word = word[:-1]
        key = word.rstrip("0123456789")
        found[key] = int(word[len(key):])
    return found


def vlm(up, down, *settings, **more):
    return Case("layouts", up, down, settings, **more)


def deep(up, down, *settings, **more):
    return Case("layouts_deep", up, down, settings, **more)


def moe(up, down, *settings, **more):
    return Case("layouts_moe", up, down, settings, **more)


def stages(section, layers):
    return f"section.{section}.layout.stages={layers}".replace(" ", "")


IN_DOUBLE = ("run.precision=fp64", "run.device=cpu", "checkpoint.every=0")
READY, MESSAGES, WINDOW, RECOMPUTE = "schedule.dispatch=ready", "run.transport=messages", "run.transport=window", "train.recompute=layer"
UNLIKE = ("section.vision.micro_batch=5", "section.vision.window=4", "section.language.micro_batch=7")
TIGHT = ("section.vision.micro_batch=1", "section.vision.window=16", "section.language.micro_batch=1")
FROZEN = ("section.vision.mode=forward", "section.vision.weights=random")
TUNED = ('section.vision.freeze=["patch","layers.0","merger"]', 'section.language.freeze=["layers.0.attention","norm"]',
         "section.vision.learning_rate=0.001", "section.language.weight_decay=0.5")
FROZEN_FRONT = (*FROZEN, 'section.language.freeze=["embedding","layers.0-4"]')  # of eight layers
MIXED = ("data.train=runs/few-pictures.h5",)
SMALL_TEACHER = ("section.teacher.micro_batch=1", "section.teacher.window=8", "section.student.micro_batch=5")
SIGMOID = ("model.language-12.router=sigmoid", "model.language-12.router_normalize=false", "model.language-12.shared_expert_mlp=0",
           "model.language-12.balance=bias", "model.language-12.balance_strength=0.01")
BALANCED = ("model.language-12.balance=loss", "model.language-12.balance_strength=0.1")
FROZEN_EXPERTS = ('section.language.freeze=["layers.0-1"]',)
UNTIED = ("model.language-8.tie_embeddings=false",)
ONE_IN_FLIGHT = ("section.teacher.micro_batch=4", "section.teacher.window=1")


def heads(kv):
    return (f"model.language-12.kv_heads={kv}",)


CASES = [
    vlm("tp2 cp2r", "tp2 cp2r"),
    vlm("tp2 cp2a", "tp3 cp2a", MESSAGES, quick=True),
    vlm("cp3r", "dp3 tp2", *UNLIKE),
    vlm("dp2 tp2", "dp2 cp2r", "schedule.policy=fifo", *UNLIKE, quick=True),
    vlm("tp3", "dp2 tp2 cp2r", WINDOW, quick=True),
    vlm("dp2 cp2a", "dp4 tp2", "schedule.policy=lpt", quick=True),
    vlm("dp2 tp2 cp2r", "dp2 cp2a", READY),
    vlm("tp4", "tp2 cp2r", shared=True),
    vlm("dp2 tp3", "dp2 cp3r", *UNLIKE, shared=True),
    vlm("cp2a", "tp2", READY, shared=True, quick=True),
    vlm("dp2 cp2r", "dp2 tp2", shared=True),
    vlm("cp2r", "tp2 cp2r", READY, *UNLIKE, quick=True),
    vlm("tp2", "dp2 tp2", READY, *TIGHT, MESSAGES),
    vlm("tp2 cp2r", "tp2 cp3r", RECOMPUTE, *TIGHT, quick=True),
    vlm("cp2a", "tp2 cp2a", RECOMPUTE),
    vlm("", "tp2", model=heads(1)),
    vlm("cp2r", "tp4", model=heads(2), quick=True),
    vlm("tp2", "tp6", model=heads(3)),
    vlm("tp12", "tp12", model=heads(3), shared=True),
    vlm("", "tp3 cp2a", model=heads(1)),
    vlm("", "cp6a", model=heads(2)),
    vlm("tp2", "tp2 cp2r", model=FROZEN),
    vlm("dp2 cp2r", "dp4 tp2", READY, model=FROZEN, quick=True),
    vlm("cp2r", "tp2 cp2r", model=TUNED, quick=True),
    vlm("tp2 cp2r", "dp2 tp2", model=MIXED),
    vlm("dp2 tp2", "dp2 cp2a", READY, model=MIXED, shared=True, quick=True),
    # Unlike layouts on the same ranks, where several replicas of one section share a lane.
    vlm("dp4", "tp4", shared=True, quick=True),
    vlm("dp8", "dp2 tp4", READY, *UNLIKE, shared=True),
    vlm("tp2 cp2a", "dp4", RECOMPUTE, *TIGHT, shared=True),
    vlm("dp3 tp2", "dp2 cp3r", "schedule.policy=fifo", *UNLIKE, shared=True),
    vlm("dp4", "dp2 cp2r", MESSAGES, "schedule.policy=lpt", model=MIXED, shared=True, quick=True),
    vlm("dp6", "dp2 tp3", READY, model=FROZEN, shared=True),
    # Fan-in: several replicas upstream of each one of the language model.
    vlm("dp2", "", quick=True),
    vlm("dp4 cp2r", "dp2 tp2", READY, *UNLIKE),
    vlm("dp3 tp2", "cp2a", MESSAGES, "schedule.policy=fifo"),
    vlm("dp6", "dp2 cp2r", WINDOW, model=MIXED, quick=True),
    vlm("dp4", "dp2 tp2", *TIGHT, "schedule.policy=lpt", model=FROZEN),
    Case("vlm_glyphs", "tp3", "tp2 cp2r"),
    Case("vlm_glyphs", "cp3a", "dp2 tp4"),
    Case("vlm_glyphs", "cp2r", "tp4", (READY,)),
    Case("distill", "tp2", "tp2"),
    Case("distill", "cp2r", "cp3r", quick=True),
    Case("distill", "tp2 cp2r", "dp2 tp2", ONE_IN_FLIGHT),
    Case("distill", "cp2a", "dp3 tp2", (READY, *SMALL_TEACHER), quick=True),
    Case("distill", "dp2 tp2", "dp2 cp2a", ONE_IN_FLIGHT, shared=True),
    Case("distill", "dp4", "dp2 tp2", SMALL_TEACHER),
    Case("distill", "dp4", "tp2 cp2r", SMALL_TEACHER, shared=True, quick=True),
    Case("distill", "tp2", "dp2", (READY, "section.student.micro_batch=2", *ONE_IN_FLIGHT), shared=True),
    # Pipelines, with the other axes, options and graphs.
    deep("", "pp8"),
    deep("pp3", ""),
    deep("", "pp4", quick=True),
    deep("pp4", "dp2"),
    deep("", "pp3", model=UNTIED),
    deep("pp2", "pp2 tp3", model=UNTIED, quick=True),
    deep("pp2", "pp2", shared=True),
    deep("pp2 tp2", "pp4", MESSAGES),
    deep("pp2 cp2r", "pp2 tp2 cp2r", quick=True),
    deep("pp3", "dp2 pp2 tp2", WINDOW),
    deep("dp2 pp2", "dp4 pp3", "schedule.policy=fifo", *UNLIKE),
    deep("pp2 cp2a", "pp2 cp2a", RECOMPUTE, "schedule.policy=lpt"),
    deep("dp2 pp2 tp2", "dp2 pp2 cp2r", READY, shared=True, quick=True),
    deep("pp2", "dp2 pp2 cp2r", READY, MESSAGES, *UNLIKE),
    deep("tp2", "pp3", stages("language", [1, 2, 5]), quick=True),
    deep("pp3", "pp4", stages("vision", [5, 2, 1]), stages("language", [3, 1, 1, 3]), READY),
    deep("pp2", "dp2 pp2", model=FROZEN),
    deep("", "dp2 pp3", model=FROZEN_FRONT, quick=True),
    deep("pp2 tp2", "pp2 v2", READY, model=FROZEN_FRONT),
    deep("dp2 pp2", "dp2 pp3", READY, model=MIXED),
    deep("dp2 pp2", "pp2 tp2", READY, *UNLIKE),
    # With several chunks on each rank.
    deep("", "pp2 v2"),
    deep("pp2 v2", "pp2 v3", MESSAGES, quick=True),
    deep("", "pp4 v2", READY),
    deep("pp2 v3", "dp2 tp2", *UNLIKE),
    deep("pp2 v2", "pp2 tp2 cp2r", shared=False, model=UNTIED),
    deep("pp2 v2", "pp2 v4", READY, shared=True, quick=True),
    deep("pp3 v2", "dp2 pp2 v2", "schedule.policy=fifo", RECOMPUTE),
    deep("", "pp3 v2", stages("language", [1, 2, 1, 2, 1, 1]), "schedule.policy=lpt"),
    deep("pp2 v2", "dp2 pp2 v3", model=FROZEN),
    deep("dp4 pp2", "dp2 pp2 v2", READY),
    # Unlike layouts of pipelines on the same ranks.
    deep("dp4 pp2", "dp2 pp2 tp2", READY, *UNLIKE, shared=True),
    deep("dp4", "dp2 pp2", shared=True, quick=True),
    deep("dp8", "pp2 tp4", READY, model=MIXED, shared=True),
    deep("dp2 pp2 tp2", "dp2 pp4", "schedule.policy=fifo", shared=True),
    deep("dp2 pp2 v2", "pp4", RECOMPUTE, shared=True),
    Case("vlm_glyphs", "pp3", "pp4"),
    Case("distill", "pp2", "tp2"),
    Case("distill", "cp2r", "dp2 pp2", (READY,)),
    Case("distill", "pp2", "pp2", (READY,), quick=True),
    Case("distill", "dp2 pp2", "dp2 pp2", ONE_IN_FLIGHT, shared=True),
    # Experts: on each rank, spread over the ranks of a replica, and split, with the other axes and options.
    moe("", "tp2"),
    moe("", "dp2"),
    moe("", "tp2 ep2", quick=True),
    moe("tp2", "cp2r ep2"),
    moe("", "tp2 etp2"),
    moe("cp2r", "tp2 cp2r ep4", MESSAGES),
    moe("", "tp2 cp2a ep2 etp2", READY, *UNLIKE),
    moe("", "dp2 tp3 ep3", RECOMPUTE, quick=True),
    moe("", "pp2 tp2 ep2"),
    moe("", "dp2 pp2 cp2r etp2", READY),
    moe("tp4", "tp4 ep2", shared=True),
    moe("dp2", "dp2 tp2 ep2", *TIGHT, quick=True),
    moe("dp4", "tp4 ep2 etp2", READY, shared=True),
    moe("dp2", "tp2 ep2", model=BALANCED),
    # Experts that several replicas share.
    moe("", "dp2 ep2", quick=True),
    moe("dp2", "dp4 ep4", READY, *TIGHT),
    moe("cp2r", "dp2 tp2 ep4", MESSAGES),
    moe("", "dp2 cp2a etp4", model=SIGMOID),
    moe("", "dp2 pp2 ep2", RECOMPUTE, "schedule.policy=fifo", quick=True),
    moe("dp4", "dp2 tp2 ep4", READY, *UNLIKE, model=(*MIXED, *BALANCED), shared=True),
    moe("", "dp3 tp2 ep3", *TIGHT, model=FROZEN_EXPERTS),
    moe("", "tp4 ep4", model=SIGMOID),
    moe("cp2r", "dp2 tp2 ep2", model=(*MIXED, *BALANCED), quick=True),
    moe("", "tp2 ep2", model=FROZEN_EXPERTS),
]


def make_samples(root):
    """Makes the sample file MIXED below `root`, with small pictures in one of four samples."""
    (root / "runs").mkdir(exist_ok=True)
    if not (root / MIXED[0].partition("=")[2]).exists():
        subprocess.run([sys.executable, str(ROOT / "scripts/data/make_mixed.py"), "runs/few-pictures.h5", "--samples", "256", "--share", "0.25",
                        "--tokens", "30", "--pixels", "3000", "--longest", "90", "--largest", "160"], cwd=root, check=True, capture_output=True)  # fmt: skip


def first_gradients(run, sections):
    """Returns {section.parameter: first moment after one step}, which is the clipped gradient times 1 - beta1."""
    found = {}
    for section in sections:
        with h5py.File(run / f"checkpoints/step-000001/{section}.h5") as file:

            def visit(name, item, section=section):
                if isinstance(item, h5py.Dataset):
                    found[f"{section}.{name}"] = item[...].astype(np.float64)

            if "adam_m" in file:
                file["adam_m"].visititems(visit)
    return found


def remove_checkpoints(run):
    """Removes all checkpoints but the first, which first_gradients reads."""
    for path in run.glob("checkpoints/step-*"):
        if path.name != "step-000001":
            shutil.rmtree(path)


def relative(a, b):
    return float(np.max(np.abs(a - b) / np.abs(b)))


def differences_of_steps(run, reference):
    """Returns the largest relative differences of the steps of two run directories as {"loss", "grad_norm"}."""
    found = {}
    with h5py.File(run / "metrics.h5") as a, h5py.File(reference / "metrics.h5") as b:
        for key in ("loss", "grad_norm"):
            assert len(a["steps"][key]) == len(b["steps"][key])
            found[key] = relative(a["steps"][key][:], b["steps"][key][:])
    return found


def same_choices(run, reference):
    """Whether the routers of two runs chose each expert equally often: the loads of every step and layer, if there are any, are equal."""
    with h5py.File(run / "metrics.h5") as a, h5py.File(reference / "metrics.h5") as b:
        return all(np.array_equal(a["experts"][key][:], b["experts"][key][:]) for key in ("largest", "smallest", "entropy"))


def differences(run, reference, sections):
    """Adds to differences_of_steps() "gradient" and "worst", which names the parameter whose gradient differs most."""
    found = differences_of_steps(run, reference)
    left, right = first_gradients(run, sections), first_gradients(reference, sections)
    assert left.keys() == right.keys() and right
    # The bias of a router is updated without moments.
    left, right = ({key: value for key, value in found.items() if not key.endswith("router.bias")} for found in (left, right))
    assert all(np.linalg.norm(value) > 0 for value in right.values())
    found["worst"], found["gradient"] = max(((key, np.linalg.norm(left[key] - value) / np.linalg.norm(value)) for key, value in right.items()),
                                           key=lambda pair: pair[1])
    return found
